"""What people type and read: commands in the order of use, other tools' names, hints that can be pasted."""

from __future__ import annotations

import shlex
from pathlib import Path

from typer.testing import CliRunner

import tiny
from potentia.cli.app import PANELS, app, expand_many


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_help_is_in_the_order_of_use() -> None:
    text = shown("--help")
    places = [text.index(f"─ {panel} ") for panel in PANELS]
    assert places == sorted(places)
    for panel, names in PANELS.items():
        part = text[text.index(f"─ {panel} ") :].partition("╰")[0]
        listed = [line.split()[1] for line in part.splitlines()[1:] if line.startswith("│ ") and line[2] != " "]
        assert listed == list(names)
    assert "─ Commands " not in text, "a command without a panel"


def test_the_options_of_a_long_command_are_in_parts() -> None:
    for command, parts in {
        ("run",): ["Options", "Data and fine-tuning", "Machine", "Adaptive", "Consent", "What comes out"],
        ("analyze", "rankings"): ["Options", "What is read", "What comes out"],
    }.items():
        text = shown(*command, "--help")
        assert all(f"─ {part} ─" in text for part in parts), text
    before = shown("run", "--help").partition("─ Data and fine-tuning ")[0]
    assert "--models" in before
    assert "--protocols" in before


def test_eval_and_singular_options_are_accepted(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "m")
    tiny.save_questions(tmp_path / "q.jsonl")
    import typer

    command = typer.main.get_command(app)
    given = [
        "eval",
        "--model",
        str(tmp_path / "m"),
        "--task",
        str(tmp_path / "q.jsonl"),
        "--dry-run",
        "--device",
        "cpu",
    ]
    given += ["--store", str(tmp_path / "s.db")]
    assert expand_many(command, given) == given
    assert "Plan of study" in shown(*given)


def test_hints_quote_paths_with_spaces(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "m")
    study = tmp_path / "my study.yaml"
    text = shown("init", str(study), "--models", str(tmp_path / "m"), "--tasks", "arc_easy")
    assert f"potentia run {shlex.quote(str(study))}" in text
