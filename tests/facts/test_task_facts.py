"""Facts of tasks: the shipped ones, the user's file, and what a study tells of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from potentia.errors import DataError
from potentia.facts import Background, Benchmark, read_benchmarks


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_facts_of_ones_own_tasks(tmp_path: Path) -> None:
    file = written(
        tmp_path / "t.csv",
        "task,category,train_size,chance,options",
        "a,Law,900,0.2,",
        "b,,,,2;4",
        "c,,,,0",
    )
    result = {b.task: b for b in read_benchmarks(file)}
    assert result["a"] == Benchmark("a", category="Law", train_size=900, chance=0.2)
    assert (result["b"].chance, result["c"].chance, result["b"].train_size) == (0.375, 0.0, None)
    background = Background.of([], tasks=result.values())
    assert background.categories["a"] == "Law"
    assert background.categories["mnli"] == "LU"  # the shipped facts stay
    assert background.train_examples["a"] == 900
    assert background.chance == {"a": 0.2, "b": 0.375, "c": 0.0}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("name,chance", "a,1"), "no column names the tasks"),
        (("task,chanse", "a,1"), "unknown column chanse"),
        (("task,chance", "a,1.5"), "'1.5' is not a share"),
        (("task,chance", "a,half"), "'half' is not a share"),
        (("task,options", "a,1"), "'1' is not a number of options"),
        (("task,options", "a,01"), "'01' is not a number of options"),
        (("task,train_size", "a,many"), "'many' is not a number"),
        (("task", "a", "a"), "a appears twice"),
        (("task,category", ",x"), "a task has no name"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_benchmarks(written(tmp_path / "t.csv", *lines))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_benchmarks(tmp_path / "nothing.csv")
