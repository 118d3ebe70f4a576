"""A store from a stranger is data: a database that computes its rows could do so without end."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from made_store import make_store
from potentia.errors import PotentiaError
from potentia.evidence import read

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id FROM n"
CHANGES = {
    "view": f"ALTER TABLE cells RENAME TO old; CREATE VIEW cells AS {ENDLESS}",
    "trigger": "CREATE TRIGGER t AFTER UPDATE ON studies BEGIN DELETE FROM cells; END",
    "computed column": "ALTER TABLE events ADD COLUMN x TEXT AS (hex(zeroblob(500000000)))",
}


@pytest.mark.parametrize("kind", sorted(CHANGES))
def test_a_store_that_computes_its_content_is_refused(tmp_path: Path, kind: str) -> None:
    store = make_store(tmp_path / "s.db")
    connection = sqlite3.connect(store)
    connection.executescript(CHANGES[kind])
    connection.close()
    with pytest.raises(PotentiaError, match=kind):
        read(str(store))


def test_a_study_of_another_type_is_refused_in_words(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.db")
    connection = sqlite3.connect(store)
    connection.executescript("UPDATE studies SET spec = '5'")
    connection.close()
    with pytest.raises(PotentiaError, match="says nothing of itself"):
        read(str(store))
