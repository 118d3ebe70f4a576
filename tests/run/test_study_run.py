from __future__ import annotations

import os
from pathlib import Path

import pytest

import tiny
from potentia.errors import InputError
from potentia.run import plan_study, read_store_status, run_study
from potentia.store import Store
from potentia.store.cells import Cells
from potentia.study import Study, make_study


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    tiny.save_model(folder / "base", seed=0)
    tiny.save_model(folder / "chat", seed=1, chat=True)
    tiny.save_questions(folder / "colours.jsonl", n=80)
    tiny.save_texts(folder / "notes.jsonl")
    return folder


def study(world: Path, store: Path, **changes: object) -> Study:
    return make_study(
        {
            "name": "tiny",
            "models": [{"name": name, "path": str(world / name)} for name in ("base", "chat")],
            "tasks": [
                {"name": "colours", "file": str(world / "colours.jsonl")},
                {"name": "notes", "file": str(world / "notes.jsonl")},
            ],
            "tuning": {"learning_rates": [3e-3, 1e-2], "epochs": 3, "dropout": 0.0},
            "store": str(store),
            **changes,
        }
    )


@pytest.fixture(scope="module")
def finished(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    new_study = study(world, tmp_path_factory.mktemp("store") / "potentia.db")
    result = run_study(new_study)
    assert (result.computed, result.failed, result.exit_code) == (8, 0, 0)
    return new_study


def test_tuning_teaches_and_the_curve_is_kept(finished: Study):
    with Store.open(finished.store) as store:
        direct = store.scores.read_matrix("direct", study="tiny")
        tuned = store.scores.read_matrix("train_before_test", study="tiny")
        assert direct.tasks == tuned.tasks == ("colours", "notes")
        assert (tuned.values[:, 0] > direct.values[:, 0]).all(), "the colours can be learnt"
        assert (tuned.values[:, 1] < direct.values[:, 1]).all(), "fewer bits per byte after tuning"
        cell = store.cells.read(protocol="train_before_test", task="colours", model="base")[0]
        assert cell.gain == pytest.approx(cell.score.value - cell.direct_value)
        assert cell.selection.tuned
        lanes = store.lanes.read(cell=cell.key)
        assert len(lanes) == 2
        assert all([p.epoch for p in lane.epochs] == [0, 1, 2, 3] for lane in lanes)
        chosen = [lane for lane in lanes if lane.selected]
        assert [lane.learning_rate for lane in chosen] == [cell.selection.learning_rate]
        best = max(p.value for lane in lanes for p in lane.epochs)
        assert cell.selection.validation == best


def test_the_store_keeps_where_a_row_spent_its_time(finished: Study):
    with Store.open(finished.store) as store:
        (key,) = [record.key for record in store.studies.read() if record.name == "tiny"]
        result = [event.payload for event in store.events.read(key) if event.kind == "row"]
    assert {facts["row"] for facts in result} == {"base", "chat"}
    for facts in result:
        assert {"load", "tokenise", "train", "validate", "select", "test", "save"} <= set(
            facts["tally"]
        )
        assert sum(facts["tally"].values()) == pytest.approx(facts["seconds"])
        assert facts["tally"]["train"] > facts["tally"]["select"]


def test_a_chat_model_is_asked_both_ways_and_says_which(finished: Study):
    with Store.open(finished.store) as store:
        cell = store.cells.read(protocol="direct", task="colours", model="chat")[0]
        assert set(cell.selection.validation_by_style) == {"plain", "chat"}
        assert cell.provenance.styles == ("plain", "chat")
        tuned = store.cells.read(protocol="train_before_test", task="colours", model="chat")[0]
        assert len(store.lanes.read(cell=tuned.key)) == 4


def test_the_provenance_tells_how_the_score_came_about(finished: Study):
    with Store.open(finished.store) as store:
        provenance = store.cells.read(protocol="train_before_test")[0].provenance
    assert provenance.versions["torch"]
    assert provenance.model.fingerprint
    assert provenance.task.splits.train.used
    assert provenance.tuning["rank"] == 8
    assert len(provenance.scorer.prompt_samples) >= 1


def test_items_are_kept(finished: Study):
    with Store.open(finished.store) as store:
        cell = store.cells.read(protocol="direct", task="colours", model="base")[0]
        items = store.cells.read_items(cell.key)
        assert len(items) == cell.score.n
        assert sum(i.value for i in items) / len(items) == pytest.approx(cell.score.value)


def test_running_again_computes_nothing(finished: Study):
    result = run_study(finished)
    assert (result.computed, result.reused) == (0, 8)


def test_another_study_takes_over_what_it_shares(finished: Study):
    wider = finished.model_copy(
        update={"name": "wider", "protocols": ("direct", "few_shot:2", "train_before_test")}
    )
    result = run_study(wider)
    assert (result.computed, result.reused) == (2, 8)  # few-shot is for questions, not for texts
    with Store.open(finished.store) as store:
        assert len(store.cells.read(study="wider")) == 10
    (counted,) = read_store_status(finished.store, "wider")["studies"]
    assert (counted["asked"], counted["done"]) == (10, 10), "a study that is done looks done"


# What a worker does at its start, because this file is on its path: it dies when it opens the weights of "lost".
HOOK = """
import os, signal, sys
def heard(event, arguments):
    if event == "open" and str(arguments[0]).endswith("lost/model.safetensors"):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(heard)
"""


def test_workers_give_the_same_scores_and_a_lost_one_costs_its_row_alone(
    finished: Study, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tiny.save_model(tmp_path / "lost", seed=2)
    again = study(world, tmp_path / "again.db")
    lost = again.models[0].model_copy(update={"name": "lost", "path": str(tmp_path / "lost")})
    again = again.model_copy(update={"models": (*again.models, lost)})
    plan = plan_study(again)
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    result = run_study(plan, workers=2)
    assert (result.computed, result.failed) == (8, 4)
    assert all("SIGKILL" in reason for reason in result.reasons)
    with Store.open(finished.store) as one, Store.open(again.store) as two:
        for protocol in ("direct", "train_before_test"):
            first, second = (
                one.scores.read_matrix(protocol, study="tiny"),
                two.scores.read_matrix(protocol, study="tiny"),
            )
            assert first.models == second.models == ("base", "chat")
            assert (first.values == second.values).all()


def test_a_broken_model_fails_its_own_cells_alone(world: Path, tmp_path: Path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in (world / "base").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.safetensors").write_bytes(b"not weights")
    new_study = study(world, tmp_path / "s.db", protocols=["direct"])
    models = (
        *new_study.models[:1],
        new_study.models[0].model_copy(update={"name": "broken", "path": str(broken)}),
    )
    result = run_study(new_study.model_copy(update={"models": models}))
    assert (result.computed, result.failed, result.exit_code) == (2, 2, 1)
    with Store.open(new_study.store) as store:
        assert {f.model for f in store.failures.read()} == {"broken"}
        assert all(f.reason for f in store.failures.read())


def test_a_commit_whose_answer_got_lost_is_told_once(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The database went away after it had committed: the cell is tried again, and found to be this run's own."""
    commit = Cells.commit
    monkeypatch.setattr(Cells, "commit", lambda *a, **k: commit(*a, **k) and commit(*a, **k))
    new_study = study(world, tmp_path / "s.db", protocols=["direct"])
    result = run_study(new_study)
    assert (result.computed, result.reused, result.failed) == (4, 0, 0)
    with Store.open(new_study.store) as store:
        told = [
            (e.payload["row"], e.payload["task"])
            for e in store.events.read("tiny")
            if e.kind == "cell"
        ]
    assert sorted(told) == [(m, t) for m in ("base", "chat") for t in ("colours", "notes")]


def test_a_missing_folder_is_bad_input(world: Path, tmp_path: Path):
    new_study = study(world, tmp_path / "s.db")
    missing = new_study.models[0].model_copy(update={"path": str(tmp_path / "nowhere")})
    with pytest.raises(InputError, match="there is no"):
        plan_study(new_study.model_copy(update={"models": (missing,)}))


def test_test_documents_are_asked_only_after_selection(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A spy on the prompts: no test prompt is rendered while any lane of the row still trains or is validated."""
    from potentia.engine.training import LaneTrainer
    from potentia.tasks import Task

    log: list[str] = []
    prompts, grade, train = Task.prompts, Task.grade, LaneTrainer.train

    def spying_prompts(self, docs, **options):
        test = {id(doc) for doc in self.documents("test")}
        log.append("test" if any(id(doc) in test for doc in docs) else "other")
        return prompts(self, docs, **options)

    def spying_grade(self, asked, *args, **options):
        test = {id(doc) for doc in self.documents("test")}
        log.append(
            "graded test" if any(id(prompt.document) in test for prompt in asked) else "graded"
        )
        return grade(self, asked, *args, **options)

    def spying_train(self, *args, **options):
        log.append("train begins")
        done = train(self, *args, **options)
        log.append("train ends")
        return done

    monkeypatch.setattr(Task, "prompts", spying_prompts)
    monkeypatch.setattr(Task, "grade", spying_grade)
    monkeypatch.setattr(LaneTrainer, "train", spying_train)
    new_study = study(world, tmp_path / "s.db", protocols=["train_before_test"])
    only = new_study.model_copy(update={"models": new_study.models[:1]})
    # The direct score, for the gain, is a protocol of its own and comes after selection too.
    run_study(only)
    assert not {"test", "graded test"} & set(log[: log.index("train ends")])
    assert "graded" in log[log.index("train begins") : log.index("train ends")], (
        "validation took place in between"
    )
    assert (
        log.count("graded test") == 4
    )  # per task: the chosen checkpoint once, the direct score once


def test_seeds_and_race(world: Path, tmp_path: Path):
    new_study = study(
        world,
        tmp_path / "s.db",
        protocols=["train_before_test"],
        seeds=2,
        tuning={"learning_rates": [1e-8, 1e-2], "epochs": 4, "dropout": 0.0, "race": True},
    )
    run_study(
        new_study.model_copy(update={"models": new_study.models[:1], "tasks": new_study.tasks[:1]})
    )
    with Store.open(new_study.store) as store:
        (cell,) = store.cells.read(protocol="train_before_test")
        assert len(cell.selection.seeds) == 2
        assert cell.score.seeds == tuple(s.value for s in cell.selection.seeds)
        assert cell.score.value == pytest.approx(sum(s.value for s in cell.selection.seeds) / 2)
        slow = [lane for lane in store.lanes.read(cell=cell.key) if lane.learning_rate == 1e-8]
        assert all(lane.status == "dropped" for lane in slow)
        assert (
            cell.selection.epochs_saved_by_race
            == sum(4 - (len(lane.epochs) - 1) for lane in slow)
            > 0
        )


def test_a_share_of_the_results_gets_a_second_seed(world: Path, tmp_path: Path):
    new_study = study(
        world,
        tmp_path / "s.db",
        protocols=["train_before_test"],
        seed_check=0.5,
        tuning={"learning_rates": [1e-2], "epochs": 2, "dropout": 0.0, "rate_bounds": None},
    )
    run_study(new_study.model_copy(update={"models": new_study.models[:1]}))
    with Store.open(new_study.store) as store:
        cells = store.cells.read(protocol="train_before_test")
    seeds_by_task = {cell.task: len(cell.selection.seeds) for cell in cells}
    expected = {task: new_study.count_seeds("base", task) for task in ("colours", "notes")}
    assert seeds_by_task == expected
    assert sorted(seeds_by_task.values()) == [1, 2]
    assert run_study(new_study.model_copy(update={"models": new_study.models[:1]})).computed == 0
