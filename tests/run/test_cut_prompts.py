"""Prompts that were cut to fit the model are counted for each cell, and told."""

from __future__ import annotations

import json
from pathlib import Path

import tiny
from potentia.evidence import read
from potentia.run import run_study
from potentia.store import Store
from potentia.study import make_study


def test_a_cut_prompt_is_told_in_its_own_cell_alone(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "base")
    config = tmp_path / "base" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 24}))
    tiny.save_questions(tmp_path / "colours.jsonl", n=60)
    study = make_study(
        {
            "name": "cut",
            "models": [{"name": "base", "path": str(tmp_path / "base")}],
            "tasks": [{"name": "colours", "file": str(tmp_path / "colours.jsonl")}],
            "protocols": ["direct", "few_shot:5"],
            "device": "cpu",
            "store": str(tmp_path / "p.db"),
        }
    )
    assert run_study(study).failed == 0
    with Store.open(study.store, readonly=True) as store:
        told = store.provenance.read_cut_prompts(study="cut")
        cells = {cell.protocol: cell for cell in store.cells.read()}
    ((place, models),) = told.items()
    assert place == ("few_shot:5", "colours")
    cut, asked = models["base"].cut, models["base"].requests
    assert cut == asked == 3 * cells["direct"].score.n, "every option of every document"
    assert cells["direct"].selection.cut_prompts is None
    (note,) = read(study.store, study="cut").notes
    assert (
        note
        == f"colours by few_shot:5: {cut:,} of {asked:,} prompts were cut to fit the model (base)"
    )
