"""The benchmark author's story: a benchmark of pure noise is dropped, a real one is kept, by the real command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from potentia.cli.app import app


def test_noise_is_dropped_and_a_real_benchmark_is_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    skill = np.linspace(0.35, 0.75, 12)
    lines = ["model,task,protocol,score,stderr,n"]
    for task in ("real", "other", "third", "fourth", "noise"):
        share = np.full(12, 0.25) if task == "noise" else skill
        for k, value in enumerate(rng.binomial(400, share) / 400):
            lines.append(f"m{k},{task},direct,{value},{(value * (1 - value) / 400) ** 0.5:.5f},400")
    table = tmp_path / "scores.csv"
    table.write_text("\n".join(lines))

    def judged(task: str, *more: str) -> str:
        result = CliRunner().invoke(app, ["analyze", "benchmark", task, str(table), *more])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    reason = "models hardly differ: scores differ no more than by chance"
    assert f"Drop noise: {reason}" in judged("noise")
    printed = json.loads(judged("real", "--json"))["benchmark"]
    assert printed["verdict"] == "keep"
    assert printed["agreement_p"] < 0.02
