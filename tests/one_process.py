"""Several commands in one interpreter, so that libraries are loaded once: what each said, and how it ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RUN_COMMANDS = """
import contextlib, io, json, os, sys
from potentia.cli.app import run_command_line

results = []
for arguments in json.loads(sys.argv[1]):
    before = set(os.listdir())
    sys.argv = ["potentia", *arguments]
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            run_command_line()
        except SystemExit as end:
            code = end.code or 0
    new_files = sorted(set(os.listdir()) - before)
    results.append([code, output.getvalue(), errors.getvalue(), new_files])
print(json.dumps(results))
"""


@dataclass(frozen=True)
class CommandResult:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str
    new_files: tuple[str, ...]


def run_commands(
    commands: Sequence[Sequence[str]], folder: Path, *, prelude: str = "", **environment: str
) -> list[CommandResult]:
    """Run commands one after the other in a new interpreter, after some code of its own.

    What the interpreter says before the first command counts as that command's errors.
    """
    done = subprocess.run(
        [sys.executable, "-c", prelude + RUN_COMMANDS, json.dumps([list(c) for c in commands])],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    results[0][2] = done.stderr + results[0][2]
    return [
        CommandResult(code, output, errors, tuple(files)) for code, output, errors, files in results
    ]
