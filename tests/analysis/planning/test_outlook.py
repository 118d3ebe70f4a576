"""The outlook of a study from its store: what it asks for and has not measured, whatever the study is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from potentia.analysis.completion import find_outlook
from potentia.cli.app import app
from potentia.errors import InputError
from potentia.evidence import read
from potentia.show import make_report, report_page
from potentia.store import CellRecord, Store
from potentia.study import make_study
from potentia.values.metric import Metric
from potentia.values.provenance import Provenance, TaskProvenance
from potentia.values.scores import Score

BOTH = ("direct", "train_before_test")
Cells = Mapping[tuple[str, str, str], float]  # (model, task, protocol) → score


def keep(
    path: Path,
    cells: Cells,
    *,
    models: Sequence[str] = ("a", "b", "c"),
    tasks: Sequence[object] = ("arc_easy", "boolq"),
    protocols: Sequence[str] = BOTH,
    failed: Sequence[tuple[str, str, str]] = (),
    name: str = "open",
) -> Path:
    """Commit these cells of a study as a run would leave them; a task ``text`` is one to predict."""
    study = make_study(
        {"name": name, "models": list(models), "tasks": list(tasks), "protocols": list(protocols)}
    )
    with Store.open(path) as store:
        key = f"{name:x<32}"[:32]
        store.studies.open(name, key, study.model_dump(mode="json"))
        for (model, task, protocol), value in cells.items():
            text = task.startswith("text")
            metric = "bits_per_byte" if text else "acc"
            score = Score(value, 0.02, 60, Metric.of(metric))
            provenance = Provenance(task=TaskProvenance(fingerprint=task))
            store.cells.commit(
                CellRecord(
                    key=f"{name}-{model}-{task}-{protocol}".replace("#", "-").replace("/", "-"),
                    study=key,
                    model=model,
                    task=task,
                    protocol=protocol,
                    scores={metric: score},
                    metric=metric,
                    provenance=provenance,
                    seconds=1.0,
                )
            )
        for model, task, protocol in failed:
            store.failures.record(key, model, task, protocol, "out of memory")
    return path


def direct(
    models: Sequence[str] = ("a", "b", "c"), tasks: Sequence[str] = ("arc_easy", "boolq")
) -> dict:
    skills = {m: 0.4 + 0.1 * k for k, m in enumerate(models)}
    return {(m, t, "direct"): skills[m] + 0.02 * j for m in models for j, t in enumerate(tasks)}


def test_nothing_tuned_yet_is_predicted_from_direct_scores(tmp_path: Path):
    done = find_outlook(read(keep(tmp_path / "s.db", direct())))
    assert done is not None
    assert not done.measured.any()
    assert done.order() == ["c", "b", "a"]
    assert np.isfinite(done.mean).all()
    assert done.p_best.sum() == pytest.approx(1.0)


def test_texts_to_predict_are_evidence_and_no_cells_of_the_ranking(tmp_path: Path):
    texts = {(m, "text", p): 1.2 - 0.1 * k for k, m in enumerate("abc") for p in BOTH}
    store = keep(
        tmp_path / "s.db",
        {**direct(), **texts, ("a", "boolq", "train_before_test"): 0.6},
        tasks=("arc_easy", "boolq", {"name": "text", "file": "text.txt"}),
    )
    done = find_outlook(read(store))
    assert done is not None
    assert done.tasks == ("arc_easy", "boolq")
    assert int(done.measured.sum()) == 1


def test_a_task_in_folds_is_one_task_and_measured_when_all_folds_are(tmp_path: Path):
    folds = ("boolq#1/2", "boolq#2/2")
    cells = direct(tasks=("arc_easy", *folds))
    cells |= {("a", fold, "train_before_test"): 0.6 for fold in folds} | {
        ("b", folds[0], "train_before_test"): 0.7
    }
    store = keep(
        tmp_path / "s.db",
        cells,
        tasks=("arc_easy", {"name": "boolq", "file": "q.jsonl", "folds": 2}),
    )
    done = find_outlook(read(store))
    assert done is not None
    assert done.tasks == ("arc_easy", "boolq")
    assert done.measured.tolist() == [[False, True], [False, False], [False, False]]


def test_one_model_and_one_task_are_predicted_without_a_ranking(tmp_path: Path):
    store = keep(tmp_path / "s.db", direct(("a",), ("boolq",)), models=("a",), tasks=("boolq",))
    done = find_outlook(read(store))
    assert done is not None
    assert (done.p_best.tolist(), done.rank.tolist(), done.agreement.value) == ([1.0], [1.0], 1.0)
    page = report_page(make_report(read(store)))
    assert "nothing to rank, only its scores are predicted" in page
    assert "nan" not in page.split('id="outlook"', 1)[1].split("</section>", 1)[0]


def test_a_failed_cell_is_predicted_and_told_as_failed_and_a_failed_row_is_no_candidate(
    tmp_path: Path,
):
    cells = direct() | {("a", t, "train_before_test"): 0.6 for t in ("arc_easy", "boolq")}
    failed = [
        ("b", "boolq", "train_before_test"),
        *(("c", t, "train_before_test") for t in ("arc_easy", "boolq")),
    ]
    store = keep(tmp_path / "s.db", cells, failed=failed)
    done = find_outlook(read(store))
    assert done is not None
    assert done.models == ("a", "b")
    page = report_page(make_report(read(store)))
    assert "failed, predicted all the same" in page
    assert "out of memory" in page


def test_two_studies_are_one_question_where_both_are_asked_for(tmp_path: Path):
    keep(tmp_path / "s.db", direct(("a", "b")), models=("a", "b"), name="first")
    store = keep(tmp_path / "s.db", direct(("c", "d")), models=("c", "d"), name="second")
    last, both = find_outlook(read(store)), find_outlook(read(store, study="all"))
    assert last is not None
    assert both is not None
    assert last.models == ("c", "d")
    assert sorted(both.models) == ["a", "b", "c", "d"]


def test_models_that_nobody_knows_and_tie_are_told_as_a_tie(tmp_path: Path):
    """Without facts and with equal scores nothing tells them apart: no order is claimed."""
    store = keep(
        tmp_path / "s.db", {(m, t, "direct"): 0.5 for m in "abc" for t in ("arc_easy", "boolq")}
    )
    done = find_outlook(read(store))
    assert done is not None
    assert done.agreement.value < 0.3
    assert done.p_best.max() < 0.6


def test_where_nothing_is_to_be_predicted_it_is_said_why(tmp_path: Path):
    tuned = {(m, t, "train_before_test"): 0.6 for m in "abc" for t in ("arc_easy", "boolq")}
    finished = keep(tmp_path / "finished.db", direct() | tuned)
    untuned = keep(tmp_path / "untuned.db", direct(), protocols=("direct",))
    assert find_outlook(read(finished)) is None
    with pytest.raises(InputError, match="no study of these scores tunes models"):
        find_outlook(read(untuned))
    for store, said in ((finished, "every result is measured"), (untuned, "tunes models")):
        assert make_report(read(store)).completion is None
        invocation = CliRunner().invoke(
            app, ["analyze", "rankings", "--show", "outlook", str(store)]
        )
        assert isinstance(invocation.exception, InputError)
        assert said in invocation.exception.message
