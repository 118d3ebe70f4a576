"""What all tests share: one torch thread, the published data beside the checkout, stores of both kinds."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import postgres
from potentia.extras import is_installed

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Read when Triton's functions are defined: whichever test imports Triton first, without a GPU it is interpreted.
if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Hypothesis measures its examples by the clock, and calls those of a busy machine too slow.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

ROOT = Path(__file__).resolve().parents[1]

# Stores wait for the disk at every result, 8 ms each time; memory that looks like a disk answers in 7 µs.
MEMORY_DISK = Path("/dev/shm")
ENOUGH_MEMORY = 6 * 2**30
if MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free > ENOUGH_MEMORY:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))

# Files that take longest go first: a file is one worker's, and the others would wait for one that comes last.
LONGEST = (
    "test_docs.py",
    "test_entrances.py",
    "e2e/test_report_browser.py",
    "e2e/test_demo.py",
    "e2e/test_faults.py",
    "e2e/test_select.py",
    "analysis/benchmark/test_blind_twins.py",
    "tasks/test_consent.py",
    "test_platforms.py",
    "run/test_tuned.py",
    "run/test_ray.py",
    "run/test_study_run.py",
    "engine/training/test_lane_check.py",
    "engine/training/test_static.py",
    "engine/training/test_lanes.py",
    "engine/training/test_layers.py",
    "engine/training/test_experts.py",
    "cli/test_plan_command.py",
    "engine/scoring/test_trials.py",
    "run/test_adapters.py",
    "store/test_password.py",
    "analysis/benchmark/test_verdict.py",
    "e2e/test_report_looks.py",
    "run/test_worker_processes.py",
    "run/test_row_parts.py",
    "reference/test_test_task.py",
    "run/test_fair.py",
    "run/test_real_size.py",
    "engine/training/test_sharded.py",
    "test_evidence.py",
    "test_fuzz.py",
    "test_notebook.py",
    "test_contributing.py",
    "test_sabotage.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the Makefile tells xdist to keep this order."""
    position_by_file = {str(ROOT / "tests" / name): k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: position_by_file.get(str(item.path), len(position_by_file)))


NEW_MODULES = 20
_modules_when_frozen = 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Exempt what was imported from garbage collection before a test's fixtures are made."""
    _freeze_new_modules()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Exempt what the fixtures imported from garbage collection before the test begins."""
    _freeze_new_modules()


def _freeze_new_modules() -> None:
    """Exempt all objects from garbage collection when many modules are new.

    Every model that is closed collects garbage, among a million objects of torch and its friends: a fifth of the
    processor time of tests that load models.
    """
    global _modules_when_frozen
    if len(sys.modules) >= _modules_when_frozen + NEW_MODULES:
        gc.collect()
        gc.freeze()
        _modules_when_frozen = len(sys.modules)


def pytest_unconfigure() -> None:
    """Let Python take the modules apart at its end: libraries print what leaked otherwise."""
    gc.unfreeze()


# What a skipped test misses, by words of its reason, and how to get it.
MISSING_PARTS = {
    "../shared": "the published scores in ../shared beside the checkout (maintainers have them)",
    "Chromium": "Chromium (apt-get install chromium)",
    "PostgreSQL": "PostgreSQL (apt-get install postgresql)",
    "psycopg": "psycopg (make tools)",
    "CUDA": "a CUDA device",
    "bitsandbytes": "bitsandbytes (make large)",
    "triton": "Triton (Linux on x86-64)",
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end what was not tested here, and how to have it tested."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [_skip_reason(report) for report in reports]
    counts = Counter(map(_name_missing_part, reasons))
    if not counts:
        return
    terminalreporter.section(f"{len(reasons)} tests were skipped")
    for part, count in counts.most_common():
        terminalreporter.line(f"{count:4} for want of {part}")
    if {MISSING_PARTS["Chromium"], MISSING_PARTS["PostgreSQL"]} & counts.keys():
        terminalreporter.line("`.ci/run` installs Chromium and PostgreSQL, and runs their tests")


def _skip_reason(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def _name_missing_part(reason: str) -> str:
    for words, part in MISSING_PARTS.items():
        if words in reason:
            return part
    return f"something else: {reason.removeprefix('Skipped: ')[:100]}"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of published scores, benchmark splits and corpora; tests skip where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside the checkout")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def postgres_own() -> Iterator[postgres.Server]:
    """A server of our own, on loopback, gone when the tests end."""
    missing_part = _missing_part_of_postgres()
    if missing_part is not None:
        if os.environ.get("POTENTIA_REQUIRE_SYSTEM") == "1":
            pytest.fail(missing_part)
        pytest.skip(missing_part)
    server = postgres.Server()
    yield server
    server.close()


def _missing_part_of_postgres() -> str | None:
    if not is_installed("psycopg"):
        return "psycopg is not installed"
    if postgres.programs() is None:
        return "PostgreSQL's initdb and pg_ctl are not installed"
    return None


@pytest.fixture(scope="session")
def postgres_server(postgres_own: postgres.Server) -> str:
    """The URL of that server."""
    return postgres_own.url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store can be made."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    server: postgres.Server = request.getfixturevalue("postgres_own")
    return f"{server.database()}?items={tmp_path / 'items'}"
