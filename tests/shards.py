"""A whole study with full tuning in two processes, scored on the way; by its own command, for it takes half a minute.

make large
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from potentia.evidence import read
from potentia.run import plan_study, run_study
from potentia.study import Study, make_study


def test_a_study_with_shards_has_the_scores_and_keys_of_one_process(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "one")
    tiny.save_questions(tmp_path / "a.jsonl", n=40)

    def study(shards: int) -> Study:
        return make_study(
            {
                "name": "sharded",
                "models": [{"name": "one", "path": str(tmp_path / "one")}],
                "tasks": [{"name": "a", "file": str(tmp_path / "a.jsonl")}],
                "protocols": ["adjust"],
                "adjust": {"data": str(tmp_path / "a.jsonl"), "at_steps": [2]},
                "tuning": {"method": "full", "epochs": 1, "learning_rates": [1e-2]},
                "selection": "tuned",
                "shards": shards,
                "device": "cpu",
                "store": str(tmp_path / f"{shards}.db"),
            }
        )

    assert plan_study(study(1)).key == plan_study(study(2)).key
    results = []
    for shards in (1, 2):
        result = run_study(study(shards))
        assert (result.computed, result.failed) == (2, 0), result.reasons
        cells = read(str(tmp_path / f"{shards}.db")).cells()
        results.append(
            {(c.task, str(c.protocol)): c.score.value for c in cells} | {c.key: 0 for c in cells}
        )
    assert results[0] == pytest.approx(results[1], abs=1e-5)
