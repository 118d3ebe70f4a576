"""A private PostgreSQL server for tests, on loopback: stopped and started at will, gone in the end."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import uuid
from pathlib import Path


def programs() -> Path | None:
    """Return the folder of initdb and pg_ctl, or None where PostgreSQL is not installed."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: p.parent.name, reverse=True
    )
    on_path = shutil.which("initdb")
    candidates = [*folders, *([Path(on_path).parent] if on_path else [])]
    return next(
        (f for f in candidates if (f / "initdb").exists() and (f / "pg_ctl").exists()), None
    )


class Server:
    """A server of our own; ``url`` names it, without a database."""

    def __init__(self) -> None:
        result = programs()
        assert result is not None, "PostgreSQL's initdb and pg_ctl are not installed"
        self.as_user: list[str] = []
        self.folder = Path("/tmp") / f"potentia-postgres-{uuid.uuid4().hex[:8]}"
        self.folder.mkdir(mode=0o700)
        if os.geteuid() == 0:  # the server refuses to run as root
            account = pwd.getpwnam("postgres")
            self.as_user = ["runuser", "-u", "postgres", "--"]
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.programs, self.data = result, self.folder / "data"
        self._run(
            "initdb", "-D", self.data, "-U", "potentia", "-A", "trust", "--no-sync", "-E", "UTF8"
        )
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://potentia@127.0.0.1:{self.port}"

    def _run(self, program: str, *arguments: object) -> None:
        command = [*self.as_user, str(self.programs / program), *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.folder} -c fsync=off"
        self._run(
            "pg_ctl", "-D", self.data, "-w", "-l", self.folder / "log", "-o", options, "start"
        )

    def stop(self, how: str = "immediate") -> None:
        self._run("pg_ctl", "-D", self.data, "-w", "-m", how, "stop")

    def database(self) -> str:
        """Make an empty database and return its URL."""
        import psycopg

        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(
            f"{self.url.replace('+psycopg', '')}/postgres", autocommit=True
        ) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"{self.url}/{name}"

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # it was stopped before
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
