"""Opening a store: versions and migrations, wrong files, places that cannot be written, full disks."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from potentia.errors import NoStoreError, StoreAwayError, StoreError
from potentia.store import CellRecord, Store
from potentia.store.error_translation import translated_errors
from potentia.store.opening import locate_store
from potentia.values.provenance import Provenance
from potentia.values.scores import ItemOutcome
from speed import PATIENCE

MakeCell = Callable[..., CellRecord]


def version_of(path: Path) -> int:
    with sqlite3.connect(path) as raw:
        return int(raw.execute("SELECT version FROM schema_version").fetchone()[0])


@pytest.mark.parametrize("readonly", [False, True])
def test_an_older_store_is_refused_and_left_alone(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "old.db"
    Store.open(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE schema_version SET version = 2")
    with pytest.raises(StoreError, match=r"version 2.*\n.*run the study again into a new store"):
        Store.open(path, readonly=readonly)
    assert version_of(path) == 2


@pytest.mark.parametrize("readonly", [False, True])
def test_a_store_of_the_future_is_refused(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "new.db"
    Store.open(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(StoreError, match=r"version 99.*\n.*upgrade"):
        Store.open(path, readonly=readonly)


def test_other_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.db"
    text.write_text("this is no database, " * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store.open(text)
    other_file = tmp_path / "other.db"
    with sqlite3.connect(other_file) as raw:
        raw.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(StoreError, match="not a Potentia store"):
        Store.open(other_file)
    for opening in (Store.find, partial(Store.open, readonly=True)):
        with pytest.raises(StoreError, match="not a Potentia store"):
            opening(other_file)
    with pytest.raises(StoreError, match="this is a folder"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="no such store"):
        Store.open(tmp_path / "absent.db", readonly=True)
    assert Store.find(tmp_path / "absent.db") is None
    assert not (tmp_path / "absent.db").exists()
    empty = tmp_path / "empty.db"
    with sqlite3.connect(empty) as raw:
        raw.execute("PRAGMA user_version = 1")  # a database without a table
    assert empty.stat().st_size > 0
    assert Store.find(empty) is None
    with pytest.raises(NoStoreError, match="nothing was stored here yet"):
        Store.open(empty, readonly=True)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("mysql://host/name", "SQLite or PostgreSQL"),
        ("sqlite://", "memory"),
        ("sqlite:///:memory:", "memory"),
        ("http://[bad", "not a database URL|SQLite or PostgreSQL"),
        ("", "no name"),
    ],
)
def test_wrong_urls_are_said(where: str, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        Store.open(where)


def test_a_server_that_is_not_there_is_said() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match="server runs") as caught:
        Store.open("postgresql+psycopg://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)


def test_urls_say_where_the_items_are(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        assert store.items_folder == tmp_path / "a.db.items"
    result = locate_store("postgresql://host/name?items=/data/items&connect_timeout=3")
    assert (result.file, result.items_folder) == (None, Path("/data/items"))
    assert result.url.drivername == "postgresql+psycopg"
    assert dict(result.url.query) == {"connect_timeout": "3"}
    assert locate_store("postgresql+psycopg://host/name").items_folder is None
    with Store.open(f"sqlite:///{tmp_path}/c.db?items={tmp_path}/there") as store:
        assert store.items_folder == tmp_path / "there"
    with Store.open(tmp_path / "c.db") as store:
        assert store.items_folder == tmp_path / "there", "the store says so itself"


@pytest.mark.postgres
def test_items_lie_where_the_store_was_made(
    postgres_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_cell: Callable[..., CellRecord],
) -> None:
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(
        f"{postgres_server.replace('+psycopg', '')}/postgres", autocommit=True
    ) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        with Store.open(f"{postgres_server}/{name}") as store:
            assert store.items_folder == tmp_path / "one" / "potentia.items"
    assert not any((tmp_path / "two").iterdir())
    assert locate_store(f"sqlite:///{tmp_path}/b.db").file == tmp_path / "b.db"


def test_a_place_that_cannot_be_written_has_a_hint(tmp_path: Path, make_cell: MakeCell) -> None:
    with pytest.raises(StoreError, match="name another store"):
        Store.open("/proc/potentia.db")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="hint"):
        Store.open(tmp_path / "file" / "store.db")
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        store.studies.open("first", "s1", {})
        store.cells.commit(make_cell("k1"))
    with Store.open(path, readonly=True) as store:
        assert store.cells.count() == 1
        with pytest.raises(StoreError, match=r"readonly.*\n.*another store"):
            store.cells.commit(make_cell("k2"))


def test_a_full_disk_keeps_what_was_committed(tmp_path: Path, make_cell: MakeCell) -> None:
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        store.studies.open("first", "s1", {})
        store.cells.commit(make_cell("k1"))
        with (
            store.database.engine.connect() as connection
        ):  # a file that may not grow is a disk that is full
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreError, match=r"full.*\n.*free some space"):
            store.cells.commit(
                make_cell("k2", provenance=Provenance(details={"text": "x" * 100_000}))
            )
        assert not store.cells.has("k2")
    with Store.open(path) as store:
        assert store.cells.count() == 1
        assert store.cells.commit(
            make_cell("k2", provenance=Provenance(details={"text": "x" * 100_000}))
        )


LIMITED = """
import resource, sys
from potentia.errors import NoStoreError, StoreError
from potentia.values.metric import Metric
from potentia.values.scores import ItemOutcome, Score
from potentia.store import CellRecord, Store

store = Store.open(sys.argv[1])
store.studies.open("first", "s1", {})
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
import random
text = "".join(chr(random.randrange(33, 1000)) for _ in range(600_000))
cell = CellRecord("k1", "s1", "m", "t", "direct", {"acc": Score(0.5, 0.1, 1, Metric.of("acc"))}, "acc")
try:
    store.cells.commit(cell, items=[ItemOutcome(0, 1.0, text, "", {})])
except StoreError as error:
    print("refused:", error.hint)
print(store.cells.has("k1"), [p.name for p in store.items_folder.rglob("*") if p.is_file()])
print(store.cells.commit(cell, items=[ItemOutcome(0, 1.0, "short", "", {})]), len(store.cells.read_items("k1")))
"""


def test_items_that_do_not_fit_leave_no_trace(tmp_path: Path) -> None:
    script = tmp_path / "limited.py"
    script.write_text(LIMITED)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store.db")],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("refused: free some space")
    assert lines[1:] == ["False []", "True 1"]


def test_a_cell_whose_items_fail_is_not_committed(tmp_path: Path, make_cell: MakeCell) -> None:
    path = tmp_path / "store.db"
    (tmp_path / "store.db.items").write_text("a file where the folder should be")
    with Store.open(path) as store:
        store.studies.open("first", "s1", {})
        with pytest.raises(StoreError):
            store.cells.commit(make_cell(), items=[ItemOutcome(0, 1.0, "a", "a", {})])
        assert store.cells.count() == 0


def test_two_processes_may_create_the_same_store(tmp_path: Path) -> None:
    code = "import sys; from potentia.store import Store; Store.open(sys.argv[1]).studies.open('a', 'k', {})"
    path = str(tmp_path / "deep" / "store.db")
    processes = [subprocess.Popen([sys.executable, "-c", code, path]) for _ in range(3)]
    assert [process.wait(timeout=PATIENCE) for process in processes] == [0, 0, 0]
    with Store.open(path) as store:
        assert [study.key for study in store.studies.read()] == ["k"]


def test_looking_for_a_store_makes_none(store_url: str) -> None:
    assert Store.find(store_url) is None
    assert Store.find(store_url) is None, "the first look left no table behind"
    Store.open(store_url).close()
    store = Store.find(store_url)
    assert store is not None
    with store:
        assert store.studies.read() == []


def test_a_damaged_record_is_told(tmp_path: Path):
    import sqlite3

    from made_store import make_store

    path = make_store(tmp_path / "made.db")
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE provenances SET provenance = substr(provenance, 1, 40)")
    with Store.open(path, readonly=True) as store, pytest.raises(StoreError, match="damaged"):
        store.cells.read()


def test_a_damaged_schema_is_told(tmp_path: Path):
    """SQLite names the damaged text in its message, which is then no text either."""
    import sqlite3

    from made_store import make_store

    store = make_store(tmp_path / "made.db")
    with sqlite3.connect(store) as raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute(
            "UPDATE sqlite_master SET name = CAST(x'ff41' AS TEXT), sql = 'x' WHERE name = 'cells'"
        )
    with pytest.raises(StoreError, match="malformed"):
        Store.open(store, readonly=True)


def test_a_lock_is_told_from_other_errors_by_its_code(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 's.db'}", connect_args={"timeout": 0})
    misleading = sa.text('SELECT * FROM "database is locked"')
    with pytest.raises(StoreError) as no_table, translated_errors("s.db"), engine.connect() as one:
        one.execute(misleading)
    assert not isinstance(no_table.value, StoreAwayError)
    with engine.connect() as holder, engine.connect() as other:
        holder.exec_driver_sql("BEGIN EXCLUSIVE")
        with pytest.raises(StoreAwayError, match="another process"), translated_errors("s.db"):
            other.exec_driver_sql("BEGIN IMMEDIATE")
