"""What "Training on the test task" needs of a study: whole auxiliary data, shots, its recipe, every rate's score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from potentia.errors import InputError
from potentia.run import plan_study, run_study
from potentia.run.commit import describe_adjust
from potentia.run.plan import load_tasks
from potentia.store import Store
from potentia.study import Study, TaskSpec, make_study, tuning_for_adjust
from potentia.values.protocol import Protocol


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settings")
    tiny.save_model(folder / "base")
    tiny.save_questions(folder / "colours.jsonl", n=60)
    tiny.save_questions(folder / "auxiliary.jsonl", n=100, seed=1)
    blind = folder / "blind"  # as MMLU: a test and nothing to choose by
    blind.mkdir()
    tiny.save_questions(blind / "test.jsonl", n=24, seed=2)
    return folder


def study(world: Path, store: Path | str = "none.db", **changes: Any) -> Study:
    body: dict[str, Any] = {
        "name": "s",
        "models": [{"name": "base", "path": str(world / "base")}],
        "tasks": [{"name": "colours", "file": str(world / "colours.jsonl")}],
        "protocols": ["direct", "adjust"],
        "adjust": {"data": str(world / "auxiliary.jsonl")},
        "tuning": {"learning_rates": [3e-3], "epochs": 1, "dropout": 0.0},
        "store": str(store),
    }
    return make_study(body | changes)


def test_auxiliary_data_are_whole_whatever_the_caps(world: Path):
    capped = study(world, caps={"train": 10, "validation": 5, "test": 5})
    data = load_tasks(capped).auxiliary
    assert data is not None
    assert [len(data.documents(s)) for s in ("train", "validation", "test")] == [100, 0, 0]
    own = {"data": str(world / "auxiliary.jsonl"), "cap": 30, "hold_out": 20}
    data = load_tasks(study(world, adjust=own)).auxiliary
    assert data is not None
    assert [len(data.documents(s)) for s in ("train", "validation", "test")] == [30, 20, 0]
    assert not {d.id for d in data.documents("train")} & {
        d.id for d in data.documents("validation")
    }


def test_multiple_choice_is_learned_as_letters_unless_said_otherwise(world: Path):
    def learned(**adjust: Any) -> str:
        data = load_tasks(
            study(world, adjust={"data": str(world / "auxiliary.jsonl"), **adjust})
        ).auxiliary
        assert data is not None
        (example,) = data.examples(data.documents("train")[:1])
        return example.continuation.strip()

    assert learned() in "ABC"
    assert learned(form="own") in ("red", "blue", "green")
    assert learned(data=f"{world / 'auxiliary.jsonl'}:cloze") in ("red", "blue", "green")


def save_rows(file: Path, rows: list[dict[str, str]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(file)


def test_several_files_are_learned_together_in_the_authors_form(world: Path, tmp_path: Path):
    """MetaMathQA and Orca-Math: other columns, one form, "Question: …" and "Answer:"."""
    metamath = [
        {"type": "GSM", "query": f"What is 1 + {n}?", "response": f"It is {n + 1}."}
        for n in range(12)
    ]
    orca = [{"question": f"A. Count to {n}", "answer": f"{n} in all"} for n in range(8)]
    files = [
        save_rows(tmp_path / "metamath.jsonl", metamath),
        save_rows(tmp_path / "orca.jsonl", orca),
    ]
    adjust = {"data": files, "form": "question", "hold_out": 4}
    data = load_tasks(study(world, adjust=adjust)).auxiliary
    assert data is not None
    train = data.documents("train")
    assert (len(train), len(data.documents("validation"))) == (16, 4)
    learned = {(e.context, e.continuation) for e in data.examples(train)}
    every = {(f"Question: {row['query']}\nAnswer:", row["response"]) for row in metamath}
    every |= {(f"Question: {row['question']}\nAnswer:", row["answer"]) for row in orca}
    assert learned < every
    assert len(learned) == 16
    capped = load_tasks(study(world, adjust={**adjust, "cap": 10})).auxiliary
    assert capped is not None
    assert len(capped.documents("train")) == 10
    other_order = load_tasks(study(world, adjust={**adjust, "data": files[::-1]})).auxiliary
    assert other_order is not None
    assert other_order.fingerprint != data.fingerprint
    mixed = study(world, adjust={"data": [files[0], str(world / "auxiliary.jsonl")]})
    with pytest.raises(InputError, match="cannot be learned together"):
        load_tasks(mixed)


def test_a_model_is_adjusted_on_several_files(world: Path, tmp_path: Path):
    tiny.save_questions(tmp_path / "more.jsonl", n=40, seed=5)
    together = study(
        world,
        tmp_path / "s.db",
        adjust={"data": [str(world / "auxiliary.jsonl"), str(tmp_path / "more.jsonl")]},
    )
    assert run_study(together).failed == 0
    alone = study(world, tmp_path / "s.db")
    keys = [{c.key for c in plan_study(s).rows[0].cells} for s in (together, alone)]
    assert len(keys[0] & keys[1]) == 1, "the direct score is the same, the adjusted one is not"
    with Store.open(together.store) as store:
        assert {str(cell.protocol) for cell in store.cells.read()} == {"direct", "adjust"}


def test_a_model_may_have_a_dtype_of_its_own(world: Path, tmp_path: Path):
    base = {"name": "base", "path": str(world / "base")}
    half = {"name": "half", "path": str(world / "base"), "dtype": "bfloat16"}
    both = study(world, tmp_path / "s.db", models=[base, half], device="cpu", protocols=["direct"])
    rows = plan_study(both).rows
    assert [row.study.dtype for row in rows] == ["float32", "bfloat16"]
    assert rows[0].cells[0].key != rows[1].cells[0].key
    assert run_study(both).failed == 0
    with Store.open(both.store) as store:
        dtypes = {cell.model: cell.provenance.model.dtype for cell in store.cells.read()}
    assert dtypes == {"base": "float32", "half": "bfloat16"}


def test_shots_by_task_and_by_the_leaderboards(world: Path):
    tasks = [
        {"name": n, "file": str(world / "colours.jsonl")}
        for n in ("arc_challenge", "hellaswag", "other")
    ]
    asked = study(world, tasks=[*tasks, TaskSpec(name="own", shots=3)], shots="leaderboard")
    direct, five, tuned = map(Protocol, ("direct", "few_shot:7", "train_before_test"))
    assert [
        asked.count_shots(t, direct) for t in ("arc_challenge", "hellaswag", "other", "own")
    ] == [
        25,
        10,
        0,
        3,
    ]
    assert [asked.count_shots(t, five) for t in ("arc_challenge", "other", "own")] == [25, 7, 3]
    assert asked.count_shots("own", Protocol("adjust")) == 3
    assert asked.count_shots("own", tuned) == 0, (
        "the models are tuned on questions without examples"
    )


def test_a_model_is_asked_with_its_examples_before_and_after(world: Path, tmp_path: Path):
    task = {"name": "colours", "file": str(world / "colours.jsonl")}
    shown = study(world, tmp_path / "s.db", tasks=[task | {"shots": 2}])
    bare = study(world, tmp_path / "s.db", tasks=[task])
    keys = [[cell.key for cell in plan_study(s).rows[0].cells] for s in (shown, bare)]
    assert not set(keys[0]) & set(keys[1]), "other questions, other cells"
    assert run_study(shown).failed == 0
    with Store.open(shown.store) as store:
        for protocol in ("direct", "adjust"):
            (cell,) = store.cells.read(protocol=protocol)
            assert cell.provenance.shots == 2
            assert cell.provenance.task.chance == pytest.approx(1 / 3)
            assert all(
                item.detail["prompt"].count("Answer:") == 3
                for item in store.cells.read_items(cell.key)
            )
    tasks = [{"name": "notes", "file": str(tiny.save_texts(tmp_path / "notes.jsonl")), "shots": 2}]
    with pytest.raises(InputError, match="no examples"):
        load_tasks(study(world, tasks=tasks))


def test_the_papers_recipe_learns_the_answer_and_its_end_and_is_gentle_with_the_models_it_names(
    world: Path,
):
    gentle = (
        "Qwen/Qwen2-7B",
        "google/gemma-7b",
        "allenai/OLMo-7B-hf",
        "meta-llama/Meta-Llama-3-8B",
    )
    models: list[Any] = [
        {"name": n, "path": str(world / "base")} for n in (*gentle, "EleutherAI/pythia-6.9b")
    ]
    models.append({"name": "mine", "path": str(world / "base"), "learning_rates": [7e-6]})
    named = study(
        world, models=models, adjust={"data": str(world / "auxiliary.jsonl"), "recipe": "test_task"}
    )
    recipes = [tuning_for_adjust(named, row, 7e9) for row in named.rows()]
    assert [r.learning_rates for r in recipes] == [(2e-6,)] * 4 + [(2e-5,), (7e-6,)]
    assert {(r.loss, r.end_of_text, r.batch, r.max_tokens) for r in recipes} == {
        ("completion", "answers", 64, 600)
    }
    keys = [
        next(c.key for c in row.cells if c.protocol == "adjust") for row in plan_study(named).rows
    ]
    assert len(set(keys)) == 3, "the same weights under three rates"


def test_rates_without_anything_to_choose_by_are_refused(world: Path, tmp_path: Path):
    blind = {"tasks": [{"name": "blind", "file": str(world / "blind")}]}
    rates = {"tuning": {"learning_rates": [1e-9, 3e-3], "epochs": 1, "dropout": 0.0}}
    with pytest.raises(
        InputError, match="blind has no validation examples to choose a learning rate by"
    ):
        plan_study(study(world, **blind, **rates))
    plan_study(study(world, **blind))  # one rate needs no choice


@pytest.mark.parametrize("method", ["lora", "full"])
def test_held_out_auxiliary_data_choose_and_every_rate_is_stored(
    world: Path, tmp_path: Path, method: str
):
    tasks = [
        {"name": n, "file": str(world / f)}
        for n, f in (("blind", "blind"), ("colours", "colours.jsonl"))
    ]
    own = {
        "data": str(world / "auxiliary.jsonl"),
        "form": "own",
        "hold_out": 30,
        "every_rate": True,
    }
    tuning = {"method": method, "learning_rates": [1e-9, 1e-2], "epochs": 4, "dropout": 0.0}
    new_study = study(
        world, tmp_path / "s.db", tasks=tasks, adjust=own, tuning=tuning, protocols=["adjust"]
    )
    assert run_study(new_study).failed == 0
    with Store.open(new_study.store) as store:
        for name in ("blind", "colours"):
            (cell,) = store.cells.read(task=name, protocol="adjust")
            rates = cell.selection.rates
            assert [r.learning_rate for r in rates] == [1e-9, 1e-2]
            assert cell.selection.learning_rate == 1e-2, "not the smallest, for want of a reason"
            assert [r.chosen for r in rates] == [False, True]
            assert rates[1].value == cell.score.value
            assert rates[0].value != rates[1].value
            lanes = {
                lane.learning_rate: lane.epochs[-1].value
                for lane in store.lanes.read(cell=cell.key)
            }
            assert lanes == {r.learning_rate: r.validation for r in rates}
        blind, _colours = (
            store.cells.read(task=n)[0].selection.rates[1].validation for n in ("blind", "colours")
        )
        assert blind * 30 == pytest.approx(round(blind * 30)), "by the 30 documents held out"


def test_a_group_is_tested_on_all_items_and_averaged_over_its_subtasks(tmp_path: Path):
    """MMLU as the authors take it: all items, and the plain mean over subjects."""
    from potentia.tasks import load
    from potentia.values.scores import ItemOutcome

    for name, n in (("large", 30), ("small", 10)):
        folder = tmp_path / name
        folder.mkdir()
        tiny.save_questions(folder / "train.jsonl", n=20)
        tiny.save_questions(folder / "validation.jsonl", n=5)
        tiny.save_questions(folder / "test.jsonl", n=n)
    members = [
        {
            "task": name,
            "dataset_path": "json",
            "output_type": "multiple_choice",
            "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": str(tmp_path / name / "test.jsonl")}},
            "doc_to_text": "{{question}}",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        }
        for name in ("large", "small")
    ]
    group = {
        "group": "both",
        "task": members,
        "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}],
    }
    (tmp_path / "both.yaml").write_text(json.dumps(group))
    from potentia.study import Caps

    def mean(how: Any) -> float:
        task = load(str(tmp_path / "both.yaml"), group_mean=how, caps=Caps(test=None))
        docs = task.documents("test")
        assert len(docs) == 40
        right = [doc.subtask_number == 1 for doc in docs]
        outcomes = [
            ItemOutcome(
                d.id,
                float(r),
                "",
                "",
                {"metrics": {"acc": float(r)}, "subtask": task.subtasks[d.subtask_number]},
            )
            for d, r in zip(docs, right, strict=True)
        ]
        return task.score(outcomes)["acc"].value

    assert mean(None) == mean("items") == 0.25
    assert mean("subtasks") == 0.5


def test_an_answer_is_as_long_as_the_study_says(tmp_path: Path):
    from potentia.tasks import load

    rows = [{"prompt": f"count to {k}", "completion": "one two"} for k in range(30)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    own, long = (
        load(str(tmp_path / "own.jsonl")),
        load(str(tmp_path / "own.jsonl"), answer_tokens=1500),
    )
    asked = [t.prompts(t.documents("test")[:1])[0].requests[0].max_tokens for t in (own, long)]
    assert asked == [256, 1500]
    assert own.fingerprint != long.fingerprint
    body = {"models": ["m"], "answer_tokens": 700, "store": "none.db"}
    tasks = [
        {"name": n, "file": str(tmp_path / "own.jsonl")} | more
        for n, more in (("a", {}), ("b", {"answer_tokens": 90}))
    ]
    loaded = load_tasks(make_study(body | {"tasks": tasks})).by_name
    assert [
        t.prompts(t.documents("test")[:1])[0].requests[0].max_tokens for t in loaded.values()
    ] == [700, 90]


def test_cells_that_kept_the_untuned_model_are_counted_and_ranked_without_that_choice(
    world: Path, tmp_path: Path
):
    """An exposed model that skips the tuning keeps its advantage: the report says so, and ranks as if it had not."""
    from potentia.analysis.rankings import find_rankings
    from potentia.evidence import read

    tiny.save_model(tmp_path / "other", seed=5)
    models = [
        {"name": n, "path": str(p)}
        for n, p in (("base", world / "base"), ("other", tmp_path / "other"))
    ]
    tasks = [
        {"name": "notes", "file": str(tiny.save_texts(tmp_path / "notes.jsonl"))},
        {"name": "colours", "file": str(world / "colours.jsonl"), "category": "colour"},
    ]
    harmful = {"learning_rates": [3.0], "epochs": 1, "dropout": 0.0, "clip": 1e9}
    new_study = study(
        world,
        tmp_path / "s.db",
        models=models,
        tasks=tasks,
        tuning=harmful,
        protocols=["train_before_test"],
    )
    assert run_study(new_study).failed == 0
    tuned = study(
        world,
        tmp_path / "s.db",
        models=models,
        tasks=tasks,
        tuning=harmful,
        protocols=["train_before_test"],
        selection="tuned",
        name="tuned",
    )
    assert run_study(tuned).failed == 0
    with Store.open(new_study.store) as store:
        kept = [c for c in store.cells.read(study="s") if not c.selection.tuned]
        assert kept, "the rate is meant to harm"
        for cell in kept:
            (other,) = store.cells.read(study="tuned", model=cell.model, task=cell.task)
            assert cell.selection.best_tuned.value == pytest.approx(other.score.value, abs=1e-6)
    evidence = read(new_study.store, study="s")
    assert evidence.background.categories["colours"] == "colour"
    rankings = find_rankings(evidence)
    result = rankings.tuning[Protocol("train_before_test")]
    on_tasks = {c.model: ("colours",) for c in kept if c.task == "colours"}
    assert result.untuned_tasks == on_tasks
    assert bool(result.tuned_ranks) == bool(on_tasks)


@pytest.mark.parametrize(
    "change",
    [
        {"tuning": {"learning_rates": [1e-2], "epochs": 1, "dropout": 0.0}},
        {"selection": "last"},
    ],
)
def test_studies_whose_inherited_tuning_differs_are_not_compared(
    change: dict[str, Any], world: Path, tmp_path: Path
):
    """Each inherits the `tuning` of its study, which was in no recipe."""
    settings: dict[str, Any] = {
        "tuning": {"learning_rates": [3e-3], "epochs": 1, "dropout": 0.0},
        "protocols": ["adjust"],
    }
    first_study = study(world, tmp_path / "one.db", **settings)
    same_study = study(world, tmp_path / "same.db", **settings)
    other_study = study(world, tmp_path / "other.db", **{**settings, **change})
    recipes = []
    for one_study in (first_study, same_study, other_study):
        assert run_study(one_study).failed == 0
        with Store.open(one_study.store) as store:
            (cell,) = store.cells.read(protocol="adjust")
            recipes.append(cell.score.origin.recipe)
            assert cell.provenance.tuning_settings["learning_rates"]
    assert recipes[0] == recipes[1]
    assert recipes[0] != recipes[2]


def test_models_of_one_study_have_one_recipe_whatever_their_rates(world: Path):
    auxiliary = str(world / "auxiliary.jsonl")
    by_size = study(world, adjust={"data": auxiliary, "recipe": "test_task"})
    assert by_size.adjust is not None
    described = describe_adjust(by_size, by_size.adjust)
    assert (described["recipe"], described["tuning"]) == ("test_task", None)
