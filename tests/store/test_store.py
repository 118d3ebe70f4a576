"""The store keeps what it was given, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import math
import pickle
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from potentia.errors import DataError, InputError, StoreError
from potentia.store import CellRecord, LaneRecord, Store, choose_study, schema
from potentia.store.error_translation import translated_errors
from potentia.store.opening import _configure_sqlite
from potentia.values.fine_tuning import EpochResult
from potentia.values.metric import Metric
from potentia.values.provenance import Provenance
from potentia.values.scores import ItemOutcome, Score
from potentia.values.selection import Selection, TestedState

MakeCell = Callable[..., CellRecord]
ITEMS = [
    ItemOutcome(
        0,
        1.0,
        "A",
        "A",
        {"prompt": "2 + 2 =", "loglikelihoods": [-0.5, -2.25], "nested": {"a": [1, None]}},
    ),
    ItemOutcome(7, 0.0, "é\x00\n", "B", {}),
]


def test_a_cell_comes_back_as_it_went_in(store: Store, make_cell: MakeCell) -> None:
    cell = make_cell(
        provenance=Provenance(
            versions={"torch": "2.13"}, details={"prompts": [[1, 2, 3]], "text": "\x00 ünï"}
        ),
        selection=Selection(learning_rate=2e-5, epoch=3),
        seconds=12.5,
        direct_value=0.25,
        gain=0.25,
    )
    assert not store.cells.has("k1")
    assert store.cells.commit(cell, items=ITEMS)
    assert store.cells.has("k1")
    assert store.cells.read() == [cell]
    assert store.cells.get("k1") == cell
    assert store.cells.read_items("k1") == ITEMS
    assert store.cells.count() == 1


def test_the_first_writer_wins(store: Store, make_cell: MakeCell) -> None:
    first = make_cell(value=0.5)
    assert store.cells.commit(first, items=ITEMS)
    assert not store.cells.commit(make_cell(value=0.9), items=ITEMS[:1])
    assert store.cells.read() == [first]
    assert store.cells.read_items("k1") == ITEMS
    folder = store.items_folder
    assert [p.name for p in folder.rglob("*") if p.is_file()] == [
        next(folder.rglob("*.parquet")).name
    ]


def test_checkpoints_of_a_run_stand_in_the_order_of_their_steps(
    store: Store, make_cell: MakeCell
) -> None:
    """They were sorted as text: aster@1560, aster@2730, aster@390."""
    names = ["run@1560", "run@390", "run@step7800", "Other", "run"]
    store.cells.commit_many([make_cell(f"k{name}", model=name) for name in names])
    models = store.scores.read_matrix("direct").models
    assert models == ("Other", "run", "run@390", "run@1560", "run@step7800")


def test_a_batch_counts_what_is_new(store: Store, make_cell: MakeCell) -> None:
    cells = [make_cell(f"k{i}", model=f"m{i}") for i in range(5)]
    assert store.cells.commit_many(cells[:3]) == 3
    assert store.cells.commit_many([*cells, cells[4]]) == 2
    assert store.cells.commit_many([]) == 0
    assert store.cells.count(study="s1") == 5
    assert store.cells.read_items("k3") == []


def test_cells_are_found_by_each_of_their_parts(store: Store, make_cell: MakeCell) -> None:
    store.cells.commit_many(
        [
            make_cell(f"{m}{t}{p}", model=m, task=t, protocol=p)
            for m in "ab"
            for t in "xy"
            for p in ("direct", "tbt")
        ]
    )
    assert len(store.cells.read(model="a")) == 4
    assert len(store.cells.read(model="a", task="x")) == 2
    assert [c.key for c in store.cells.read(model="a", task="x", protocol="tbt")] == ["axtbt"]
    assert store.scores.read_protocols() == ["direct", "tbt"]
    assert store.cells.read(study="first", model="nobody") == []


def test_a_main_score_that_is_no_number_is_refused(store: Store, make_cell: MakeCell) -> None:
    with pytest.raises(StoreError, match="finite"):
        store.cells.commit(make_cell(value=math.nan))
    with pytest.raises(StoreError, match="main metric"):
        store.cells.commit(make_cell(metric="f1"))
    with pytest.raises(StoreError, match="no study 'other'"):
        store.cells.commit(make_cell(study="other"))
    assert store.cells.read() == []


def test_unknown_errors_and_side_metrics_stay_unknown(store: Store, make_cell: MakeCell) -> None:
    store.cells.commit(
        make_cell(
            scores={
                "acc": Score(0.5, math.nan, 3, Metric.of("acc")),
                "mcc": Score(math.nan, 0.1, 3, Metric.of("mcc")),
            }
        )
    )
    scores = store.cells.read()[0].scores
    assert math.isnan(scores["acc"].stderr)
    assert math.isnan(scores["mcc"].value)


def test_studies_share_cells_by_key(store: Store, make_cell: MakeCell) -> None:
    store.cells.commit_many([make_cell("k1"), make_cell("k2", task="u")])
    store.studies.open("second", "s2", {})
    assert store.cells.read(study="second") == []
    assert store.cells.adopt("second", ["k1", "absent"]) == 1
    assert [c.key for c in store.cells.read(study="second")] == ["k1"]
    assert not store.cells.commit(make_cell("k2", study="s2", task="u"))
    assert {c.key for c in store.cells.read(study="s2")} == {"k1", "k2"}
    assert store.scores.read_matrix("direct", study="second").shape == (1, 2)


def test_a_name_means_the_study_opened_last(store: Store, make_cell: MakeCell) -> None:
    store.studies.open("first", "s1-changed", {"seed": 2})
    store.cells.commit(make_cell(study="s1-changed"))
    assert store.cells.count(study="first") == 1
    assert store.cells.count(study="s1") == 0
    store.studies.open("first", "s1", {})
    assert store.cells.count(study="first") == 0
    assert [(s.key, s.spec) for s in store.studies.read()] == [
        ("s1", {"models": ["m"]}),
        ("s1-changed", {"seed": 2}),
    ]


def test_a_failure_lasts_until_the_cell_is_committed(store: Store, make_cell: MakeCell) -> None:
    store.failures.record(
        "s1", "m", "t", "direct", "out of memory", kind="ModelError", hint="smaller batch"
    )
    store.failures.record("s1", "m", "t", "direct", "out of memory again")
    store.failures.record("s1", "m", "u", "direct", "other task")
    store.failures.record("first", "m", "v", "direct", "known by its key", key="kv")
    failed = {f.task: f for f in store.failures.read(study="first")}
    assert (failed["t"].attempts, failed["t"].reason) == (2, "out of memory again")
    store.cells.commit(make_cell("k1"))
    assert [f.task for f in store.failures.read()] == ["u", "v"]
    store.studies.open("second", "s2", {})
    store.cells.commit(make_cell("kv", study="s2", task="v"))
    assert [f.task for f in store.failures.read()] == ["u"]
    store.failures.record("s2", "m", "t", "direct", "could not see it")
    store.cells.adopt("s2", ["k1"])
    assert [(f.study, f.task) for f in store.failures.read()] == [("s1", "u")]


def test_lanes_keep_their_curves(store: Store, make_cell: MakeCell) -> None:
    points = (EpochResult(0, None, 0.25, 0.1), EpochResult(1, 2.5, 0.5, 0.1, 3.5, 4096))
    lane = LaneRecord("l1", "s1", "m", "t", 2e-5, style="chat", seed=1, cell="k1", epochs=points)
    store.lanes.save(lane)
    store.lanes.save(LaneRecord("l0", "s1", "m", "t", 1e-5))
    assert store.lanes.read(cell="k1") == [lane]
    done = replace(
        lane,
        status="done",
        selected=True,
        epochs=(*points, EpochResult(2, 2.0, 0.75, 0.1, 3.5, 4096)),
    )
    store.lanes.save(done)
    assert [x.key for x in store.lanes.read(study="first")] == ["l0", "l1"]
    assert store.lanes.read(study="first", model="m")[1] == done
    store.cells.commit(make_cell("k1"))
    store.studies.open("second", "s2", {})
    store.cells.adopt("s2", ["k1"])
    assert store.lanes.read(study="s2") == [done]


def test_events_are_followed_by_id(store: Store) -> None:
    ids = [store.events.append("s1", "cell", {"i": i, "loss": float("nan")}) for i in range(5)]
    assert ids == sorted(set(ids))
    store.studies.open("second", "s2", {})
    store.events.append("s2", "row", {})
    assert [e.payload["i"] for e in store.events.read("first", limit=3)] == [0, 1, 2]
    content = store.events.read("first", after_id=ids[2])
    assert [(e.kind, e.payload["i"]) for e in content] == [("cell", 3), ("cell", 4)]
    assert store.events.read("first", after_id=ids[-1]) == []


def test_a_cell_is_told_with_its_commit_and_once(store: Store, make_cell: MakeCell) -> None:
    """In one transaction: a run that is killed has told of what it committed, and of nothing else."""
    assert store.cells.commit(make_cell("k1"), event={"row": "m", "value": 0.5})
    assert not store.cells.commit(make_cell("k1", value=0.9), event={"row": "m", "value": 0.9})
    unspeakable: dict[str, object] = {}
    unspeakable["itself"] = unspeakable
    with pytest.raises(StoreError, match="Circular"):
        store.cells.commit(make_cell("k2"), event=unspeakable)
    assert not store.cells.has("k2")
    assert [(e.kind, e.payload["value"]) for e in store.events.read("first")] == [("cell", 0.5)]
    assert store.cells.commit(make_cell("k2"))
    assert len(store.events.read("first")) == 1


def test_choices_are_the_selections_of_the_cells(store: Store, make_cell: MakeCell) -> None:
    best = TestedState(
        learning_rate=1e-3, style="plain", seed=0, validation=0.5, value=0.4, stderr=0.01
    )
    chosen = Selection(tuned=False, style="chat", best_tuned=best)
    store.cells.commit_many(
        [make_cell("k1", protocol="train_before_test", selection=chosen), make_cell("k2")]
    )
    assert {c.key: c.selection for c in store.provenance.read_choices(study="s1")} == {
        c.key: c.selection for c in store.cells.read()
    }
    (one,) = store.provenance.read_choices(protocol="train_before_test")
    assert (one.model, one.task, one.metric, one.selection) == ("m", "t", "acc", chosen)


def test_a_module_called_like_a_field_is_not_that_field(store: Store, make_cell: MakeCell) -> None:
    names = ("unknown_tokens", "cut_prompts", "cut_examples", "search")
    store.cells.commit(make_cell("k1", selection=Selection(target_modules=names)))
    assert store.provenance.read_unknown_tokens() == {}
    assert store.provenance.read_cut_prompts() == {}
    assert store.provenance.read_cut_examples() == {}


def test_progress_is_the_latest_state(store: Store) -> None:
    store.events.save_progress("s1", "m", {"tokens_per_s": 1})
    store.events.save_progress("s1", "m", {"tokens_per_s": 2, "left": np.float32(1.5)})
    store.events.save_progress("s1", "n", {})
    state = store.events.read_progress("first")
    assert (state["m"]["tokens_per_s"], state["m"]["left"]) == (2, 1.5)
    assert list(store.events.read_progress("s1")) == ["m", "n"]


def test_the_matrix_has_gaps_where_cells_are_missing(store: Store, make_cell: MakeCell) -> None:
    bpb = {"bits_per_byte": Score(0.9, 0.01, 50, Metric.of("bits_per_byte"))}
    store.cells.commit_many(
        [
            make_cell("1", model="b", task="t", value=0.25),
            make_cell("2", model="a", task="t", value=0.75),
            make_cell("3", model="a", task="wiki", scores=bpb, metric="bits_per_byte"),
        ]
    )
    matrix = store.scores.read_matrix("direct")
    assert (matrix.models, matrix.tasks, matrix.higher_is_better) == (
        ("a", "b"),
        ("t", "wiki"),
        (True, False),
    )
    assert matrix.values[:, 0].tolist() == [0.75, 0.25]
    assert math.isnan(matrix.values[1, 1])
    assert matrix.n[0].tolist() == [100, 50]
    other = store.scores.read_matrix("direct", metric="acc_norm")
    assert (other.tasks, other.values.tolist()) == (("t",), [[0.375], [0.125]])
    with pytest.raises(InputError, match="no train_before_test results"):
        store.scores.read_matrix("train_before_test")
    with pytest.raises(InputError, match="metric 'f1'"):
        store.scores.read_matrix("direct", metric="f1")


def test_the_newest_of_two_recipes_is_taken(store: Store, make_cell: MakeCell) -> None:
    store.cells.commit(make_cell("old", value=0.1, created="2026-02-01T00:00:00+00:00"))
    store.cells.commit(
        make_cell("new", value=0.9, created="2026-01-01T00:00:00+00:00")
    )  # the clock was set back
    assert store.scores.read_matrix("direct").values.tolist() == [[0.9]]


def test_mixed_directions_are_an_error(store: Store, make_cell: MakeCell) -> None:
    store.cells.commit(make_cell("1"))
    wrong = {"acc": Score(0.5, 0.1, 10, Metric.of("acc", False))}
    store.cells.commit(make_cell("2", model="n", scores=wrong))
    with pytest.raises(DataError, match="higher is better and lower is better"):
        store.scores.read_matrix("direct")


def test_missing_items_are_named(store: Store, make_cell: MakeCell) -> None:
    store.cells.commit(make_cell("k1"), items=ITEMS)
    path = next(store.items_folder.rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StoreError, match="cannot be read"):
        store.cells.read_items("k1")
    path.unlink()
    with pytest.raises(StoreError, match="examples of this result are missing"):
        store.cells.read_items("k1")
    with pytest.raises(StoreError, match="no result 'absent'"):
        store.cells.read_items("absent")


def test_threads_write_at_once(store: Store, make_cell: MakeCell) -> None:
    wins: list[bool] = []

    def work(number: int) -> None:
        for i in range(10):
            wins.append(store.cells.commit(make_cell(f"shared-{i}", task=f"t{i}"), items=ITEMS))
            store.cells.commit(make_cell(f"own-{number}-{i}", model=f"m{number}", task=f"t{i}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(wins) == 10
    assert store.cells.count() == 50
    assert all(store.cells.read_items(f"shared-{i}") == ITEMS for i in range(10))


def test_a_store_travels_to_another_process(store: Store, make_cell: MakeCell) -> None:
    store.cells.commit(make_cell("k1"), items=ITEMS)
    with pickle.loads(pickle.dumps(store)) as again:
        assert again.cells.read_items("k1") == ITEMS


def test_odd_keys_have_items_too(store: Store, make_cell: MakeCell, tmp_path: Path) -> None:
    for key in ("../../escape", "a", "ü" * 300, "x" * 300):
        store.cells.commit(make_cell(key, task=key), items=ITEMS)
        assert store.cells.read_items(key) == ITEMS
    assert all(p.is_relative_to(store.items_folder) for p in tmp_path.rglob("*.parquet"))


def test_many_make_one_store_at_one_moment(tmp_path: Path) -> None:
    """SQLite does not wait by itself where several turn one new file to write-ahead logging."""
    errors: list[Exception] = []

    def make(path: Path, gate: threading.Barrier) -> None:
        connection = sqlite3.connect(path)
        gate.wait()
        try:
            _configure_sqlite(connection, None)
        except sqlite3.OperationalError as error:
            errors.append(error)
        finally:
            connection.close()

    for number in range(150):
        gate = threading.Barrier(6)
        threads = [
            threading.Thread(target=make, args=(tmp_path / f"{number}.db", gate)) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_only_a_store_that_is_gone_is_called_gone(tmp_path: Path) -> None:
    here = tmp_path / "here.db"
    here.touch()
    for place, said in (
        (here, "No such file"),
        (tmp_path / "gone.db", "removed while it was in use"),
    ):
        with pytest.raises(StoreError, match=said), translated_errors(str(place)):
            (tmp_path / "items" / "of-a-cell").read_bytes()
    with (
        pytest.raises(StoreError, match="No such file"),
        translated_errors("postgresql://server/potentia"),
    ):
        (tmp_path / "items" / "of-a-cell").read_bytes()


def test_what_is_read_at_one_time_is_of_one_moment(
    store: Store, store_url: str, make_cell: MakeCell
) -> None:
    """A cell that is committed between two statements of a reader is seen by both or by none."""
    with Store.open(store_url) as writer, store.database.reading() as connection:
        count = sa.select(sa.func.count()).select_from(schema.cells)
        assert connection.execute(count).scalar_one() == 0
        writer.cells.commit(make_cell())
        assert connection.execute(count).scalar_one() == 0


def test_a_copy_under_another_name_has_the_adapter_too(store: Store, make_cell: MakeCell) -> None:
    """The same weights under two names are tuned once; whichever wins, its adapter can be taken away."""
    store.cells.commit(make_cell("k1", protocol="train_before_test"))
    store.adapters.save(
        "k1", lambda folder: (folder / "adapter_config.json").write_text("{}"), {"base": "m"}
    )
    store.cells.copy("k1", "k2", study="s1", model="twin", task="t")
    copied = store.adapters.find("k2")
    assert copied is not None
    assert (copied / "adapter_config.json").read_text() == "{}"


def test_a_study_is_chosen_by_its_name_or_any_beginning_of_its_key_that_is_its_alone(
    store: Store,
) -> None:
    for name, key in (("one", "abcd1" + "0" * 27), ("two", "abcd2" + "0" * 27)):
        store.studies.open(name, key, {"name": name})
    records = store.studies.read()
    assert choose_study(records, "abcd2", where="s.db").name == "two"
    assert choose_study(records, "one", where="s.db").key.startswith("abcd1")
    with pytest.raises(DataError, match="2 studies have a key that begins with 'abcd'"):
        choose_study(records, "abcd", where="s.db")
    with pytest.raises(DataError, match="no study 'abc'"):  # too short to mean a key
        choose_study(records, "abc", where="s.db")
