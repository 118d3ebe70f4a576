"""Stores to test against: a SQLite file always, a private PostgreSQL server where its programs are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from potentia.scores import Score
from potentia.store import CellRecord, Store


def _postgres_programs() -> Path | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: p.parent.name, reverse=True)
    on_path = shutil.which("initdb")
    candidates = [*folders, *([Path(on_path).parent] if on_path else [])]
    return next((f for f in candidates if (f / "initdb").exists() and (f / "pg_ctl").exists()), None)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of our own, on loopback, gone when the tests end."""
    programs = _postgres_programs()
    if programs is None:
        message = "PostgreSQL's initdb and pg_ctl are not installed"
        if os.environ.get("POTENTIA_REQUIRE_SYSTEM") == "1":
            pytest.fail(message)
        pytest.skip(message)
    as_user: list[str] = []
    folder = tmp_path_factory.mktemp("postgres")
    if os.geteuid() == 0:  # the server refuses to run as root
        account = pwd.getpwnam("postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
        folder = Path("/tmp") / f"potentia-postgres-{uuid.uuid4().hex[:8]}"
        folder.mkdir(mode=0o700)
        os.chown(folder, account.pw_uid, account.pw_gid)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": "/"}
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "potentia", "-A", "trust", "--no-sync", "-E", "UTF8"]
    subprocess.run([*as_user, *initdb], **quiet)
    options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
    pg_ctl = [*as_user, str(programs / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log")]
    subprocess.run([*pg_ctl, "-o", options, "start"], **quiet)
    try:
        yield f"postgresql+psycopg://potentia@127.0.0.1:{port}"
    finally:
        subprocess.run([*pg_ctl, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store can be made."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    import psycopg

    server: str = request.getfixturevalue("postgres_server")
    name = f"t{uuid.uuid4().hex}"
    plain = server.replace("+psycopg", "")
    with psycopg.connect(f"{plain}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server}/{name}?items={tmp_path / 'items'}"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An empty store with one study, ``s1``, named ``first``."""
    with Store.open(store_url) as opened:
        opened.study("first", "s1", {"models": ["m"]})
        yield opened


@pytest.fixture
def make_cell() -> Callable[..., CellRecord]:
    """Make a cell; every field can be given."""

    def make(key: str = "k1", *, value: float = 0.5, **fields: object) -> CellRecord:
        known: dict[str, object] = {
            "key": key,
            "study": "s1",
            "model": "m",
            "task": "t",
            "protocol": "direct",
            "metric": "acc",
            "scores": {"acc": Score(value, 0.01, 100, "acc"), "acc_norm": Score(value / 2, 0.02, 100, "acc_norm")},
        }
        return CellRecord(**{**known, **fields})

    return make
