from __future__ import annotations

from pathlib import Path

import pytest

from made_store import make_store
from potentia.evidence import read
from potentia.show import ReportData, make_report


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("made") / "made.db")


@pytest.fixture(scope="session")
def data(store: Path) -> ReportData:
    return make_report(read(store))
