"""``potentia tasks``: what it prints, and that it is light and quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from potentia.cli.app import app
from potentia.errors import TaskError

from .conftest import BENCHMARKS

runner = CliRunner()


def test_the_list() -> None:
    printed = runner.invoke(app, ["tasks"])
    assert printed.exit_code == 0
    for word in (
        "mnli",
        "headqa_en",
        "paws_en",
        "mmlu",
        "leaderboard_musr",
        "exact_match|flexible-extract",
    ):
        assert word in printed.output
    listed = json.loads(runner.invoke(app, ["tasks", "--json"]).output)
    assert len(listed) == 43
    everything = json.loads(runner.invoke(app, ["tasks", "--all", "--json"]).output)
    assert everything["arc_easy"] == {"kind": "task", "file": "arc/arc_easy.yaml"}
    assert len(everything) > 10_000


@pytest.mark.shared
@pytest.mark.parametrize("name", ["arc_easy", "winogrande", "gsm8k", "nq_open"])
def test_show(name: str, benchmarks: Path) -> None:
    arguments = ["tasks", name, "--data-dir", str(benchmarks)]
    printed = runner.invoke(app, arguments)
    assert printed.exit_code == 0, printed.output
    assert printed.output.count("→") == 3
    result = json.loads(runner.invoke(app, [*arguments, "--json"]).output)
    assert (
        tuple(result["splits"][s]["used"] for s in ("train", "validation", "test"))
        == BENCHMARKS[name]
    )
    assert len(result["examples"]) == 3
    first = next(line for line in printed.output.splitlines() if "→" in line)
    assert result["examples"][0]["gold"].splitlines()[0] in first


@pytest.mark.shared
def test_show_marks_the_right_answer(benchmarks: Path) -> None:
    printed = runner.invoke(app, ["tasks", "arc_easy", "--data-dir", str(benchmarks)]).output
    assert "→ Sunlight is the source of energy for nearly all ecosystems." in printed
    assert "→ breathing mask" in printed


def test_a_bad_name_is_an_input_error() -> None:
    result = runner.invoke(app, ["tasks", "arc_esy"])
    assert isinstance(result.exception, TaskError)


@pytest.mark.shared
def test_show_loads_no_torch(benchmarks: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from potentia.cli.app import app\n"
        f"out = CliRunner().invoke(app, ['tasks', 'rte', '--data-dir', {str(benchmarks)!r}])\n"
        "assert out.exit_code == 0, out.output\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
