"""``potentia run --dry-run``, ``potentia select`` and adaptive runs on real models small enough for a test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from starlette.testclient import TestClient

import tiny
from potentia.analysis.rankings import build_scoreboard
from potentia.errors import InputError, StudyError
from potentia.evidence import read
from potentia.run import (
    AdaptiveRun,
    calibration,
    estimate_cost,
    estimate_grid_costs,
    make_grid,
    make_proposed_study,
    parse_budget,
    plan_study,
    run_study,
)
from potentia.run.cost import CellWork, Pace, measure_pace, price_work
from potentia.run.plan import StudyPlan
from potentia.show import make_answer, make_report
from potentia.show.board.app import create_app
from potentia.store import Store
from potentia.study import Study, make_study

MODELS, TASKS = ("m0", "m1", "m2"), ("colours", "others")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    for seed, name in enumerate(MODELS):
        tiny.save_model(folder / name, seed=seed, width=32 if seed < 2 else 64)
    for seed, name in enumerate(TASKS):
        tiny.save_questions(folder / f"{name}.jsonl", n=60, seed=seed)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _paces_of_one_calibration() -> Iterator[None]:
    """Let the tests of one study share its calibration, which takes a second for each model."""
    measure_paces = calibration.measure_paces
    measured: dict[str, tuple[list[Pace], float]] = {}

    def measure_once(plan: StudyPlan, *arguments: Any) -> tuple[list[Pace], float]:
        same_study = plan.study.model_copy(update={"store": ""}).model_dump_json()
        if same_study not in measured:
            measured[same_study] = measure_paces(plan, *arguments)
        return measured[same_study]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "measure_paces", measure_once)
        yield


def body(world: Path, store: Path, **changes: object) -> dict:
    return {
        "name": "planned",
        "models": [{"name": name, "path": str(world / name)} for name in MODELS],
        "tasks": [{"name": name, "file": str(world / f"{name}.jsonl")} for name in TASKS],
        "tuning": {"epochs": 1, "learning_rates": [1e-3]},
        "device": "cpu",
        "store": str(store),
    } | changes


def study(world: Path, store: Path, **changes: object) -> Study:
    return make_study(body(world, store, **changes))


def scores(store: Path | str) -> dict[tuple[str, str, str], float]:
    with Store.open(store, readonly=True) as opened:
        return {(c.model, c.task, str(c.protocol)): c.score.value for c in opened.cells.read()}


@pytest.fixture(scope="module")
def whole(world: Path) -> Path:
    """The study run from end to end."""
    store = world / "whole.db"
    assert run_study(plan_study(study(world, store))).failed == 0
    return store


def test_a_dry_run_tells_work_and_times_and_leaves_nothing_behind(world, potentia, tmp_path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(body(world, tmp_path / "new.db")))
    done = potentia("run", "study.yaml", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["cells_to_do"] == 12
    assert printed["lanes"] == 6
    assert printed["train_tokens"] > 0
    assert printed["seconds"] > 0
    assert not (tmp_path / "new.db").exists()


def test_texts_and_folds_are_chosen_as_the_ranking_counts_them(world, tmp_path):
    """A text to predict ranks nobody and is not chosen; a task in folds is one cell, of the price of all its folds."""
    (world / "text.txt").write_text("\n\n".join(f"the red cat sat on mat {k}" for k in range(60)))
    own_tasks = [{"name": name, "file": str(world / f"{name}.jsonl")} for name in TASKS]
    text = {"name": "text", "file": str(world / "text.txt")}
    new_study = study(
        world, tmp_path / "new.db", tasks=[{**own_tasks[0], "folds": 2}, own_tasks[1], text]
    )
    plan = plan_study(new_study)
    grid, cost = make_grid(plan), estimate_cost(plan, calibrate=False)
    assert grid.tasks == TASKS
    costs = estimate_grid_costs(grid, cost)
    tuned = [c for c in cost.cells if c.protocol == "train_before_test" and c.model == "m0"]
    assert costs.values[0].tolist() == [
        sum(c.flops for c in tuned if c.task.startswith("colours#")),
        sum(c.flops for c in tuned if c.task == "others"),
    ]
    chosen = make_proposed_study(new_study, [("m1", "colours")], study_name="chosen")
    assert chosen.name == "chosen"
    assert [(w.model, w.tasks) for w in chosen.only] == [("m1", ("colours#1/2", "colours#2/2"))]
    with pytest.raises(InputError, match="no task"):
        make_grid(plan_study(study(world, tmp_path / "new.db", tasks=[text])))


def test_times_come_from_the_rows_in_the_store(world, whole, tmp_path):
    copy = tmp_path / "half.db"
    shutil.copy(whole, copy)
    shutil.copytree(f"{whole}.items", f"{copy}.items")
    larger_study = study(
        world,
        copy,
        models=[*body(world, copy)["models"], {"name": "m3", "path": str(world / "m0")}],
    )
    cost = estimate_cost(plan_study(larger_study), calibrate=False)
    assert "measured models" in cost.source
    assert cost.pending == ()  # the same files under another name: nothing to do
    own_cost = estimate_cost(plan_study(study(world, whole)), calibrate=False)
    with Store.open(whole, readonly=True) as store:
        spent = sum(cell.seconds for cell in store.cells.read())
    assert (
        0.5 < sum(work.seconds for work in own_cost.cells) / spent < 2
    )  # a few documents on a busy machine
    assert own_cost.seconds == 0


def test_a_calibration_of_the_engine_gives_times_where_nothing_was_run(world, tmp_path):
    plan = plan_study(study(world, tmp_path / "new.db", models=body(world, world)["models"][:1]))
    cost = estimate_cost(plan)
    assert "calibration" in cost.source
    assert 0 <= cost.start < cost.seconds
    assert not (tmp_path / "new.db").exists()


def test_copies_that_are_shown_other_data_have_the_pace_of_their_originals(world, tmp_path):
    treat = {"data": ["others"], "who": "copies", "tuning": {"epochs": 1, "learning_rates": [1e-3]}}
    plan = plan_study(
        study(world, tmp_path / "treated.db", treat=treat, models=body(world, world)["models"][:1])
    )
    cost = estimate_cost(plan)
    assert cost.seconds > 0
    assert {work.model for work in cost.pending} == {"m0", "m0+exposed"}


def test_paces_lie_between_the_measured_ones(world, tmp_path):
    plan = plan_study(study(world, tmp_path / "new.db", models=body(world, world)["models"][:1]))
    size = 1e6
    spec = plan.rows[0].model.model_copy(update={"parameters": size})
    plan = plan_study(
        study(world, tmp_path / "new.db", models=[spec.model_dump(exclude_defaults=True)])
    )
    slow, fast = Pace(4e6, 2.0, {"colours": 4e-3}, 8e-3), Pace(0.25e6, 1.0, {"colours": 1e-3}, 2e-3)
    cost = price_work(plan, [slow, fast], "test", "cpu")
    direct = next(c for c in cost.cells if c.task == "colours" and c.protocol == "direct")
    assert direct.seconds == pytest.approx(direct.score_tokens * 2e-3)  # half-way on log scales
    beyond = price_work(plan, [fast], "test", "cpu")
    assert beyond.loads["m0"] == pytest.approx(4.0)  # four times the size
    work = CellWork("m0", "colours", direct.protocol, True, 0, 0.0, 100.0, 0.0)
    assert measure_pace(1e6, [(work, 2.0)]).score == {"colours": 0.02}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30min", 1800), ("2gpu-hours", 7200), ("10%", 5.0)]
)
def test_budgets_are_read_as_people_say_them(text, seconds):
    assert parse_budget(text, 50.0) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "ten", "5 parsecs", "-3h", "0min"])
def test_other_budgets_are_refused(text):
    with pytest.raises(InputError):
        parse_budget(text, 50.0)


def test_a_budget_makes_a_study_of_the_chosen_cells(world, potentia, tmp_path, monkeypatch):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(body(world, tmp_path / "new.db")))
    done = potentia("run", "study.yaml", "--dry-run", "--budget", "50%", "--save", "chosen.yaml")
    assert done.returncode == 0, done.stderr
    assert "Expected agreement" in done.stdout
    chosen = yaml.safe_load((tmp_path / "chosen.yaml").read_text())
    cells = [(wanted["model"], task) for wanted in chosen["only"] for task in wanted["tasks"]]
    assert 1 <= len(cells) < 6
    with monkeypatch.context() as patch:
        patch.setattr("potentia.run.estimate_cost", pytest.fail)  # refused before anything is timed
        again = potentia(
            "run", "study.yaml", "--dry-run", "--budget", "1h", "--save", "chosen.yaml"
        )
    assert again.returncode == 2
    assert "the file exists already" in again.stderr
    ran = potentia("run", "chosen.yaml", "--json")
    assert ran.returncode == 0, ran.stderr
    tuned = {key[:2] for key in scores(tmp_path / "new.db") if key[2] == "train_before_test"}
    assert tuned == set(cells)
    state = json.loads(potentia("status", "new.db", "--json").stdout)["studies"][0]
    assert state["asked"] == state["done"] == 6 + len(cells)


def test_only_names_cells_of_the_study(world, tmp_path):
    for wrong in (
        [{"model": "nobody", "tasks": ["colours"]}],
        [{"model": "m0", "tasks": ["nothing"]}],
    ):
        with pytest.raises(StudyError, match="only"):
            study(world, tmp_path / "new.db", only=wrong)


class Killed(SystemExit):
    """As by kill -9: nothing below may catch it."""


def test_an_adaptive_run_has_the_scores_of_the_whole_one_and_survives_being_killed(
    world, whole, tmp_path
):
    truth = scores(whole)

    def run(store: Path, **options: object) -> AdaptiveRun:
        return AdaptiveRun(plan_study(study(world, store)), budget="70%", wave=2, **options)

    result, known, _ = run(tmp_path / "one.db").run()
    assert result.failed == 0
    found = scores(tmp_path / "one.db")
    tuned = [key for key in found if key[2] == "train_before_test"]
    assert 2 <= len(tuned) < 6
    assert known.measured.sum() == len(tuned)
    assert all(found[key] == pytest.approx(truth[key], abs=1e-6) for key in found)

    def die(text: str) -> None:
        if text.startswith("wave 2"):
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path / "two.db", report=die).run()
    assert 0 < len(scores(tmp_path / "two.db")) < len(found)
    _, same, _ = run(tmp_path / "two.db").run()
    assert scores(tmp_path / "two.db") == found
    assert np.array_equal(same.p_best, known.p_best)
    last, _, _ = run(tmp_path / "two.db").run()
    assert last.computed == 0
    with Store.open(
        tmp_path / "two.db"
    ) as store:  # a run beside this one writes its prices and waves as well
        (key,) = {record.key for record in store.studies.read()}
        for event in [e for e in store.events.read(key) if e.kind in ("adaptive", "wave")]:
            store.events.append(key, event.kind, event.payload)
    beside, again, _ = run(tmp_path / "two.db").run()
    assert beside.computed == 0
    assert np.array_equal(again.p_best, known.p_best)
    run(tmp_path / "three.db", keep=False).run()  # every model is loaded anew in every wave
    assert scores(tmp_path / "three.db") == found  # to the last bit


def test_a_model_that_does_not_load_is_tried_once(world, tmp_path):
    shutil.copytree(world / "m0", tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"none")
    models = [
        *body(world, world)["models"][:2],
        {"name": "broken", "path": str(tmp_path / "broken")},
    ]
    new_study = study(
        world, tmp_path / "new.db", models=models, tasks=body(world, world)["tasks"][:1]
    )
    run = AdaptiveRun(plan_study(new_study), budget="90%", wave=1)
    result, _, _ = run.run()
    assert result.failed == 1  # its direct score
    assert {key[0] for key in scores(tmp_path / "new.db") if key[2] == "train_before_test"} <= {
        "m0",
        "m1",
    }


def test_run_adaptive_from_the_command_line(world, potentia, tmp_path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(body(world, tmp_path / "new.db")))
    shutil.copy(world / "whole.db", tmp_path / "new.db")
    shutil.copytree(world / "whole.db.items", tmp_path / "new.db.items")
    done = potentia("run", "study.yaml", "--budget", "1h")
    assert done.returncode == 0, done.stderr
    assert "P(best)" in done.stdout


def test_select_names_the_better_model_and_its_adapter_loads(world, potentia, tmp_path):
    done = potentia(
        "select",
        "--data",
        world / "colours.jsonl",
        "--models",
        world / "m0",
        world / "m2",
        "--set",
        "tuning.epochs=6",
        "tuning.learning_rates=[1e-2]",
        "--device",
        "cpu",
        "-o",
        "picked",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert Path(printed["best"]).name in ("m0", "m2")
    assert sum(s["p_best"] for s in printed["standings"]) == pytest.approx(1.0)
    assert {Path(s["model"]).name for s in printed["standings"]} == {"m0", "m2"}
    assert printed["adapter"] is not None
    lines = "\n".join(printed["adapter"]["load"])
    scope: dict[str, object] = {}
    exec(lines, scope)  # the lines that a user pastes
    (adapted,) = [value for value in scope.values() if "PeftModel" in type(value).__name__]
    tested = outcomes_of(printed)
    assert sorted(doc for fold in tested.values() for doc in fold) == list(range(60))
    first_fold = tested["colours#1/5"]
    assert peft_outcomes(adapted, printed["best"], world / "colours.jsonl") == first_fold
    every_door_says(printed, potentia)


def every_door_says(found: dict, potentia) -> None:
    """Terminal, report, board and compare say of the selection's store what the selection said."""
    printed_ranking = found["ranking"]
    first = dict(zip(printed_ranking["models"], printed_ranking["p_first"], strict=True))
    evidence = read(found["store"], study="select-final")
    board = build_scoreboard(evidence)
    assert board.first == found["best"]
    assert {s.model: s.p_first for s in board.standings} == pytest.approx(first)
    assert board.ranking.rivals == tuple(found["close"])
    answer = make_answer(make_report(evidence))
    assert {s.model: s.p_first for s in answer.standings} == pytest.approx(first)
    assert answer.headline.replace("\N{NO-BREAK SPACE}", " ") == board.headline()
    printed = potentia("analyze", "rankings", found["store"], "--study", "select-final")
    assert board.headline() in " ".join(printed.stdout.split())
    with TestClient(
        create_app(found["store"], executor=ThreadPoolExecutor(1)), base_url="http://127.0.0.1"
    ) as client:
        page = client.get("/api/studies/select-final/answer").json()
    assert page["headline"].replace("\N{NO-BREAK SPACE}", " ") == board.headline()
    assert {s["model"]: s["p_first"] for s in page["board"]["standings"]} == pytest.approx(first)
    first_model, second_model = printed_ranking["models"]
    pair = json.loads(
        potentia(
            "compare",
            first_model,
            second_model,
            found["store"],
            "--study",
            "select-final",
            "--json",
        ).stdout
    )
    (lead,) = pair["leads"].values()
    assert lead["chance"] == pytest.approx(max(first.values()))
    assert lead["first"] == found["best"]


def peft_outcomes(adapted: object, base: str, data: Path) -> dict[int, float]:
    """Test the adapter, which is that of the first fold, as PEFT loads it, on the documents of that fold."""
    from transformers import AutoTokenizer

    from potentia import tasks
    from potentia.engine import LoadedModel
    from potentia.engine.scoring import Scorer
    from potentia.run.ask import evaluate_untuned

    merged = adapted.merge_and_unload()  # type: ignore[attr-defined]
    loaded = LoadedModel.of(merged, AutoTokenizer.from_pretrained(base))
    test, _ = evaluate_untuned(
        Scorer(loaded), tasks.load(str(data), division=tasks.Division(fold=(1, 5)))
    )
    return {item.doc_id: item.value for item in test.outcomes}


def outcomes_of(printed: dict) -> dict[str, dict[int, float]]:
    """What the selection's own store says of the winner, by fold."""
    with Store.open(printed["store"], readonly=True) as store:
        cells = [c for c in store.cells.read(study="select-final") if c.model == printed["best"]]
        return {
            cell.task: {item.doc_id: item.value for item in store.cells.read_items(cell.key)}
            for cell in cells
        }


def test_a_tie_is_told_as_a_tie(world, potentia, tmp_path):
    for name in ("left", "right"):
        shutil.copytree(world / "m0", tmp_path / name)
    done = potentia(
        "select",
        "--data",
        world / "colours.jsonl",
        "--models",
        "./left",
        "./right",
        "--set",
        "tuning.epochs=1",
        "tuning.learning_rates=[1e-3]",
        "--device",
        "cpu",
    )
    assert done.returncode == 0, done.stderr
    text = " ".join(
        done.stdout.split()
    )  # which is named first is chance, and follows from nothing but its draws
    assert "left and right are not significantly different here: each may be the best" in text or (
        "right and left are not significantly different here: each may be the best" in text
    )
    assert text.count("tied for best") == 2
    one = potentia("select", "--data", world / "colours.jsonl", "--models", "./left")
    assert one.returncode == 2
