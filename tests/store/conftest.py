"""Stores to test against: a SQLite file always, a private PostgreSQL server where its programs are installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from made_cells import make_cell  # noqa: F401  (a fixture)
from potentia.store import Store


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An empty store with one study, ``s1``, named ``first``."""
    with Store.open(store_url) as opened:
        opened.studies.open("first", "s1", {"models": ["m"]})
        yield opened
