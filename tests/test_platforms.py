"""The analysis half on Windows and macOS, by stand-ins: interpreters that lack what those systems do not have."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from speed import PATIENCE

ROOT = Path(__file__).parents[1]
SCORES = ROOT / "examples" / "real-models.csv"

COMMANDS = """
import shlex, sys
from made_store import make_store
from potentia.cli.app import run_command_line

make_store("made.db", models=("a", "b", "c", "d", "e"))
for line in sys.argv[1].splitlines():
    sys.argv = ["potentia", *shlex.split(line)]
    try:
        run_command_line()
    except SystemExit as end:
        assert not end.code, f"{line}: exit {end.code}"
    print("done:", line)
"""
LINES = f"""
report {SCORES} -o report.html --figures figures.svg
compare Qwen2.5-Coder-0.5B-Instruct SmolLM2-135M-Instruct {SCORES}
export {SCORES} -o scores.parquet
analyze rankings scores.parquet --json
export scores.parquet -o imported.db
status imported.db
report made.db -o store.html
status made.db --check
store rename made.db made renamed
store discard made.db --model e --yes
analyze benchmark arc_easy {SCORES}
papers test-task {SCORES}
doctor --json
"""

LIMITS = """
from potentia import limited

limited.DEADLINE = 0.2
limited.PATIENCE_WITHOUT_TIMER = 5.0
assert limited.render_template("{{ a }}!", {"a": "b"}) == "b!"
limits = limited._child.limits
assert not limits.has_memory_limit
print("timer:", limits.has_processor_timer)
endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
try:
    limited.render_template(endless, {})
except limited.LimitError as over:
    print("refused:", over)
"""


def run_as(
    system: str, code: str, *arguments: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter that stands in for another system."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment_of(system),
        capture_output=True,
        text=True,
    )


def environment_of(system: str) -> dict[str, str]:
    paths = [ROOT / "tests" / "stand_ins" / system, ROOT / "src", ROOT / "tests"]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
    }


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_the_analysis_half_works(system: str, tmp_path: Path) -> None:
    lines = LINES.strip().splitlines()
    done = run_as(system, COMMANDS, "\n".join(lines), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line for line in done.stdout.splitlines() if line.startswith("done:")] == [
        f"done: {line}" for line in lines
    ]
    assert "limits no process's memory" in done.stderr, "a missing limit is told"
    assert (tmp_path / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize(("system", "has_timer"), [("windows", False), ("macos", True)])
def test_a_template_without_end_is_stopped_by_the_limit_that_there_is(
    system: str, has_timer: bool, tmp_path: Path
) -> None:
    done = run_as(system, LIMITS, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [f"timer: {has_timer}", "refused: it takes too long"]


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_the_board_is_served(system: str, tmp_path: Path) -> None:
    code = (
        "import made_store, sys; made_store.make_store('made.db'); from potentia.cli import main;"
        "sys.argv = ['potentia', 'serve', 'made.db', '--port', '0']; main()"
    )
    command = [sys.executable, "-c", code]
    server = subprocess.Popen(
        command, cwd=tmp_path, env=environment_of(system), stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        page = urllib.request.urlopen(address, timeout=PATIENCE).read().decode()
        assert "made" in page
    finally:
        server.terminate()
        server.wait(PATIENCE)
