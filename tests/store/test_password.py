"""A password is nowhere but in the URL that the user gave: everything written and printed is searched for it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from unittest import mock

import pytest

import tiny
from potentia.cli import main
from potentia.store import without_password

POTENTIA = str(Path(sys.executable).with_name("potentia"))
SECRET = "hunter2-is-secret"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("potentia.db", "potentia.db"),
        ("postgresql+psycopg://me@host/db", "postgresql+psycopg://me@host/db"),
        (f"postgresql+psycopg://me:{SECRET}@host:5432/db", "postgresql+psycopg://me:***@host:5432/db"),
        (f"postgresql://host/db?user=me&password={SECRET}", "postgresql://host/db?user=me"),
        (f"postgresql://host/db?sslpassword={SECRET}&connect_timeout=3", "postgresql://host/db?connect_timeout=3"),
        (f"postgresql://me:{SECRET}@host:port/db", "postgresql://me:***@host:port/db"),  # no URL at all
    ],
)
def test_a_url_is_shown_without_its_password(given: str, shown: str):
    assert without_password(given) == shown


@pytest.mark.postgres
def test_the_password_is_written_nowhere(
    postgres_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    import psycopg
    from fastapi.testclient import TestClient

    from potentia.show.board import create_app

    name = f"t{uuid.uuid4().hex}"
    plain = postgres_server.replace("+psycopg", "")
    with psycopg.connect(f"{plain}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = postgres_server.replace("potentia@", f"potentia:{SECRET}@") + f"/{name}?items={tmp_path / 'items'}"
    for k in range(2):
        tiny.save_model(tmp_path / f"m{k}", seed=k)
    tiny.save_questions(tmp_path / "q.jsonl", n=60)
    (tmp_path / "bad.jsonl").write_text("")

    monkeypatch.chdir(tmp_path)

    def alone(*arguments: str) -> str:
        """In a process of its own, whose every word is heard."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([POTENTIA, *arguments], capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(*arguments: str, code: int = 0) -> str:
        """In this one: the command as the shell calls it, with its errors in words."""
        with monkeypatch.context() as patch, mock.patch.dict(os.environ):
            patch.setattr(sys, "argv", ["potentia", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        said = "".join(capfd.readouterr())
        assert said
        assert (ended.value.code or 0) == code, said
        return said

    study = ("run", "--models", "./m0", "./m1", "--tasks", "q.jsonl", "--store", url, "--epochs", "1")
    said = [
        alone(*study, "--learning-rates", "1e-3"),
        run(*study, "--learning-rates", "1e-3", "--json"),
        run("status", url),
        run("status", url, "--json"),
        run("analyze", "rankings", url, "--resamples", "30", "--all"),
        run("report", url, "-o", "report.html"),
        run("export", url, "-o", "scores.csv"),
        run("import", url, "--store", "copy.db"),
        run("report", "copy.db", "-o", "copy.html"),
        run("status", url.replace(name, "nowhere"), code=1),
    ]
    with TestClient(create_app(url), base_url="http://localhost") as client:
        key = client.get("/api/studies").json()[0]["key"]
        for page in ("", "/how", "/scores", "/cells"):
            answer = client.get(f"/studies/{key}{page}")
            assert answer.status_code == 200
            said.append(answer.text)
        said.append(client.get(f"/api/studies/{key}/cells").text)
    with psycopg.connect(f"{plain}/{name}") as connection:
        tables = [row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        assert "studies" in tables
        said += [str(connection.execute(f"SELECT * FROM {table}").fetchall()) for table in tables]
    said += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(f"/{name}" in text for text in said) > 5, "the store is named"
    assert not [text[max(0, text.index(SECRET) - 80) :][:200] for text in said if SECRET in text]
