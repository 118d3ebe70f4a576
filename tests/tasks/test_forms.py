"""The forms cloze and choice: prompt by prompt against lm-eval's own definitions of MMLU and ARC."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from potentia.errors import TaskError
from potentia.facts import leaderboard_shots
from potentia.tasks import Caps, Task, load
from potentia.tasks.definitions import tasks_folder

SMALL = Caps(train=60, validation=40, test=120)


def _questions(benchmarks: Path, count: int) -> list[dict[str, Any]]:
    """Real questions with four options, in MMLU's columns; one option is given two lines, which letters hide."""
    rows = pq.read_table(benchmarks / "allenai--ai2_arc" / "ARC-Easy" / "test.parquet").to_pylist()
    four = [row for row in rows if len(row["choices"]["text"]) == 4][:count]
    made = [
        {
            "question": row["question"],
            "subject": "anatomy",
            "choices": list(row["choices"]["text"]),
            "answer": list(row["choices"]["label"]).index(row["answerKey"]),
        }
        for row in four
    ]
    made[3]["choices"][1] += "\nB. and more of it"
    made[4]["question"] = "  " + made[4]["question"] + "\nA. is no option here\n"
    return made


@pytest.fixture(scope="module")
def mmlu(benchmarks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in MMLU's layout."""
    folder = tmp_path_factory.mktemp("data") / "cais--mmlu" / "anatomy"
    folder.mkdir(parents=True)
    rows = _questions(benchmarks, 105)
    pq.write_table(pa.Table.from_pylist(rows[:100]), folder / "test.parquet")
    pq.write_table(pa.Table.from_pylist(rows[100:]), folder / "dev.parquet")
    return folder.parents[1]


@pytest.fixture(scope="module")
def loaded(benchmarks: Path) -> Callable[[str], Task]:
    return lambda name: load(name, data_dir=benchmarks, caps=SMALL)


def _requests(task: Task, shots: int = 0) -> list[Any]:
    return [prompt.requests for prompt in task.prompts(task.documents("test"), shots=shots)]


@pytest.mark.parametrize("shots", [0, 5])
def test_mmlu_as_choice_is_lm_evals_mmlu(mmlu: Path, shots: int) -> None:
    stock, formed = load("mmlu_anatomy", data_dir=mmlu), load("mmlu_anatomy:choice", data_dir=mmlu)
    assert _requests(formed, shots) == _requests(stock, shots)
    assert formed.metric == "acc"


@pytest.mark.parametrize("shots", [0, 5])
def test_mmlu_as_cloze_is_lm_evals_mmlu_continuation(mmlu: Path, shots: int) -> None:
    stock, formed = (
        load("mmlu_anatomy_continuation", data_dir=mmlu),
        load("mmlu_anatomy:cloze", data_dir=mmlu),
    )
    theirs, ours = _requests(stock, shots), _requests(formed, shots)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other
    assert formed.metric == "acc"
    assert "multiple choice" not in ours[0][0].context


def test_cloze_says_multiple_choice_in_no_spelling(mmlu: Path, tmp_path: Path) -> None:
    definition = tmp_path / "own.yaml"
    definition.write_text(
        f"include: {tasks_folder()}/mmlu/default/mmlu_anatomy.yaml\n"
        'description: "The following is a Multiple-choice question about anatomy.\\n\\n"\n'
    )
    task = load(f"{definition}:cloze", data_dir=mmlu)
    context = _requests(task)[0][0].context
    assert context.startswith("The following is a question about anatomy.\n\n")


def _harness_requests(definition: str, folder: Path) -> list[list[tuple[str, str]]]:
    """Ask lm-eval alone: its own definition, class and loader on the same files."""
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(Path(lm_eval.__file__).parent / "tasks" / definition)
    config.pop("tag", None)
    files = {file.stem: str(file) for file in folder.glob("*.parquet")}
    for key in ("training_split", "validation_split"):
        config[key] = config.get(key) if config.get(key) in files else None
    config.update(dataset_path="parquet", dataset_name=None, dataset_kwargs={"data_files": files})
    task = ConfigurableTask(config=config)
    asked = []
    for doc in list(task.test_docs())[:100]:
        context = task.fewshot_context(doc, num_fewshot=0)
        asked.append(
            [
                instance.args
                for instance in task.construct_requests(doc, context, metadata=("t", 0, 1))
            ]
        )
    return asked


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("mmlu_anatomy:choice", "mmlu/default/mmlu_anatomy.yaml"),
        ("mmlu_anatomy:cloze", "mmlu/continuation/mmlu_anatomy.yaml"),
        ("arc_easy:cloze", "arc/arc_easy.yaml"),
    ],
)
def test_forms_against_lm_eval_alone(
    name: str, definition: str, mmlu: Path, benchmarks: Path
) -> None:
    arc = name.startswith("arc")
    folder = (
        benchmarks / "allenai--ai2_arc" / "ARC-Easy" if arc else mmlu / "cais--mmlu" / "anatomy"
    )
    task = load(name, data_dir=benchmarks if arc else mmlu)
    ours = [prompt.requests for prompt in task.prompts(task.documents("test")[:100])]
    assert [
        [(r.context, r.continuation) for r in requests] for requests in ours
    ] == _harness_requests(definition, folder)


def test_continuation_as_choice_goes_back_to_mmlu(mmlu: Path) -> None:
    stock, formed = (
        load("mmlu_anatomy", data_dir=mmlu),
        load("mmlu_anatomy_continuation:choice", data_dir=mmlu),
    )
    about = "The following are multiple choice questions (with answers) about anatomy.\n\n"
    for mine, other in zip(_requests(formed), _requests(stock), strict=True):
        assert [r.continuation for r in mine] == [r.continuation for r in other]
        assert mine[0].context.endswith(other[0].context.removeprefix(about))


@pytest.mark.parametrize("name", ["arc_easy", "arc_challenge"])
@pytest.mark.parametrize("shots", [0, 3])
def test_arc_is_cloze_already(loaded: Callable[[str], Task], name: str, shots: int) -> None:
    stock, formed = loaded(name), loaded(f"{name}:cloze")
    assert _requests(formed, shots) == _requests(stock, shots)
    assert formed.metric == stock.metric


def test_arc_as_choice_is_written_like_mmlu(benchmarks: Path, mmlu: Path) -> None:
    """The same questions in both benchmarks' columns give the same prompts, but for MMLU's opening sentence."""
    arc = load("arc_easy:choice", data_dir=benchmarks)
    ours = [prompt.requests for prompt in arc.prompts(arc.documents("test")[:105])]
    about = "The following are multiple choice questions (with answers) about anatomy.\n\n"
    theirs = {
        requests[0].context.removeprefix(about): requests
        for requests in _requests(load("mmlu_anatomy", data_dir=mmlu))
    }
    same = [requests for requests in ours if requests[0].context in theirs]
    assert len(same) >= 90
    for requests in same:
        other = theirs[requests[0].context]
        assert (
            [r.continuation for r in requests]
            == [r.continuation for r in other]
            == [" A", " B", " C", " D"]
        )


MULTIPLE_CHOICE = [
    "arc_easy",
    "openbookqa",
    "commonsense_qa",
    "social_iqa",
    "headqa_en",
    "sst2",
    "cola",
    "rte",
    "mrpc",
    "wic",
    "boolq",
    "piqa",
    "mathqa",
    "sciq",
]


@pytest.mark.parametrize("name", MULTIPLE_CHOICE)
def test_every_multiple_choice_task_has_both_forms(
    loaded: Callable[[str], Task], name: str
) -> None:
    cloze, choice = loaded(f"{name}:cloze"), loaded(f"{name}:choice")
    left, right = (
        cloze.prompts(cloze.documents("test")[:40]),
        choice.prompts(choice.documents("test")[:40]),
    )
    for texts, letters in zip(left, right, strict=True):
        lines = letters.text.split("\n")
        assert lines[-1] == "Answer:"
        listed = {line[0]: line[3:].strip() for line in lines[-1 - len(letters.choices) : -1]}
        assert sorted(listed.values()) == sorted(choice.strip() for choice in texts.choices)
        assert listed[letters.gold] == texts.gold.strip()
        assert [r.continuation for r in letters.requests] == [
            f" {letter}" for letter in letters.choices
        ]
        assert not any(f"A. {texts.choices[0]}" in line for line in texts.text.split("\n"))


@pytest.mark.parametrize("form", ["choice", "option_ppl", "blank_ppl"])
def test_options_that_are_the_numbers_1_to_5_are_texts_where_the_task_scores_texts(
    form: str, benchmarks: Path
) -> None:
    task = load(f"mathqa:{form}", data_dir=benchmarks)
    listed = [
        doc
        for doc in task.documents("test")
        if "a ) 1 , b ) 2 , c ) 3 , d ) 4 , e ) 5" in doc["options"]
    ]
    assert len(listed) > 10
    assert len(task.prompts(listed)) == len(listed)


def test_answer_in_a_fixed_place_is_shuffled(loaded: Callable[[str], Task]) -> None:
    task = loaded("sciq:choice")
    golds = [prompt.gold for prompt in task.prompts(task.documents("test"))]
    assert set(golds) == set("ABCD")


def test_winogrande_as_choice_fills_a_blank(loaded: Callable[[str], Task]) -> None:
    task = loaded("winogrande:choice")
    for prompt in task.prompts(task.documents("test")[:50]):
        sentence, first, second, end = prompt.text.split("\n")
        assert " ".join(sentence.split()) == " ".join(
            prompt.document["sentence"].replace("_.", "_ .").split()
        )
        assert end == "Answer:"
        assert {first[3:], second[3:]} == {prompt.document["option1"], prompt.document["option2"]}
        assert prompt.gold == "AB"[int(prompt.document["answer"]) - 1]
    stock = loaded("winogrande")
    assert _requests(loaded("winogrande:cloze")) == _requests(stock)


def test_reduction_keeps_the_answer_and_the_order(loaded: Callable[[str], Task]) -> None:
    whole, four, other = (
        loaded(f"commonsense_qa:{form}") for form in ("cloze", "cloze:4", "cloze:4:7")
    )
    documents = whole.documents("test")
    full, reduced, again = (task.prompts(task.documents("test")) for task in (whole, four, other))
    assert len(documents) == 120
    differ = 0
    for all_of_them, some, others in zip(full, reduced, again, strict=True):
        assert some.gold == all_of_them.gold
        assert len(some.choices) == 4
        left = iter(all_of_them.choices)
        assert all(choice in left for choice in some.choices)  # a subsequence
        differ += some.choices != others.choices
    assert differ > 60
    assert [
        p.choices
        for p in loaded("arc_easy:choice:9").prompts(loaded("arc_easy").documents("test")[:5])
    ]


def test_brier_score_stands_beside_accuracy(loaded: Callable[[str], Task]) -> None:
    task = loaded("arc_easy:choice")
    prompts = task.prompts(task.documents("test")[:20])
    answers = [
        [(0.0 if letter == p.gold else -30.0, True) for letter in p.choices] for p in prompts
    ]
    scores = task.score(task.grade(prompts, answers))
    assert scores["acc"].value == 1.0
    assert scores["brier_score"].value == pytest.approx(0.0, abs=1e-9)
    even = task.score(task.grade(prompts, [[(-1.0, False)] * len(p.choices) for p in prompts]))
    assert even["brier_score"].value == pytest.approx(0.75, abs=0.02)
    assert not even["brier_score"].higher_is_better


def test_examples_are_written_in_the_form(loaded: Callable[[str], Task]) -> None:
    task = loaded("arc_easy:choice")
    example = task.examples(task.documents("train")[:1])[0]
    assert example.context.endswith("\nAnswer:")
    assert example.continuation in {" A", " B", " C", " D"}
    shown = task.prompts(task.documents("test")[:1], shots=2)[0].text
    assert shown.count("\nAnswer: ") == 2
    assert shown.count("\nA. ") == 3


def test_fingerprints_tell_forms_apart(loaded: Callable[[str], Task]) -> None:
    prints = [
        loaded(f"arc_easy{form}").fingerprint
        for form in ("", ":choice", ":choice:3", ":choice:3:1")
    ]
    assert len(set(prints)) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8k:choice", "no options"),
        ("arc_easy:choice:many", "how many options"),
        ("arc_easy:cloze:1", "how many options"),
        ("arc_easy:cloze:01", "how many options"),
        ("arc_easy:choice:00", "how many options"),
        ("arc_easy:choice:4:x", "the seed 'x' is not a whole number"),
        ("winogrande:cloze:2", "cannot be reduced"),
        ("arc_easy:poem", "no prompt form"),
    ],
)
def test_impossible_forms_are_named(loaded: Callable[[str], Task], name: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        loaded(name)


def test_leaderboard_shots() -> None:
    known = {
        "mmlu": 5,
        "mmlu_anatomy": 5,
        "gsm8k": 5,
        "arc_challenge:choice": 25,
        "hellaswag:cloze": 10,
    }
    assert {name: leaderboard_shots(name) for name in known} == known
    assert leaderboard_shots("piqa") is None
