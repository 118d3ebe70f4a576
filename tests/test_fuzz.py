"""A short run of the fuzzer: what is promised of any input holds for these. ``make fuzz`` runs it at length."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[1] / "tools"


def test_no_input_crashes_hangs_or_leaves_its_folder():
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--inputs", "80", "--seed", "11"],
        capture_output=True,
        text=True,
        cwd=TOOLS,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TOOLS), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = [int(part) for part in done.stdout.splitlines()[-1].split()[1:]]
    assert counted[0] == sum(counted[1:]) == 80
    assert min(counted[1:3]) > 5, "some inputs are taken and some refused: it tries something"


def test_the_fuzzer_sees_what_it_looks_for(tmp_path: Path):
    code = """
import sys, os, pathlib
from fuzz.watch import Watch
import fuzz.watch
fuzz.watch.SECONDS = 0.2
watch = Watch(pathlib.Path(sys.argv[1]))
def spin():
    while True: pass
ends = [watch.judge(act)[0] for act in (
    lambda: None, lambda: 1 / 0, spin, lambda: open("/tmp/potentia-fuzz-outside", "w").close(),
    lambda: os.system("true") and None, lambda: open(sys.argv[1] + "/inside", "w").close(), lambda: "wrong")]
print(ends)
os.remove("/tmp/potentia-fuzz-outside")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TOOLS), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert done.stdout.strip() == str(
        ["taken", "crash", "hang", "outside", "outside", "taken", "crash"]
    ), done.stderr
