"""What all tests share: one torch thread, the published data beside the checkout, stores of both kinds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import postgres

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parents[1]
# Files that take longest go first: a file is one worker's, and the others would wait for one that comes last.
LONGEST = (
    "test_docs.py",
    "e2e/test_report_browser.py",
    "e2e/test_demo.py",
    "e2e/test_faults.py",
    "analysis/benchmark/test_blind_twins.py",
    "tasks/test_consent.py",
    "test_platforms.py",
    "test_api.py",
    "run/test_tuned.py",
    "run/test_ray.py",
    "run/test_study_run.py",
    "engine/training/test_lanes.py",
    "engine/training/test_layers.py",
    "engine/training/test_lane_check.py",
    "cli/test_plan_command.py",
    "engine/scoring/test_trials.py",
    "run/test_adapters.py",
    "store/test_password.py",
    "e2e/test_report_looks.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the Makefile tells xdist to keep this order."""
    place = {str(ROOT / "tests" / name): k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(str(item.path), len(place)))


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
        terminalreporter.line(f"{count} need {part}")
    if {MISSING_PARTS["Chromium"], MISSING_PARTS["PostgreSQL"]} & counts.keys():
        terminalreporter.line("`.ci/run` installs Chromium and PostgreSQL, and runs all of these")


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
    import sys

    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def postgres_own() -> Iterator[postgres.Server]:
    """A server of our own, on loopback, gone when the tests end."""
    if postgres.programs() is None:
        message = "PostgreSQL's initdb and pg_ctl are not installed"
        if os.environ.get("POTENTIA_REQUIRE_SYSTEM") == "1":
            pytest.fail(message)
        pytest.skip(message)
    server = postgres.Server()
    yield server
    server.close()


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
