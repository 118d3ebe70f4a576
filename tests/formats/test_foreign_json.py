"""Every reader of a foreign JSON, with a value of every other type at every key: read, or refused with a DataError."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from potentia.errors import DataError, InputError
from potentia.evidence import read

OTHER_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0.5,
    10**400,
    float("nan"),
    "",
    "text",
    "N/A",
    "[1, {}]",
    "\ud800",
    [],
    [1],
    ["text"],
    [None, {}],
    [[]],
    {},
    {"text": 1},
    {"name": []},
)
DEPTHS = (90, 900, 3_000, 100_000)
Change = tuple[
    tuple[str | int, ...], Any
]  # the keys that lead to a value, and what stands there instead

LM_EVAL = {
    "results": {
        "mmlu": {"alias": "mmlu", "acc,none": 0.5, "acc_stderr,none": 0.1},
        "mmlu_x": {"acc,none": 0.5, "acc_stderr,none": "N/A"},
        "gsm8k": {"exact_match,strict-match": 0.5, "exact_match_stderr,strict-match": 0.1},
    },
    "groups": {"mmlu": {"acc,none": 0.5}},
    "group_subtasks": {"mmlu": ["mmlu_x"], "gsm8k": []},
    "configs": {"mmlu_x": {"num_fewshot": 5, "output_type": "multiple_choice"}},
    "n-shot": {"mmlu": 5, "gsm8k": 0},
    "n-samples": {"mmlu": {"original": 10, "effective": 10}, "gsm8k": {"effective": 2}},
    "higher_is_better": {"mmlu": {"acc": True}},
    "config": {"model": "hf", "model_args": {"pretrained": "gpt2", "peft": "x"}, "num_fewshot": 1},
    "model_name": "gpt2",
    "potentia": {
        "protocol": "direct",
        "scores": {
            "gsm8k": {
                "metric": "exact_match",
                "metric_kind": "task",
                "metric_scale": "share",
                "chance": 0.1,
                "seeds": "0.5;0.25",
                "data_fingerprint": "abc",
                "source": "here",
            }
        },
    },
}
LM_EVAL_SAMPLES = [
    {"doc_hash": "a", "doc": {"q": 1}, "filter": "strict-match", "exact_match": 1.0},
    {"doc": {"q": 2}, "filter": "strict-match", "exact_match": 0.0},
]
LIGHTEVAL = {
    "config_general": {"model_name": "m", "model_config": {"model_name": "org/a"}},
    "results": {
        "gsm8k|5": {"extractive_match": 0.5, "extractive_match_stderr": 0.2},
        "lighteval|mmlu:anatomy|0": {"acc": 0.25, "acc_stderr": 0.01},
        "lighteval|mmlu:_average|0": {"acc": 0.3, "acc_stderr": 0.01},
        "all": {"acc": 0.3},
    },
    "config_tasks": {
        "gsm8k|5": {
            "metrics": [{"metric_name": "extractive_match", "higher_is_better": True}],
            "effective_num_docs": 4,
        }
    },
}
INSPECT = {
    "status": "success",
    "eval": {"task": "inspect_evals/arc", "model": "openai/x", "task_args": {"fewshot": 5}},
    "results": {
        "completed_samples": 2,
        "headline": {"score": "choice", "metric": "accuracy"},
        "scores": [
            {
                "name": "choice",
                "scored_samples": 2,
                "metrics": {"accuracy": {"value": 0.5}, "stderr": {"value": 0.1}},
            }
        ],
    },
    "samples": [
        {"input": "q", "target": "A", "scores": {"choice": {"value": "C"}}},
        {"input": [{"role": "user"}], "target": ["B"], "scores": {"choice": {"value": "I"}}},
    ],
}
EVERY_EVAL_EVER = {
    "schema_version": "0.3.0",
    "eval_library": {"name": "potentia", "additional_details": {}},
    "model_info": {"id": "org/a"},
    "evaluation_results": [
        {
            "evaluation_result_id": "direct.arc",
            "evaluation_name": "arc",
            "metric_config": {
                "metric_id": "acc",
                "metric_name": "acc",
                "lower_is_better": False,
                "min_score": 0.0,
                "max_score": 1.0,
            },
            "score_details": {
                "score": 0.5,
                "details": {
                    "protocol": "few_shot:5",
                    "shots": "5",
                    "seeds": "0.5",
                    "chance": "0.25",
                },
                "uncertainty": {"standard_error": {"value": 0.1}, "num_samples": 2},
            },
        }
    ],
}
EVERY_EVAL_EVER_SAMPLES = [
    {"evaluation_result_id": "direct.arc", "sample_hash": "a", "evaluation": {"score": 1.0}},
    {"evaluation_name": "arc", "input": {"raw": "q"}, "evaluation": {"score": 0.0}},
]
EUROEVAL_OLD = [
    {
        "dataset": "scala-da",
        "model": "m",
        "few_shot": True,
        "results": {"raw": [], "total": {"test_mcc": 40.0, "test_mcc_se": 1.96}},
    }
]
EUROEVAL_NEW = [
    {
        "schema_version": "0.3.0",
        "model_info": {"id": "m"},
        "eval_library": {
            "name": "euroeval",
            "additional_details": {
                "dataset": "scala-da",
                "few_shot": "true",
                "raw_results": [{"test_mcc": 0.4}, {"mcc": 0.5}],
            },
        },
        "evaluation_results": [
            {
                "evaluation_name": "test_mcc",
                "source_data": {"dataset_name": "scala-da"},
                "score_details": {"score": 45.0},
            }
        ],
    }
]
PAPER = {
    "train_before_test": {"mnli": {"a": 0.9}},
    "train_before_test_stderr": {"mnli": {"a": 0.1}},
    "direct_eval": {"mnli": {"a": 0.5}},
}
TIDY = [
    {
        "protocol": "direct",
        "model": "m",
        "benchmark": "arc",
        "score": 0.5,
        "stderr": 0.1,
        "n": 10,
        "metric": "acc",
        "higher_is_better": True,
        "shots": 5,
        "seeds": "0.5",
    },
    {"model": "k", "benchmark": "arc", "score": 0.4},
]
WIDE = [{"model": "m", "arc": 0.5, "arc_stderr": 0.1, "mmlu": 50.0}, {"model": "k", "arc": "0.4"}]
TRANSPOSED = [{"task": "arc", "metric": "acc", "m": 0.5, "k": 0.4}, {"task": "mmlu", "m": 0.1}]

# What is changed, the file that it is written to, and the file beside it.
READERS: dict[str, tuple[Any, str, tuple[str, Any] | None]] = {
    "lm-eval": (LM_EVAL, "results_1.json", ("samples_gsm8k_1.jsonl", LM_EVAL_SAMPLES)),
    "lm-eval samples": (LM_EVAL_SAMPLES, "samples_gsm8k_1.jsonl", ("results_1.json", LM_EVAL)),
    "lighteval": (LIGHTEVAL, "results.json", None),
    "inspect": (INSPECT, "log.json", None),
    "every eval ever": (
        EVERY_EVAL_EVER,
        "run.json",
        ("run_samples.jsonl", EVERY_EVAL_EVER_SAMPLES),
    ),
    "every eval ever samples": (
        EVERY_EVAL_EVER_SAMPLES,
        "run_samples.jsonl",
        ("run.json", EVERY_EVAL_EVER),
    ),
    "euroeval, old": (EUROEVAL_OLD, "records.jsonl", None),
    "euroeval, new": (EUROEVAL_NEW, "records.jsonl", None),
    "paper": (PAPER, "scores.json", None),
    "tidy records": (TIDY, "scores.json", None),
    "wide records": (WIDE, "scores.jsonl", None),
    "transposed records": (TRANSPOSED, "scores.json", None),
}


def paths_in(tree: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Give the keys that lead to every value of a JSON tree, the tree itself first."""
    yield above
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from paths_in(value, (*above, key))
    elif isinstance(tree, list):
        for position, value in enumerate(tree):
            yield from paths_in(value, (*above, position))


def changed(tree: Any, changes: list[Change]) -> Any:
    """Return a copy of a tree with other values at some places; a place that is gone by then is left."""
    root = [copy.deepcopy(tree)]
    for keys, value in changes:
        node: Any = root
        for key in (0, *keys[:-1]) if keys else ():
            try:
                node = node[key]
            except (KeyError, IndexError, TypeError):
                break
        try:
            node[keys[-1] if keys else 0] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):
            continue
    return root[0]


def write_json(path: Path, tree: Any) -> None:
    """Write a tree as JSON, or each of its elements as a line."""
    lines = tree if path.suffix == ".jsonl" and isinstance(tree, list) else [tree]
    path.unlink(
        missing_ok=True
    )  # a file that is cut to nothing and written anew waits for the disk
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def check_reading(path: Path, story: object) -> None:
    """Read a file; anything but an answer or a DataError fails the test."""
    for options in ({}, {"subtasks": True}, {"metric": "acc"}):
        try:
            evidence = read(path, **options)
            tables = evidence.table_layout.tables() if evidence.table_layout else ()
            f"{evidence.scores} {evidence.notes} {tables}".encode()  # as a terminal would
        except DataError:
            continue
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} after {story!r:.300}") from error


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path, Path]:
    """A sound tree, the file to write it to, and the file to read."""
    tree, name, beside = READERS[request.param]
    if beside is not None:
        write_json(tmp_path / beside[0], beside[1])
    samples = "samples" in name and beside is not None
    return tree, tmp_path / name, tmp_path / beside[0] if samples else tmp_path / name


def test_the_sound_files_are_read(reader: tuple[Any, Path, Path]) -> None:
    tree, file, read_from = reader
    write_json(file, tree)
    assert read(read_from).scores


def test_a_value_of_another_type_at_every_key(reader: tuple[Any, Path, Path]) -> None:
    tree, file, read_from = reader
    for keys in paths_in(tree):
        for value in OTHER_VALUES:
            write_json(file, changed(tree, [(keys, value)]))
            check_reading(read_from, (keys, value))


def test_several_values_of_other_types(reader: tuple[Any, Path, Path]) -> None:
    tree, file, read_from = reader
    dice = random.Random(20261118)
    everywhere = list(paths_in(tree))
    for _ in range(150):
        changes = [
            (dice.choice(everywhere), dice.choice(OTHER_VALUES)) for _ in range(dice.randint(2, 4))
        ]
        write_json(file, changed(tree, changes))
        check_reading(read_from, changes)


@pytest.mark.parametrize("depth", DEPTHS)
def test_deep_nesting_at_every_key(reader: tuple[Any, Path, Path], depth: int) -> None:
    tree, file, read_from = reader
    for keys in paths_in(tree):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            write_json(file, changed(tree, [(keys, "DEEP")]))
            nested = opening * depth + "1" + closing * depth
            file.write_text(file.read_text().replace('"DEEP"', nested))
            check_reading(read_from, (keys, depth))


@pytest.mark.parametrize("word", ["lower", "scale", "kind", "skip", "metric"])
def test_a_value_of_another_type_in_the_file_of_columns(tmp_path: Path, word: str) -> None:
    table = tmp_path / "scores.csv"
    table.write_text("model,arc,mmlu\na,0.5,50\nb,0.4,40\n")
    for value in OTHER_VALUES:
        words = json.dumps({"arc": {word: value}}) if value != "\ud800" else "arc: {scale: x}"
        (tmp_path / "scores.columns.yaml").write_text(words)
        try:
            read(table)
        except InputError:
            continue
