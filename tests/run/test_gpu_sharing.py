"""NVIDIA's MPS for rows that share a GPU: used where it works, ended with the run, also where that is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from potentia.run import gpu_sharing
from speed import PATIENCE

DAEMON = """#!/bin/sh
# what the real tool does with its arguments, without a GPU
if [ "$1" = "-d" ]; then touch "$CUDA_MPS_PIPE_DIRECTORY/control"; echo "$CUDA_MPS_PIPE_DIRECTORY" > {began}; exit; fi
read said; echo "$said" >> {told}
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = tmp_path / "bin" / gpu_sharing.CONTROL
    tool.parent.mkdir()
    tool.write_text(DAEMON.format(began=tmp_path / "began", told=tmp_path / "told"))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.delenv(gpu_sharing.SWITCH, raising=False)
    monkeypatch.delenv(gpu_sharing.PIPES, raising=False)
    return tmp_path


def test_a_service_that_computes_nothing_is_ended_and_rows_take_turns(daemon, monkeypatch):
    monkeypatch.setattr(gpu_sharing, "TRIAL", "import sys; sys.exit('no device')")
    sharing = gpu_sharing.GpuSharing()
    sharing.start(6)
    assert not sharing.is_on
    assert sharing.why_not == "no device"
    assert not gpu_sharing.is_gpu_shared()
    assert "quit" in (daemon / "told").read_text()
    assert not Path((daemon / "began").read_text().strip()).exists()


def test_a_trial_that_went_past_the_service_is_not_believed(daemon, monkeypatch):
    monkeypatch.setattr(gpu_sharing, "TRIAL", "pass")  # computes, but the daemon knows of no client
    sharing = gpu_sharing.GpuSharing()
    sharing.start(6)
    assert not sharing.is_on
    assert "did not go through it" in sharing.why_not


@pytest.mark.parametrize("said", ["0", "off"])
def test_it_can_be_turned_off(daemon, monkeypatch, said):
    monkeypatch.setenv(gpu_sharing.SWITCH, said)
    sharing = gpu_sharing.GpuSharing()
    sharing.start(6)
    assert not sharing.is_on
    assert gpu_sharing.SWITCH in sharing.why_not
    assert not (daemon / "began").exists()


def test_it_ends_with_a_run_that_is_killed(daemon):
    program = (
        "import os, signal; "
        "from potentia.run.gpu_sharing import GpuSharing; GpuSharing().start_daemon(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    told, end = daemon / "told", time.monotonic() + PATIENCE
    while not told.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert "quit" in told.read_text()
