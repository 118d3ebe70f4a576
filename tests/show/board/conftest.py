from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from made_store import make_store
from potentia.show.board.app import create_app


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("made") / "made.db")


@pytest.fixture(scope="module")
def board(store: Path) -> Iterator[TestClient]:
    """The board without a token, its analyses in a thread of the test."""
    app = create_app(str(store), executor=ThreadPoolExecutor(1))
    with TestClient(app, base_url="http://127.0.0.1", headers={"accept": "text/html"}) as client:
        yield client


@pytest.fixture(scope="module")
def locked(store: Path) -> Iterator[TestClient]:
    """The board behind a token, as on an address that others can reach."""
    app = create_app(str(store), "a-long-secret", executor=ThreadPoolExecutor(1))
    with TestClient(app, base_url="http://192.0.2.7", follow_redirects=False) as client:
        yield client
