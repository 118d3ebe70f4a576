"""What every model was given is told of results whose search ended, and of no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from made_store import make_store
from potentia.analysis.rankings.tuning import compare_tuning
from potentia.evidence import read
from potentia.store import Store
from potentia.values.protocol import TRAIN_BEFORE_TEST
from potentia.values.selection import SearchEnd, Selection


def test_a_module_called_search_is_no_search(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s.db", models=("org/a",), tasks=("boolq", "piqa"))
    with Store.open(path) as store:
        cells = store.cells.read(protocol=TRAIN_BEFORE_TEST)
        for task, selection in (
            ("arc_easy", Selection(tuned=True, target_modules=("search",))),
            ("sciq", Selection(tuned=True, search=SearchEnd.INSIDE)),
        ):
            cell = replace(cells[0], key=task, task=task, selection=selection)
            store.cells.commit(cell)
    evidence = read(path)
    matrices = {TRAIN_BEFORE_TEST: evidence.scores[TRAIN_BEFORE_TEST]}
    (summary,) = compare_tuning(evidence, matrices)[TRAIN_BEFORE_TEST].summaries
    assert summary.cells == 1
