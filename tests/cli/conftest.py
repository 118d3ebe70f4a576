"""The command line in this process, as a user types it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def potentia(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Done]:
    """Run a command in ``tmp_path`` as the console script does."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Done:
        from potentia.cli.app import run_command_line

        monkeypatch.setattr(sys, "argv", ["potentia", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            run_command_line()
        spoken = capfdbinary.readouterr()
        return Done(int(exit_info.value.code or 0), spoken.out.decode(), spoken.err.decode())

    return call
