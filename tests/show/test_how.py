"""How says what computed each model: slower paths and odd weights come first, with the reason."""

from __future__ import annotations

from pathlib import Path

from potentia.evidence import read
from potentia.formats import import_scores
from potentia.show import make_report
from potentia.show.how import _computation_table, _describe_study, how_context
from potentia.store import CellRecord, Store, StudyRecord
from potentia.values.metric import Metric
from potentia.values.provenance import Provenance
from potentia.values.scores import Score, ScoreMatrix


def cell(model: str, task: str, *, weights: str = "in_place", **training: object) -> CellRecord:
    provenance = {
        "engine": {
            "load": {"weights": weights},
            "scoring": [{"route": "tree", "off_by": 9e-6}, {"route": "plain", "off_by": 2e-7}],
        },
        "scorer": {"rows_by_route": {"tree": 12}, "layers": "fused", "fallbacks": []},
        "training": {
            "targets": ["q_proj", "v_proj"],
            "distances": {
                "gradients": {"loss": 1e-7, "lane": 1.3e-6, "layer": 2e-6},
                "update": 3e-7,
            },
            **training,
        },
    }
    scores = {"acc": Score(0.5, 0.01, 100, Metric.of("acc"))}
    return CellRecord(
        f"{model} {task}",
        "s",
        model,
        task,
        "train_before_test",
        scores,
        "acc",
        Provenance.from_dict(provenance),
    )


def test_slower_paths_and_odd_weights_come_first():
    fast = {"form": "fused"}
    other = {"form": "padded"}  # no fall-back: it has no fused layers
    slow = {"form": "one_row", "not_taken": {"padded": "gradients off by 0.2"}}
    table = _computation_table(
        [
            cell("a", "t", **fast),
            cell("a", "u", **fast),
            cell("b", "t", **other),
            cell("c", "t", **slow),
            cell("d", "t", weights="partly_random", **fast),
        ]
    )
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["model"] for row in rows] == ["c", "d", "a", "b"]
    assert rows[0]["slower because"] == "shared passes: gradients off by 0.2"
    assert (rows[2]["results"], rows[2]["adapters on"], rows[2]["scores off by"]) == (
        2,
        "q_proj, v_proj",
        "9e-06",
    )
    assert rows[3]["slower because"] is None
    assert rows[3]["scored by"] == "tree, hand-written layers"
    assert table.note.startswith("2 of 5 results took a slower path or have unusual weights.")


def test_cells_of_another_source_say_nothing():
    plain = cell("a", "t")
    assert (
        _computation_table(
            [
                CellRecord(
                    "k", "s", "a", "t", "direct", plain.scores, "acc", Provenance(imported_from="x")
                )
            ]
        ).rows
        == ()
    )


def test_imported_scores_are_called_so():
    study = _describe_study(
        StudyRecord("k", "scores.csv", {"name": "scores.csv", "imported": True}), ()
    )
    assert study["origin"] == "imported scores"


def test_imported_scores_name_their_files_without_their_folders(tmp_path: Path):
    matrix = ScoreMatrix.build(["a", "b", "c"], ["t", "u"], [[0.5, 0.6], [0.7, 0.8], [0.3, 0.4]])
    store_file = tmp_path / "s.db"
    with Store.open(store_file) as store:
        for source, model in (("one.csv", "a"), ("two", "b"), ("two", "c")):
            import_scores(
                store,
                {"direct": matrix.select(models=[model])},
                source=str(tmp_path / source),
                study_name="ours",
            )
    (study,) = how_context(make_report(read(store_file)))["studies"]
    assert study["origin"] == "imported from one.csv, two"
