"""The command on plain score tables: protocols, steps of the adjustment, facts, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from potentia.cli.app import app
from potentia.errors import InputError


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Twenty-four models; the newer half scores 0.1 more directly, and nothing more after adjustment."""
    rng = np.random.default_rng(0)
    x = rng.uniform(20, 24, 24)
    newer = np.arange(24) % 2 == 1
    points = {"direct": 22.0, "adjust@10": 21.5, "adjust@100": 21.0, "adjust": 20.5}
    lines = ["protocol,model,benchmark,score,stderr"]
    for protocol, c in points.items():
        scores = 0.25 + 0.1 * np.maximum(0, x - c) + 0.1 * newer * (protocol == "direct")
        scores += rng.normal(scale=0.005, size=24)
        lines += [f"{protocol},m{i},mmlu,{score},0.01" for i, score in enumerate(scores)]
    table, facts = tmp_path / "scores.csv", tmp_path / "facts.csv"
    table.write_text("\n".join(lines))
    rows = [f"m{i},f{i % 6},{10 ** x[i]},{'2024-01' if newer[i] else '2022-01'}" for i in range(24)]
    facts.write_text("\n".join(["model,family,compute,trained", *rows]))
    return table, facts


def _run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["papers", "test-task", *arguments, "--json"])
    if result.exception:
        raise result.exception
    printed: dict[str, object] = json.loads(result.stdout)
    return printed


def test_effect_vanishes_and_emergence_moves(files: tuple[Path, Path], tmp_path: Path) -> None:
    result = _run(
        str(files[0]),
        "--facts",
        str(files[1]),
        "--figures",
        str(tmp_path / "figures"),
    )
    adjustment = result["mmlu-adjustment"]
    assert adjustment["before"]["fit"]["effect"]["value"] == pytest.approx(0.1, abs=0.02)  # type: ignore[index]
    assert abs(adjustment["after"]["fit"]["effect"]["value"]) < 0.01  # type: ignore[index]
    curve = result["mmlu-emergence"]
    assert curve["examples"] == [0, 640, 6400]  # type: ignore[index]
    falling = [fit["emergence"]["value"] for fit in curve["hinges"]]  # type: ignore[index]
    assert falling == sorted(falling, reverse=True)
    assert (tmp_path / "figures" / "mmlu-frontier-after.png").stat().st_size > 1000


def test_few_models_have_an_effect_but_no_curve_of_emergence(files: tuple[Path, Path]) -> None:
    header, *lines = files[0].read_text().splitlines()
    few = [line for line in lines if int(line.split(",")[1][1:]) < 14]
    files[0].write_text("\n".join([header, *few]))
    result = _run(str(files[0]), "--facts", str(files[1]))
    assert "mmlu-adjustment" in result
    assert "mmlu-emergence" not in result
    arguments = ["papers", "test-task", str(files[0]), "--facts", str(files[1])]
    printed = CliRunner().invoke(app, arguments)
    reason = "no emergence curve: it needs 8 models outside the group, here: 7"
    assert reason in " ".join(printed.output.split())


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--protocols", "direct", "--protocols", "few_shot:5"], "no scores by few_shot:5"),
        (["--protocols", "direct"], "takes two here"),
        (["--group", "colour=red"], "no column"),
        (["--group", "2030-01"], "one side"),
        (["--facts", "nowhere.csv"], "cannot be read"),
    ],
)
def test_bad_input_names_the_fix(files: tuple[Path, Path], extra: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        _run(str(files[0]), "--facts", str(files[1]), *extra)
    assert isinstance(error.value, InputError)


def test_models_without_facts_are_named(files: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match="known compute"):
        _run(str(files[0]))


def test_copies_are_answered_first_and_single_tasks_stay_in_json(tmp_path: Path) -> None:
    source = str(Path(__file__).parents[2] / "examples" / "real-models.csv")
    result = CliRunner().invoke(app, ["papers", "test-task", source])
    assert result.exit_code == 0, result.output
    printed = result.stdout
    assert (
        "score 13.5 points more than their originals on these tasks before fine-tuning" in printed
    )
    assert "0.1 points less after it (95 % interval −1.4 to +1.1)" in printed
    assert "arc_easy: gain" not in printed
    assert result.stderr.count("no training date known") == 1  # once, not for every task
    assert "arc_easy-gain" in _run(source)
