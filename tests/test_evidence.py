"""Evidence: one door to scores, outcomes, facts and studies, and the same findings whoever asks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from made_store import make_store
from potentia.analysis.rankings import find_rankings
from potentia.errors import InputError
from potentia.evidence import Evidence, read
from potentia.evidence.evidence import facts_of_stored_tasks
from potentia.evidence.join import join_folds
from potentia.formats import write_scores
from potentia.papers import TestTaskOptions, find_test_task
from potentia.show import make_report
from potentia.store import CellRecord, Store, rename_study
from potentia.study import Caps, make_study
from potentia.tasks.splits import plan_splits
from potentia.values.metric import Metric, Origin, fingerprint_recipe
from potentia.values.provenance import Provenance, TaskProvenance
from potentia.values.scores import ItemOutcome, Score, ScoreMatrix
from potentia.values.splits import SplitPlan

MODELS = [f"m{k}" for k in range(12)]
TASKS = ["arc_easy", "boolq", "mmlu"]
N = 40


def fill(
    path: Path,
    *,
    name: str = "first",
    protocols: tuple[str, ...] = ("direct", "adjust", "adjust@5"),
    models: list[str] | None = None,
    data: str = "d0",
    recipe: str = "r0",
    shift: float = 0.0,
    batch: int = 16,
) -> Path:
    """Commit a study whose models carry their facts, as a run would leave it."""
    stream = np.random.default_rng(0)
    specs = [
        {
            "name": model,
            "family": f"f{k % 4}",
            "parameters": 1e8 * 2**k,
            "tokens": 1e11,
            "date": "2024-01" if k % 3 == 0 else "2022-01",
        }
        for k, model in enumerate(MODELS)
        if models is None or model in models
    ]
    study = make_study(
        {
            "name": name,
            "models": specs,
            "tasks": TASKS,
            "protocols": [p for p in protocols if "@" not in p],
            "adjust": {"data": "aux", "at_steps": [5], "tuning": {"batch": batch}},
        }
    )
    with Store.open(path) as store:
        key = f"{name:x<32}"[:32]
        store.studies.open(name, key, study.model_dump(mode="json"))
        for spec in specs:
            skill = 0.3 + 0.05 * MODELS.index(spec["name"]) + shift
            for task in TASKS:
                for protocol in protocols:
                    right = stream.random(N) < skill + (0.1 if protocol != "direct" else 0)
                    value = float(right.mean())
                    content: dict[str, Any] = {
                        "task": {"fingerprint": f"{task} {data}"},
                        "versions": {"python": "3"},
                    }
                    if protocol != "direct":
                        content["adjust"] = {"tuning": recipe}
                    origin = Origin(
                        f"{task} {data}", fingerprint_recipe({"adjust": content.get("adjust")}), 0
                    )
                    store.cells.commit(
                        CellRecord(
                            key=f"{name}-{spec['name']}-{task}-{protocol}-{data}-{recipe}".replace(
                                "@", "-"
                            ),
                            study=key,
                            model=spec["name"],
                            task=task,
                            protocol=protocol,
                            scores={
                                "acc": Score(
                                    value,
                                    math.sqrt(value * (1 - value) / N),
                                    N,
                                    Metric.of("acc"),
                                    origin,
                                ),
                                "brier_score": Score(
                                    0.9 - value / 2, 0.01, N, Metric.of("brier_score"), origin
                                ),
                            },
                            metric="acc",
                            provenance=Provenance.from_dict(content),
                        ),
                        items=[ItemOutcome(d, float(r), "a", "a", {}) for d, r in enumerate(right)],
                    )
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("evidence") / "s.db")


def said(*arguments: str) -> dict[str, Any]:
    from potentia.cli.app import app

    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_terminal_report_board_and_python_find_the_same(store: Path) -> None:
    """Facts that only the study tells, and scores on the way, once made two answers of one store."""
    from potentia.show.board.app import create_app

    evidence = read(store)
    ours = find_rankings(evidence).findings_by_name() | find_test_task(evidence).findings_by_name()
    assert {
        "arc_easy-adjustment",
        "arc_easy-emergence",
        "ranking adjust",
        "significance direct",
    } <= set(ours)
    assert not any("@5" in name for name in ours)
    terminal = said("analyze", "rankings", str(store)) | said("papers", "test-task", str(store))
    report = make_report(evidence, items=0).findings_by_name()
    assert list(terminal) == list(report) == list(ours)
    with TestClient(create_app(str(store)), base_url="http://127.0.0.1") as board:
        assert board.get("/api/studies/first/findings").json()["names"] == list(ours)
        for name, finding in ours.items():
            expected = plain(finding.to_dict())
            assert terminal[name] == expected, name
            assert plain(report[name].to_dict()) == expected, name
            assert board.get(f"/api/studies/first/findings/{name}").json() == expected, name


def test_examples_are_steps_of_the_studys_own_batch(store: Path) -> None:
    test_task = find_test_task(read(store))
    assert test_task.tasks["mmlu"]["emergence"].examples == (0, 80)


def test_batches_that_differ_make_no_common_axis(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", name="one", models=MODELS[:6])
    fill(path, name="two", models=MODELS[6:], batch=32)
    with pytest.raises(InputError, match="batches of 16 and 32 examples"):
        find_test_task(read(path, study="all"))
    chosen = TestTaskOptions(batch=16)
    assert find_test_task(read(path, study="all"), chosen).tasks["mmlu"]["emergence"].examples == (
        0,
        80,
    )


def test_another_metric_leaves_the_items_of_the_main_one_alone(store: Path) -> None:
    """Accuracies of items were once paired under a matrix of Brier scores."""
    evidence = read(store, metric="brier_score")
    assert {m.name for m in evidence.scores["direct"].metrics} == {"brier_score"}
    assert evidence.outcomes["direct"] == {}
    assert not any(any(found.items) for found in find_rankings(evidence).significance.values())
    assert read(store, metric="acc").outcomes["direct"].keys() == set(TASKS)
    found = find_test_task(evidence).tasks["mmlu"]["adjustment"]
    assert found.before.fit.chance == 0.75  # of a guess among four, by the Brier score
    assert found.before.fit.slope.value < 0
    with pytest.raises(InputError, match="no direct results with the metric 'f1'"):
        read(store, metric="f1")


def test_every_analysis_takes_a_metric(store: Path) -> None:
    columns = store.with_name("columns.yaml")
    columns.write_text("metric: brier_score\n")
    result = said("papers", "test-task", str(store), "--columns", str(columns))
    assert result["mmlu-adjustment"]["before"]["fit"]["chance"] == 0.75
    for command in ("analyze rankings", "papers test-task", "analyze checkpoints", "papers proxy"):
        from potentia.cli.app import app

        help_page = CliRunner().invoke(app, [*command.split(), "--help"], terminal_width=200)
        assert "--columns" in help_page.output


def test_chance_is_one_per_task_and_a_number_is_for_the_unknown_alone(
    store: Path, tmp_path: Path
) -> None:
    """One number for all once put the floor of a two-way task at a quarter."""
    result = said("papers", "test-task", str(store), "--chance", "0.1")
    assert {t: result[f"{t}-adjustment"]["before"]["fit"]["chance"] for t in TASKS} == {
        "arc_easy": 0.25,
        "boolq": 0.5,
        "mmlu": 0.25,
    }
    facts = tmp_path / "tasks.csv"
    facts.write_text("task,chance\nboolq,0.4\n")
    (tmp_path / "columns.yaml").write_text("task_facts: tasks.csv\n")
    result = said("papers", "test-task", str(store), "--columns", str(tmp_path / "columns.yaml"))
    assert result["boolq-adjustment"]["before"]["fit"]["chance"] == 0.4


def test_what_needs_no_division_survives_without_one(tmp_path: Path) -> None:
    scores = {p: read(fill(tmp_path / "s.db")).scores[p] for p in ("direct", "adjust", "adjust@5")}
    write_scores(scores, tmp_path / "s.csv")
    facts = tmp_path / "facts.csv"
    rows = [f"{m},f{k % 3},{k + 1},300" for k, m in enumerate(MODELS)]
    facts.write_text("\n".join(["model,family,params_b,tokens_b", *rows]))
    test_task = find_test_task(read(tmp_path / "s.csv", facts=facts))
    assert set(test_task.tasks["mmlu"]) == {"gain", "ranks", "families", "emergence"}
    assert [row[0] for row in test_task.tasks["mmlu"]["gain"].tables()[0].rows] == ["all models"]
    assert any("no training date" in problem for problem in test_task.problems)


def test_outcomes_and_facts_come_with_the_scores(store: Path) -> None:
    evidence = read(store, tasks=["boolq"], models=["m3", "m1"])
    assert list(evidence.scores) == ["direct", "adjust@5", "adjust"]
    assert evidence.scores["direct"].models == ("m3", "m1")
    assert set(evidence.outcomes["direct"]) == {"boolq"}
    assert set(evidence.outcomes["direct"]["boolq"]) == {"m1", "m3"}
    assert len(evidence.outcomes["direct"]["boolq"]["m3"]) == N
    assert evidence.facts.find("m3").flops == 6 * 8e8 * 1e11
    assert (evidence.title, evidence.source) == ("first", "s.db")


def test_the_users_facts_win_over_the_studys(store: Path, tmp_path: Path) -> None:
    facts = tmp_path / "facts.csv"
    facts.write_text("model,family,params_b,tokens_b\nm3,mine,2,100\n")
    evidence = read(store, facts=facts)
    assert evidence.background.families["m3"] == "mine"
    assert evidence.background.families["m2"] == "f2"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([{"train": 100, "test": 50}], 100),  # validation is carved out of train
        ([{"train": 100, "validation": 30, "test": 50}], 100),
        ([{"train": 100, "test": 50}, {"train": 1, "test": 50}], 101),
        # of one subtask public, of the other carved
        ([{"train": 100, "validation": 30, "test": 50}, {"train": 100, "test": 50}], None),
    ],
)
def test_the_size_of_train_holds_what_was_carved_out_of_it_alone(
    sizes: list[dict[str, int]], expected: int | None
) -> None:
    plan, _ = plan_splits(sizes, caps=Caps(), seed=0, carve=0.2, division=None, hold_out=None)
    stored = SplitPlan.from_dict(plan.to_dict())
    provenance = Provenance(task=TaskProvenance(splits=stored))
    (facts,) = facts_of_stored_tasks({"group": provenance})
    assert facts.train_size == expected


def test_of_several_studies_the_last_opened_counts_and_is_named(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", name="old")
    fill(path, name="new", recipe="r1", shift=0.1)
    evidence = read(path)
    assert [record.name for record in evidence.studies] == ["new"]
    assert "shown is new, the study opened last" in evidence.notes[0]
    assert "old" in evidence.notes[0]
    assert read(path, study="old").title == "old"
    assert not read(path, study="old").notes
    with pytest.raises(InputError, match="no study 'other'"):
        read(path, study="other")


def test_studies_of_one_name_are_told_apart_by_the_beginnings_of_their_keys(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", name="one")
    fill(path, name="two", recipe="r1", shift=0.1)
    with Store.open(path) as opened:
        for record in opened.studies.read():
            rename_study(opened, record.key, "study")
    newest = read(path)
    (shown,) = newest.studies
    with Store.open(path, readonly=True) as opened:
        (other,) = [record for record in opened.studies.read() if record.key != shown.key]
    assert f"shown is study ({shown.key[:8]}), the study opened last" in newest.notes[0]
    assert f"also holds: study ({other.key[:8]})" in newest.notes[0]
    for beginning in (other.key[:8], other.key[:12], other.key):
        assert [record.key for record in read(path, study=beginning).studies] == [other.key]
    with pytest.raises(InputError, match="2 studies are called 'study'") as ambiguous:
        read(path, study="study")
    assert shown.key[:8] in str(ambiguous.value.hint)
    assert other.key[:8] in str(ambiguous.value.hint)
    with pytest.raises(InputError, match=r"different adjust\.tuning") as unlike:
        read(path, study="all")
    named_key = str(unlike.value.hint).split(";")[0].removeprefix("choose one: --study ")
    assert named_key in {shown.key[:8], other.key[:8]}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data": "d1"}, "different data"),
        ({"recipe": "r1"}, r"different adjust.tuning \(r0 and r1\)"),
    ],
)
def test_cells_of_other_data_or_recipe_are_not_compared(
    tmp_path: Path, change: dict[str, str], what: str
) -> None:
    path = fill(tmp_path / "s.db", name="one", models=MODELS[:6])
    fill(path, name="two", models=MODELS[6:], **change)
    with pytest.raises(InputError, match=what) as error:
        read(path, study="all")
    assert "--study two" in str(error.value.hint) or "--study one" in str(error.value.hint)


def test_studies_that_agree_are_joined(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", name="one", models=MODELS[:6])
    fill(path, name="two", models=MODELS[6:])
    for chosen in ("all", ["one", "two"]):
        evidence = read(path, study=chosen)
        assert sorted(evidence.scores["adjust"].models) == sorted(MODELS)
        assert len(evidence.cells()) == 2 * 6 * 3 * 3


@pytest.mark.parametrize("make", [lambda m: m, lambda m: {"direct": m}])
def test_matrices_of_ones_own_are_evidence(make: Callable[[ScoreMatrix], Any]) -> None:
    evidence = Evidence.of(make(ScoreMatrix.build(["a", "b"], ["x", "y"], [[1, 2], [3, 4]])))
    assert evidence.main == "direct"
    assert find_rankings(evidence).overall["direct"].models == ("b", "a")
    assert evidence.cells() == evidence.failures() == []


def test_no_source_is_an_error() -> None:
    with pytest.raises(InputError, match="no scores are given"):
        read()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data": "d1"}, "different data"),
        ({"recipe": "r1"}, r"different adjust.tuning \(r0 and r1\)"),
    ],
)
def test_two_stores_of_other_data_or_recipe_are_not_pooled(
    tmp_path: Path, change: dict[str, str], what: str
) -> None:
    """Two stores were ranked as one study, "after the same fine-tuning for all", and their items paired by number."""
    first = fill(tmp_path / "one.db", models=MODELS[:4])
    second = fill(tmp_path / "two.db", models=MODELS[4:], **change)
    with pytest.raises(
        InputError, match=rf" and \d other tasks? in one.db and two.db cannot be compared: {what}"
    ):
        read(first, second)
    like = fill(tmp_path / "like.db", models=MODELS[4:])
    assert len(read(first, like).scores["adjust"].models) == len(MODELS)


def test_unlike_sources_are_shown_apart_where_one_asks_for_it(tmp_path: Path) -> None:
    """One ranking per group of sources that can be compared: Python, JSON, terminal and the report's first tables."""
    one = fill(tmp_path / "one.db", models=MODELS[:4])
    two = fill(tmp_path / "two.db", models=MODELS[4:8], recipe="r1")
    like = fill(tmp_path / "like.db", models=MODELS[8:])
    evidence = read(one, two, like, apart=True)
    assert [len(group.models) for group in (evidence, *evidence.apart)] == [8, 4]
    assert "different adjust.tuning (r0 and r1)" in evidence.apart[0].notes[-1]
    columns = tmp_path / "columns.yaml"
    columns.write_text("apart: true\n")
    sources = (str(one), str(two), str(like), "--columns", str(columns))
    groups = said("analyze", "rankings", *sources)["apart"]
    assert [group["source"] for group in groups] == [
        "one.db + like.db: first, first",
        "two.db: first",
    ]
    ranked = [
        [s["model"] for s in group["findings"]["scoreboard"]["standings"]] for group in groups
    ]
    assert [set(models) for models in ranked] == [{*MODELS[:4], *MODELS[8:]}, {*MODELS[4:8]}]
    page = tmp_path / "report.html"
    result = said("report", *sources, "-o", str(page))
    assert result["problem"] == ""
    first = page.read_text().split('<section id="answer"')[0]
    assert "1. one.db + like.db" in first
    assert "2. two.db: first" in first


def test_studies_of_one_store_are_shown_apart(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", name="one", models=MODELS[:6])
    fill(path, name="two", models=MODELS[6:], data="d1")
    fill(path, name="three", models=MODELS[6:])
    evidence = read(path, study="all", apart=True)
    assert [sorted(r.name for r in group.studies) for group in (evidence, *evidence.apart)] == [
        ["one", "three"],
        ["two"],
    ]


def test_two_studies_that_share_cells_are_read_one_by_one_and_apart(tmp_path: Path) -> None:
    """Direct scores are the same under two recipes; reading either study failed with the other's key."""
    path = fill(tmp_path / "s.db", name="one", models=MODELS[:6])
    fill(path, name="two", models=MODELS[:6], recipe="r1", protocols=("adjust",))
    with Store.open(path) as store:
        key = next(record.key for record in store.studies.read() if record.name == "two")
        store.cells.adopt(
            key, [cell.key for cell in store.cells.read(study="one", protocol="direct")]
        )
    for name in ("one", "two"):
        assert {"direct", "adjust"} <= set(read(path, study=name).scores)
    apart = read(path, study="all", apart=True)
    assert len((apart, *apart.apart)) == 2


def test_a_table_says_the_score_of_guessing(tmp_path: Path) -> None:
    """The column chance of an export was read and then not asked for: the floor of a task was 0."""
    lines = [f"m{k},mine,{0.5 + k / 100},acc,0.5" for k in range(4)]
    (tmp_path / "s.csv").write_text("\n".join(["model,task,score,metric,chance", *lines]))
    assert read(tmp_path / "s.csv").background.chance == {"mine": 0.5}


def test_a_direct_score_on_other_data_is_not_set_against_a_tuned_one(tmp_path: Path) -> None:
    first = fill(tmp_path / "one.db", protocols=("direct",))
    second = fill(tmp_path / "two.db", protocols=("adjust",), data="d1")
    with pytest.raises(InputError, match="different data"):
        read(first, second)


def test_folds_are_joined_only_where_none_is_missing(tmp_path: Path) -> None:
    """Folds 1 and 2 of 5 were once given out as the whole task."""
    for name, folds in (("whole", range(1, 6)), ("part", range(1, 3))):
        with Store.open(tmp_path / f"{name}.db") as store:
            store.studies.open("s", "k", {})
            for model in ("a", "b"):
                for k in folds:
                    score = Score(
                        0.5 + k / 100,
                        0.1,
                        10,
                        Metric.of("acc"),
                        Origin(f"fold {k}"),
                        (0.5, 0.5 + k / 50),
                    )
                    cell = CellRecord(
                        f"{model}{k}", "k", model, f"t#{k}/5", "direct", {"acc": score}, "acc"
                    )
                    store.cells.commit(cell, items=[ItemOutcome(k * 100, 1.0, "", "", {})])
    whole, part = read(tmp_path / "whole.db"), read(tmp_path / "part.db")
    assert whole.scores["direct"].tasks == ("t",)
    assert whole.scores["direct"].score(0, 0).value == pytest.approx(0.53)
    assert whole.scores["direct"].score(0, 0).seeds == pytest.approx((0.5, 0.56))
    assert len(whole.outcomes["direct"]["t"]["a"]) == 5
    assert part.scores["direct"].tasks == ("t#1/5", "t#2/5")
    assert any("fold 3, 4, 5 are missing" in note for note in part.notes)
    assert set(part.outcomes["direct"]) == {"t#1/5", "t#2/5"}


def test_lower_is_better_tasks_are_ranked_and_texts_are_not(tmp_path: Path) -> None:
    """TER, WER and error rates once left the ranking for the texts to predict."""
    names = ["acc", "ter", "wer", "mae", "error_rate", "pct_stereotype", "bits_per_byte"]
    values = np.random.default_rng(0).random((6, len(names)))
    matrix = ScoreMatrix.build([f"m{k}" for k in range(6)], names, values, metrics=names)
    write_scores(matrix, tmp_path / "scores.csv")
    result = read(tmp_path / "scores.csv").scores["direct"]
    assert result.benchmarks().tasks == tuple(names[:-1])
    assert result.corpora().tasks == ("bits_per_byte",)


def test_folds_that_were_tuned_otherwise_are_not_joined():
    def made(recipe: str) -> ScoreMatrix:
        metric = Metric.of("acc")
        cells = {
            ("a", "t#1/2"): Score(0.5, 0.02, 100, metric, Origin(data="one", recipe="same")),
            ("a", "t#2/2"): Score(0.7, 0.04, 300, metric, Origin(data="two", recipe=recipe)),
        }
        return ScoreMatrix.from_cells("train_before_test", cells)

    joined = join_folds(made("same"), [])
    assert joined.tasks == ("t",)
    assert joined.values[0, 0] == pytest.approx(0.65)
    assert joined.stderr[0, 0] == pytest.approx(np.hypot(0.25 * 0.02, 0.75 * 0.04))
    assert joined.n[0, 0] == 400
    with pytest.raises(
        InputError, match=r"folds of a on t cannot be joined: different recipe \(same and other\)"
    ):
        join_folds(made("other"), [])


@pytest.mark.parametrize("name", ["", " ", "\0", "a\0.csv"])
def test_what_no_file_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not the name of a file"):
        read(name)


def test_narrowed_evidence_lists_the_results_that_are_meant(tmp_path: Path) -> None:
    """It listed every result of its studies: ``papers judge --model a`` would have asked about all models."""
    store = make_store(tmp_path / "s.db", models=("org/a", "org/b"), tasks=("boolq", "piqa"))
    whole = read(store)
    assert len(whole.cells()) == 8
    narrowed = read(store, models=["a"], tasks=["boolq"])
    names = [(cell.model, cell.task, cell.protocol) for cell in narrowed.cells()]
    assert names == [
        ("org/a", "boolq", "direct"),
        ("org/a", "boolq", "train_before_test"),
    ]
    (one,) = narrowed.narrowed(protocols=["direct"]).cells()
    assert one.protocol == "direct"
