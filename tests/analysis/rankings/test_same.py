"""What every model was given: unlike targets, doubtful cells, and what leans on them."""

from __future__ import annotations

from pathlib import Path

from potentia.analysis.rankings import find_rankings
from potentia.evidence import Evidence, read
from potentia.store import CellRecord, Store
from potentia.values.metric import Metric
from potentia.values.protocol import TRAIN_BEFORE_TEST
from potentia.values.scores import Score
from potentia.values.selection import SearchEnd, Selection

SCORES = {"a": (0.9, 0.8, 0.5), "b": (0.8, 0.7, 0.9), "c": (0.5, 0.4, 0.3)}


def evidence(path: Path, **doubts: dict[str, SearchEnd]) -> Evidence:
    """Three models on three tasks; ``doubts`` are how the search of some cells ended."""
    with Store.open(str(path)) as store:
        store.studies.open("s", "key", {})
        for model, values in SCORES.items():
            for k, value in enumerate(values):
                task = f"t{k}"
                search = doubts.get(model, {}).get(task, SearchEnd.INSIDE)
                selection = Selection(
                    tuned=True,
                    learning_rate=1e-3,
                    search=search,
                    rates_tried=(3e-4, 1e-3, 3e-3),
                    updates=200,
                    tokens=9000,
                    trainable=1000,
                    target_modules=("q_proj", "v_proj") if model == "c" else ("all-linear",),
                )
                score = Score(value, 0.02, 400, Metric.of("acc"))
                record = CellRecord(
                    f"{model}{task}",
                    "key",
                    model,
                    task,
                    TRAIN_BEFORE_TEST,
                    {"acc": score},
                    "acc",
                    selection=selection,
                )
                store.cells.commit(record)
    return read(str(path))


def test_doubtful_cells_are_counted_and_the_ranking_that_leans_on_them_is_named(tmp_path: Path):
    result = find_rankings(evidence(tmp_path / "s.db", a={"t2": SearchEnd.AT_BOUND})).tuning[
        TRAIN_BEFORE_TEST
    ]
    assert (result.doubtful, result.cells) == (1, 9)
    (own,) = [one for one in result.summaries if one.model == "a"]
    assert (own.trainable, own.tokens, own.updates, own.doubts[SearchEnd.AT_BOUND]) == (
        1000,
        9000,
        200,
        1,
    )
    text = " ".join(result.sentences())
    assert "Not the same layers were fine-tuned in all models: all-linear; q_proj, v_proj." in text
    assert (
        "In 1 of 9 fine-tunings the score may be too low: "
        "in 1 the best learning rate was the largest or smallest of the grid."
    ) in text
    assert set(result.moved_models) == {"a", "b"}, (
        "b leads over all tasks; without a's doubtful cell a does"
    )
    (table,) = result.tables()
    assert [row[0] for row in table.rows] == ["a", "b", "c"]
    assert result.to_dict()


def test_a_study_whose_searches_ended_inside_says_so(tmp_path: Path):
    result = find_rankings(evidence(tmp_path / "s.db")).tuning[TRAIN_BEFORE_TEST]
    assert (
        "In all 9 fine-tunings the best setting lies inside what was searched."
        in result.sentences()
    )
    assert not result.moved_models
