"""Every way in which a stranger's file reaches Potentia is in one list, and hostile files go through all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fuzz.entrances import ENTRANCES, NO_FILES, SAME_DOOR, FileKind, entrances_for
from fuzz.hostile_files import all_cases

TOOLS = Path(__file__).parents[1] / "tools"


def commands() -> Iterator[str]:
    from potentia.cli.app import app

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        if not hasattr(command, "commands"):
            yield " ".join(path)
            return
        for name, inner in command.commands.items():
            yield from walk(inner, (*path, name))

    yield from walk(typer.main.get_command(app), ())


def test_every_command_is_an_entrance_or_says_why_not() -> None:
    """A new command fails here until it is put into one of the tables of ``fuzz.entrances``."""
    names = {entrance.name for entrance in ENTRANCES}
    known = names | set(SAME_DOOR) | NO_FILES
    assert set(commands()) - known == set()
    assert known - set(commands()) == {"board", "notebook", "run --dry-run"}
    assert set(SAME_DOOR.values()) <= names


def test_every_kind_of_file_has_an_entrance_and_there_are_many_files() -> None:
    cases = list(all_cases())
    assert len(cases) >= 300
    assert len({case.name for case in cases}) == len(cases)
    for kind in FileKind:
        assert entrances_for(kind)
        assert [case for case in cases if case.kind is kind]
    for entrance in ENTRANCES:
        assert any(case.kind in entrance.kinds for case in cases)


# One process, which loads the libraries once. The rest is in `make hostile`; patterns that take seconds at every door
# are in integrations/test_foreign_adapters.py.
SAMPLE = ("made of stock 0", "note: asked", "own code 2")
BOTH_ROUNDS = """
import sys
from fuzz.hostile import main

codes = []
for arguments in (["--harmless"], ["--only", *sys.argv[1:]]):
    sys.argv = ["hostile", *arguments]
    codes.append(main())
    print("exit code", codes[-1], flush=True)
sys.exit(max(codes))
"""


@pytest.mark.slow
def test_harmless_files_are_taken_and_hostile_ones_do_no_harm_at_any_entrance() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOTH_ROUNDS, *SAMPLE],
        capture_output=True,
        text=True,
        cwd=TOOLS,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TOOLS), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    harmless, hostile, _ = done.stdout.split("exit code 0\n")
    assert harmless.startswith("6 harmless files")
    expected = sum(any(words in case.name for words in SAMPLE) for case in all_cases())
    assert hostile.startswith(f"{expected} hostile files")
    assert expected >= len(SAMPLE)
