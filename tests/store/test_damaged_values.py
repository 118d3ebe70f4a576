"""A store that someone else changed: values that Potentia never writes are refused in words, by every reader."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from made_store import make_store
from potentia.errors import PotentiaError
from potentia.evidence import read
from potentia.show import build_sections, make_report


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE scores SET value = 'high'",
        "UPDATE scores SET stderr = x'00ff'",
        "UPDATE cells SET seconds = 'long'",
        "UPDATE cells SET model = hex(zeroblob(6000))",
        "UPDATE cells SET task = x'00ff'",
    ],
)
def test_a_value_that_no_run_writes_is_refused(change: str, tmp_path: Path) -> None:
    store = tmp_path / "changed.db"
    make_store(store)
    with sqlite3.connect(store) as connection:
        connection.execute(change)
    with pytest.raises(PotentiaError, match="in the store is damaged"):
        build_sections(make_report(read(str(store))))
