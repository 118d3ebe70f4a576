"""The demo, for real: every cell fine-tuned, and the effect in the direction that was planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from potentia.cli.app import app
from speed import PATIENCE

POTENTIA = str(Path(sys.executable).with_name("potentia"))


@pytest.mark.slow
def test_the_demo_shows_the_planted_effect_and_resumes_at_once(tmp_path: Path):
    command = [POTENTIA, "demo", "--json", "-o", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    first = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=environment
    )
    assert first.returncode == 0, first.stderr
    printed = json.loads(first.stdout)
    assert printed["failed"] == 0
    assert printed["tau_gain"]["value"] > 0.2, (
        "agreement rises; eight models of four families bound it loosely"
    )
    assert printed["tau"]["train_before_test"] > printed["tau"]["direct"] + 0.2
    assert printed["pc1"]["train_before_test"]["value"] > printed["pc1"]["direct"]["value"]
    assert printed["knowledge_tau"]["train_before_test"] > printed["knowledge_tau"]["direct"]
    report = Path(printed["report"])
    assert report.stat().st_size > 100_000

    again = CliRunner().invoke(app, ["demo", "--json", "-o", str(tmp_path)])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["tau"] == printed["tau"]
    assert json.loads(again.stdout)["computed"] == 0, "nothing is computed twice"
