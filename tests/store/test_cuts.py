"""A run whose connection is cut at every statement, before COMMIT and after it: nothing is lost or doubled."""

from __future__ import annotations

import ast
import contextlib
import inspect
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import postgres
import tiny
from potentia import run as run_package
from potentia.run import progress, run_study
from potentia.store import Store, waiting
from potentia.store.waiting import PatientPart
from potentia.study import Study, make_study


def test_every_method_of_a_store_waits(tmp_path: Path):
    with Store.open(tmp_path / "s.db") as store:
        parts = [part for part in vars(store).values() if isinstance(part, PatientPart)]
    assert len(parts) == 9
    methods = {
        name: method
        for part in parts
        for name, method in inspect.getmembers(part, inspect.ismethod)
        if not name.startswith("_")
    }
    waiting = {name for name, method in methods.items() if hasattr(method, "__wrapped__")}
    assert len(waiting) > 25
    assert methods.keys() - waiting == {"beat", "read_outcomes"}, (
        "a beat is asked for again; outcomes are for analyses"
    )


def test_a_run_opens_its_store_in_one_place():
    opening = {
        file.name
        for file in Path(str(run_package.__file__)).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in {("Store", "open"), ("Store", "find")}
    }
    assert opening == {
        "progress.py",
        "status.py",
    }  # the second reads for `potentia status`, outside of a run


class Cutter:
    """Cuts the connection at every statement that a run sends, each once, and at every COMMIT before and after it."""

    def __init__(self, server: str) -> None:
        import psycopg

        self.other = psycopg.connect(server, autocommit=True)
        self.state = threading.local()
        self.cuts = dict.fromkeys(("statement", "before COMMIT", "after COMMIT"), 0)

    def begin(self, connection: sa.Connection) -> None:
        self.state.place = 0  # in this attempt

    def statement(self, connection: sa.Connection, cursor: Any, text: str, *_: Any) -> None:
        state = self.state
        state.place = getattr(state, "place", 0) + 1
        if state.place > getattr(state, "survived", 0):
            state.survived = state.place
            self.cut("statement", connection.connection)

    def commit(self, do_commit: Any, connection: Any) -> None:
        state = self.state
        if getattr(state, "place", 0) == 0 or getattr(
            state, "free", False
        ):  # nothing was sent; or it was all cut
            do_commit(connection)
            state.survived, state.stage, state.free = 0, 0, False
            return
        state.stage = getattr(state, "stage", 0) + 1
        if state.stage == 2:
            do_commit(connection)
            state.free = True
        self.cut("before COMMIT" if state.stage == 1 else "after COMMIT", connection)
        do_commit(connection)  # the answer is lost
        raise connection_lost()

    def cut(self, when: str, connection: Any) -> None:
        self.cuts[when] += 1
        self.other.execute(
            "SELECT pg_terminate_backend(%s)",
            [getattr(connection, "dbapi_connection", connection).info.backend_pid],
        )


def connection_lost() -> Exception:
    import psycopg

    return psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    tiny.save_model(tmp_path / "m0", seed=0)
    tiny.save_questions(tmp_path / "colours.jsonl", n=40)
    return make_study(
        {
            "name": "cuts",
            "models": [{"name": "m0", "path": str(tmp_path / "m0")}],
            "tasks": [{"name": "colours", "file": str(tmp_path / "colours.jsonl")}],
            "tuning": {"learning_rates": [1e-3], "epochs": 1},
            "device": "cpu",
            "store": str(tmp_path / "undisturbed.db"),
        }
    )


@pytest.fixture
def cutter(postgres_own: postgres.Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cutter]:
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

    made = Cutter(f"{postgres_own.url.replace('+psycopg', '')}/postgres")
    whole = PGDialect_psycopg.do_commit
    monkeypatch.setattr(
        PGDialect_psycopg, "do_commit", lambda self, c: made.commit(lambda c: whole(self, c), c)
    )
    monkeypatch.setattr(progress, "FIRST_CONTACT", 300.0)
    monkeypatch.setattr(waiting, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(waiting, "LONGEST_PAUSE", 0.001)
    sa.event.listen(sa.Engine, "begin", made.begin)
    sa.event.listen(sa.Engine, "before_cursor_execute", made.statement)
    yield made
    sa.event.remove(sa.Engine, "begin", made.begin)
    sa.event.remove(sa.Engine, "before_cursor_execute", made.statement)
    made.other.close()


@pytest.mark.postgres
def test_a_run_outlives_a_cut_at_every_statement(
    study: Study, tmp_path: Path, postgres_own: postgres.Server, request: pytest.FixtureRequest
):
    from faults import check, scores

    assert run_study(study).exit_code == 0
    path = f"{postgres_own.database()}?items={tmp_path / 'items'}"
    cutter: Cutter = request.getfixturevalue("cutter")
    result = run_study(study.model_copy(update={"store": path}))
    assert (result.exit_code, result.computed) == (0, 2), result
    request.node.user_properties.append(("cuts", dict(cutter.cuts)))
    print(cutter.cuts)
    assert cutter.cuts["statement"] > 60
    assert min(cutter.cuts.values()) > 20, cutter.cuts
    cutter.commit = lambda do_commit, connection: do_commit(connection)  # type: ignore[method-assign]
    cutter.cut = lambda *_: None  # type: ignore[method-assign]
    check(path, scores(study.store))


@pytest.mark.postgres
def test_a_lock_that_another_left_behind_is_waited_for(
    postgres_own: postgres.Server, monkeypatch: pytest.MonkeyPatch
):
    import psycopg

    from potentia.errors import StoreAwayError
    from potentia.store import events, opening

    where = postgres_own.database()
    monkeypatch.setattr(
        opening, "_TIMEOUTS", {"lock_timeout": 1, "idle_in_transaction_session_timeout": 1}
    )
    monkeypatch.setattr(opening, "_STATEMENT_TIMEOUT", {})
    silent = psycopg.connect(where.replace("+psycopg", ""))
    with contextlib.closing(silent), Store.open(where, patience=60) as store:
        store.studies.open("first", "s1", {})
        silent.execute("SET idle_in_transaction_session_timeout = '2s'")
        silent.commit()
        silent.execute(
            "SELECT pg_advisory_xact_lock(%s)", [events._EVENT_LOCK]
        )  # and not a word more
        store.patience = 0
        with pytest.raises(StoreAwayError, match="lock timeout"):
            store.events.append("s1", "told")
        store.patience = 60
        assert store.events.append("s1", "told") > 0
        store.patience = 0

        def fall_silent() -> None:
            with store.database.writing() as connection:
                connection.execute(sa.text("SELECT 1"))
                time.sleep(1.5)
                connection.execute(sa.text("SELECT 1"))

        with pytest.raises(StoreAwayError):  # so that the server does not keep its locks
            fall_silent()
