"""Several values after one flag, and sources wherever they stand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import typer

from potentia.cli.app import FLAGS_WITH_FILES, app, repeat_flags

RANKINGS = ["analyze", "rankings"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scores.csv", "more.csv", "study.yaml", "q.jsonl", "own.yaml", "potentia.db"):
        (tmp_path / name).write_text("")
    (tmp_path / "boolq").mkdir()  # a folder with a benchmark's name
    monkeypatch.chdir(tmp_path)


@cache
def commands():
    """The command line, made once: it takes a tenth of a second."""
    return typer.main.get_command(app)


def parsed(arguments: str | list[str]) -> tuple[list[str], dict[str, object]]:
    """The command's own arguments and its options, as click reads them."""
    root = commands()
    rest = repeat_flags(root, arguments.split() if isinstance(arguments, str) else arguments)
    command = root
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    context = command.make_context("x", rest, resilient_parsing=True)
    own = next(p.name for p in command.params if p.param_type_name == "argument")
    options = {
        name: list(v) if isinstance(v, (list, tuple)) else v for name, v in context.params.items()
    }
    sources = options[own] if isinstance(options[own], list) else [options[own]]
    return [str(source) for source in sources if source is not None], options


@pytest.mark.parametrize(
    "line",
    [
        "analyze rankings scores.csv --tasks x y",
        "analyze rankings --tasks x y scores.csv",
        "analyze rankings --tasks x y --json scores.csv",
        "analyze rankings --tasks x y scores.csv --json",
        "analyze rankings --tasks x --tasks y scores.csv",
        "analyze rankings --tasks x y -- scores.csv",
        "analyze rankings --show outlook --tasks x y scores.csv",
    ],
)
def test_a_source_stands_where_one_likes(line: str):
    sources, options = parsed(line)
    assert sources == ["scores.csv"]
    assert options["tasks"] == ["x", "y"]


@pytest.mark.parametrize("flag", ["--protocol", "--protocols"])
def test_every_name_of_an_option_takes_several(flag: str):
    sources, options = parsed(f"analyze rankings {flag} direct adjust scores.csv")
    assert (sources, next(options[k] for k in options if k.startswith("protocol"))) == (
        ["scores.csv"],
        ["direct", "adjust"],
    )
    sources, options = parsed(f"analyze rankings scores.csv {flag} direct adjust")
    assert (sources, next(options[k] for k in options if k.startswith("protocol"))) == (
        ["scores.csv"],
        ["direct", "adjust"],
    )


def test_several_sources_may_come_last():
    sources, options = parsed("analyze rankings --tasks x boolq scores.csv more.csv")
    assert (sources, options["tasks"]) == (["scores.csv", "more.csv"], ["x", "boolq"])
    sources, _ = parsed("analyze rankings --tasks x postgresql+psycopg://me@host/name")
    assert sources == ["postgresql+psycopg://me@host/name"]


def test_after_a_source_all_values_are_the_flags():
    """A benchmark stays one, although a folder has its name."""
    sources, options = parsed("analyze rankings scores.csv --tasks x boolq")
    assert (sources, options["tasks"]) == (["scores.csv"], ["x", "boolq"])


def test_a_source_that_is_not_there_is_told_by_its_name():
    sources, options = parsed("analyze rankings --tasks x y nowhere.csv")
    assert (sources, options["tasks"]) == (["nowhere.csv"], ["x", "y"])


def test_a_flag_keeps_at_least_one_value():
    sources, options = parsed("analyze rankings --tasks scores.csv")
    assert (sources, options["tasks"]) == (["potentia.db"], ["scores.csv"])


@pytest.mark.parametrize(
    ("line", "study", "tasks"),
    [
        ("run --models ./m --tasks q.jsonl own.yaml", [], ["q.jsonl", "own.yaml"]),
        ("run study.yaml --tasks q.jsonl own.yaml", ["study.yaml"], ["q.jsonl", "own.yaml"]),
        ("run --tasks q.jsonl --protocols direct adjust study.yaml", ["study.yaml"], ["q.jsonl"]),
        ("run --tasks q.jsonl own.yaml -- study.yaml", ["study.yaml"], ["q.jsonl", "own.yaml"]),
        ("run --tasks q.jsonl --set seed=1 seeds=2 study.yaml", ["study.yaml"], ["q.jsonl"]),
    ],
)
def test_models_and_tasks_of_a_run_may_be_files(line: str, study: list[str], tasks: list[str]):
    sources, options = parsed(line)
    assert (sources, options["tasks"]) == (study, tasks)


def test_a_model_in_a_folder_is_not_the_file_of_a_new_study():
    file, options = parsed("run --save new.yaml --models ./m boolq --tasks arc_easy")
    assert (file, options["models"]) == ([], ["./m", "boolq"])


def test_every_option_of_several_values_takes_them():
    """Whatever the command: two values after the flag, then its own arguments."""
    root = commands()

    def walk(command, path):
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, [*path, name])
        if not hasattr(command, "commands"):
            yield path, command

    tried = 0
    for path, command in walk(root, []):
        if not any(p.param_type_name == "argument" for p in command.params):
            continue
        for option in (p for p in command.params if getattr(p, "multiple", False)):
            for flag in option.opts:
                values = ["one", "two"]
                for arguments in (["scores.csv", flag, *values], [flag, *values, "scores.csv"]):
                    if flag in FLAGS_WITH_FILES.get(path[0], ()) and arguments[-1] == "scores.csv":
                        continue  # their own values may be files
                    sources, options = parsed([*path, *arguments])
                    assert (sources, options[option.name]) == (["scores.csv"], values), (
                        path,
                        arguments,
                    )
                    tried += 1
    assert tried > 30
