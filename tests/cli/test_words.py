"""What people type and read: commands in the order of use, other tools' names, hints that can be pasted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import tiny
from potentia.cli.app import COMMAND_PANELS, app, repeat_flags


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_help_is_in_the_order_of_use() -> None:
    text = shown("--help")
    places = [text.index(f"─ {panel} ") for panel in COMMAND_PANELS]
    assert places == sorted(places)
    for panel, names in COMMAND_PANELS.items():
        part = text[text.index(f"─ {panel} ") :].partition("╰")[0]
        listed = [
            line.split()[1]
            for line in part.splitlines()[1:]
            if line.startswith("│ ") and line[2] != " "
        ]
        assert listed == list(names)
    assert "─ Commands " not in text, "a command without a panel"


def test_the_options_of_a_long_command_are_in_parts() -> None:
    for command, parts in {
        ("run",): [
            "Options",
            "Your data",
            "Budget",
            "Machine and settings",
            "Every command",
        ],
        ("analyze", "rankings"): ["Options", "Every command"],
    }.items():
        text = shown(*command, "--help")
        assert all(f"─ {part} ─" in text for part in parts), text
    before = shown("run", "--help").partition("─ Your data ")[0]
    assert "--models" in before
    assert "--protocols" in before


def test_singular_options_are_accepted(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "m")
    tiny.save_questions(tmp_path / "q.jsonl")
    given = [
        "run",
        "--dry-run",
        "--model",
        str(tmp_path / "m"),
        "--task",
        str(tmp_path / "q.jsonl"),
    ]
    given += ["--device", "cpu", "--store", str(tmp_path / "s.db")]
    assert repeat_flags(typer.main.get_command(app), given) == given
    assert "Plan of study" in shown(*given)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("rankings scores.csv", "potentia analyze rankings"),
        ("analyze scores.csv", "potentia analyze rankings scores.csv"),
        ("compair A B", "potentia compare"),
        ("run scores.csv", "potentia report scores.csv"),
        ("compare A scores.csv", "potentia compare A B scores.csv"),
        ("report", "run a study first"),
        ("analyze benchmark scores.csv x", "hint: potentia analyze benchmark x scores.csv"),
        ("analyze benchmark scores.csv", "hint: potentia analyze benchmark TASK scores.csv"),
        (
            "papers reproduce train-before-test all_results.json",
            "notebooks/all_results.json of github.com/socialfoundations/lm-harmony"
            " (docs/reproduce.md#get-the-score-files)",
        ),
        (
            "run --checkpoints nope --tasks q",
            "--checkpoints: nope is neither a folder nor a repository of the hub\n  hint: name",
        ),
        ("run --checkpoints . --tasks q", "--checkpoints: . holds no checkpoint"),
        ("run first.yaml", "potentia run --save first.yaml"),
    ],
)
def test_a_likely_mistake_is_told_with_its_mend(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scores.csv").write_text("model,task,value\nA,x,0.5\nB,x,0.4\n")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, line.split(), prog_name="potentia", env={"COLUMNS": "200"})
    assert result.exit_code != 0
    assert told in f"{result.output} {result.exception}"


def test_the_help_names_the_file_that_the_readme_names() -> None:
    line = "potentia papers reproduce train-before-test all_results.json"
    assert line in (Path(__file__).parents[2] / "README.md").read_text()
    assert line in shown("papers", "reproduce", "--help")


def test_scores_stand_before_or_after_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scores.csv").write_text("model,task,value\nA,x,0.5\nB,x,0.4\n")
    monkeypatch.chdir(tmp_path)
    assert "A against B" in shown("compare", "scores.csv", "A", "B")
    assert shown("compare", "A", "B", "scores.csv") == shown("compare", "scores.csv", "A", "B")


def test_hints_quote_paths_with_spaces(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "m")
    study = tmp_path / "my study.yaml"
    text = shown(
        "run", "--save", str(study), "--models", str(tmp_path / "m"), "--tasks", "arc_easy"
    )
    assert f"potentia run {shlex.quote(str(study))}" in text


def test_the_terminal_writes_signs_as_the_page_does(tmp_path: Path) -> None:
    """Tables printed "-0.01" and remarks "95%" beside "−1.4" and "95 %" in the sentences below them."""
    source = Path(__file__).resolve().parents[2] / "examples" / "real-models.csv"
    printed = shown("papers", "test-task", str(source))
    assert "−0.014 to +0.011" in printed
    assert not re.search(r"(?<![\w.])-\d", printed)
    assert not re.search(r"\d%", printed)
    scores = ["model,arc_easy,boolq"]
    facts = ["model,family,kind,params_b"]
    for number, family in enumerate("abcd"):
        for size in (1, 7):
            scores.append(f"{family}-{size},{0.2 + number / 10},{0.3 + number / 10}")
            facts.append(f"{family}-{size},{family},base,{size}")
    scores += [f"run@{step},{0.2 + step / 1e5},{0.3 + step / 1e5}" for step in (1000, 2000, 4000)]
    (tmp_path / "s.csv").write_text("\n".join(scores))
    (tmp_path / "f.csv").write_text("\n".join(facts))
    remarks = shown(
        "analyze", "checkpoints", str(tmp_path / "s.csv"), "--facts", str(tmp_path / "f.csv")
    )
    assert "100 % of the pairs" in remarks
    assert not re.search(r"\d%", remarks)
