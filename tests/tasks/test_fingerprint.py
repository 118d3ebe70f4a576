"""Fingerprints: change with anything that can change a score, not with the order of keys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potentia import tasks
from potentia.tasks.free_text import grade_free_text
from potentia.tasks.harness import fingerprint_definition

CONFIG: dict[str, Any] = {
    "task": "t",
    "doc_to_text": "{{a}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean"}],
    "target_delimiter": " ",
    "process_results": grade_free_text,
}
DOCS = [("test", i, {"a": f"text {i}", "b": [1, 2], "c": {"x": 1.5, "y": None}}) for i in range(4)]


def shuffled(value: Any, order: Any) -> Any:
    if isinstance(value, dict):
        keys = order.sample(list(value), len(value))
        return {key: shuffled(value[key], order) for key in keys}
    return [shuffled(v, order) for v in value] if isinstance(value, list) else value


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_plays_no_part(order: Any) -> None:
    docs = [(split, number, shuffled(doc, order)) for split, number, doc in DOCS]
    assert fingerprint_definition(shuffled(CONFIG, order), docs) == fingerprint_definition(
        CONFIG, DOCS
    )


@pytest.mark.parametrize(
    "change",
    [
        {"doc_to_text": "{{a}} "},
        {"target_delimiter": ""},
        {"metric_list": [{"metric": "acc_norm", "aggregation": "mean"}]},
        {"process_results": shuffled},
        {"fewshot_delimiter": "\n"},
        {"form": "choice"},
    ],
)
def test_a_change_of_the_definition_shows(change: dict[str, Any]) -> None:
    assert fingerprint_definition({**CONFIG, **change}, DOCS) != fingerprint_definition(
        CONFIG, DOCS
    )


def test_where_the_data_lie_does_not_show() -> None:
    assert fingerprint_definition(
        {**CONFIG, "dataset_path": "x/y"}, DOCS
    ) == fingerprint_definition(CONFIG, DOCS)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.sampled_from(["a", "split", "id", "drop", "extra"]))
def test_a_change_of_the_data_shows(place: int, what: str) -> None:
    docs = [(split, number, dict(doc)) for split, number, doc in DOCS]
    split, number, doc = docs[place]
    if what == "drop":
        del docs[place]
    elif what == "split":
        docs[place] = ("train", number, doc)
    elif what == "id":
        docs[place] = (split, number + 10, doc)
    else:
        doc[what] = "other"
    assert fingerprint_definition(CONFIG, docs) != fingerprint_definition(CONFIG, DOCS)


@pytest.mark.shared
def test_seed_caps_and_carve_show(benchmarks: Path) -> None:
    def of(**options: Any) -> str:
        return tasks.load("rte", data_dir=benchmarks, **options).fingerprint

    prints = [
        of(),
        of(seed=1),
        of(carve=0.3),
        of(caps=tasks.Caps(train=100)),
        of(caps=tasks.Caps(test=100)),
    ]
    assert len(set(prints)) == len(prints)


@pytest.mark.shared
def test_the_same_in_another_process(benchmarks: Path) -> None:
    names = ["winogrande", "arc_easy:choice:3"]
    code = (
        "from pathlib import Path; from potentia import tasks\n"
        f"for name in {names}: print(tasks.load(name, data_dir=Path({str(benchmarks)!r})).fingerprint)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [
        tasks.load(name, data_dir=benchmarks).fingerprint for name in names
    ]


def test_a_task_folder_may_be_moved(tmp_path: Path) -> None:
    from potentia import zoo

    places = [zoo.write_task_files(tmp_path / name)["ask"] for name in ("here", "there")]
    assert places[0].read_text() != places[1].read_text(), "the definition names its files"
    first, second = (tasks.load(str(place)) for place in places)
    assert first.fingerprint == second.fingerprint
