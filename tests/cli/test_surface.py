"""The command line is small: few commands, few options, flags as flags, and old names that say the new ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from potentia.cli.app import app
from potentia.cli.old_names import NEW_COMMANDS, NEW_OPTIONS

MAX_VISIBLE_COMMANDS = 15
MAX_OPTIONS = 145
EVERYWHERE = {"--json", "--quiet", "--verbose"}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


def options_of(command: Any) -> set[str]:
    return {
        parameter.opts[0]
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.opts[0] != "--help"
    }


def test_there_are_few_commands_and_options() -> None:
    root = typer.main.get_command(app)
    assert len(root.commands) <= MAX_VISIBLE_COMMANDS  # type: ignore[attr-defined]
    count = len(EVERYWHERE)  # the same three in every command count once
    for _, command in commands(root):
        count += len(options_of(command) - EVERYWHERE)
    assert count <= MAX_OPTIONS


def test_every_command_can_be_quiet_and_verbose_and_speak_json() -> None:
    for path, command in commands(typer.main.get_command(app)):
        assert options_of(command) >= EVERYWHERE, path


def test_no_help_shows_a_flag_with_a_value() -> None:
    pages = {path for path, _ in commands(typer.main.get_command(app))}
    groups = {path[:-1] for path in pages}
    for path in sorted(pages | groups):
        invocation = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "160"})
        assert invocation.exit_code == 0, path
        assert "<bool>" not in invocation.output, path


@pytest.mark.parametrize("old", NEW_COMMANDS, ids=" ".join)
def test_an_old_command_says_its_new_name_in_one_line(potentia, old: tuple[str, ...]) -> None:
    done = potentia(*old, "scores.csv")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"error: `potentia {' '.join(old)}` is now: {NEW_COMMANDS[old]}\n"


@pytest.mark.parametrize("old", NEW_OPTIONS)
def test_an_old_option_says_its_new_name_in_one_line(potentia, old: str) -> None:
    done = potentia("analyze", "exposure", "potentia.db", old, "x")
    assert done.returncode == 2
    assert done.stderr == f"error: {old} is now: {NEW_OPTIONS[old]}\n"


def test_every_new_name_is_there() -> None:
    root = typer.main.get_command(app)
    paths = {path for path, _ in commands(root)}
    for text in NEW_COMMANDS.values():
        words = [word for word in text.split()[1:] if not word.startswith("-")]
        assert tuple(words[:1]) in paths or tuple(words[:2]) in paths, text


def test_quiet_leaves_the_answer_alone_and_errors_are_still_said(potentia, tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("Model,arc_easy\na,0.5\nb,0.4\n")
    loud = potentia("analyze", "rankings", "scores.csv")
    quiet = potentia("analyze", "rankings", "scores.csv", "--quiet")
    assert "How the table was read" in loud.stderr
    assert quiet.stderr == ""
    assert quiet.stdout.startswith("a has the best score of 2 models"), "sentences, and no table"
    assert set(quiet.stdout.splitlines()) < set(loud.stdout.splitlines())
    report = potentia("report", "scores.csv")
    assert report.stdout.splitlines()[0].startswith("a has the best score of 2 models")
    assert report.stdout.splitlines()[1].startswith("Report: report.html (")
    assert "no such file" in potentia("report", "nowhere.csv", "-q").stderr
    both = potentia("analyze", "rankings", "scores.csv", "-q", "-v")
    assert both.returncode == 2


def test_no_help_shows_a_type_of_python() -> None:
    for path, _ in commands(typer.main.get_command(app)):
        invocation = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "160"})
        assert not re.search(r"<(str|path|int|float|list\[.*?\])>", invocation.output), path
