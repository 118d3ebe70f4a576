"""A password is nowhere but in the URL that the user gave: everything written and printed is searched for it."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tiny
from potentia.cli import main
from potentia.cli.app import app
from potentia.cli.run import write_chosen_study
from potentia.errors import without_password
from potentia.run import plan_study
from potentia.study import read_study

SECRET = "hunter2-is-secret"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("potentia.db", "potentia.db"),
        ("postgresql+psycopg://me@host/db", "postgresql+psycopg://me@host/db"),
        (
            f"postgresql+psycopg://me:{SECRET}@host:5432/db",
            "postgresql+psycopg://me:***@host:5432/db",
        ),
        (
            f"postgresql://host/db?user=me&password={SECRET}",
            "postgresql://host/db?user=me&password=***",
        ),
        (
            f"postgresql://host/db?sslpassword={SECRET}&connect_timeout=3",
            "postgresql://host/db?sslpassword=***&connect_timeout=3",
        ),
        (
            f"postgresql://me:{SECRET}@host:port/db",
            "postgresql://me:***@host:port/db",
        ),  # no URL at all
    ],
)
def test_a_url_is_shown_without_its_password(given: str, shown: str):
    assert without_password(given) == shown


# Every command, given a store as people give it; some refuse, which is as telling.
COMMANDS = {
    "run": [
        "--models ./m0 ./m1 --tasks q.jsonl --store URL --executor none",
        "--models ./no --tasks q.jsonl --store URL",
        "--dry-run --models ./m0 ./m1 --tasks q.jsonl --store URL",
        "--save made.yaml --models ./m0 --tasks URL",
        "--save URL --models ./m0 --tasks q.jsonl",
    ],
    "status": [
        "URL",
        "NOWHERE",
        "URL --study no",
        "URL --check",
        "URL --repair",
        "URL --adapters",
    ],
    "analyze rankings": [
        "URL",
        "URL --all",
        "NOWHERE",
        "URL --show outlook",
        "URL --show few-tasks",
    ],
    "analyze checkpoints": ["URL"],
    "analyze exposure": ["URL"],
    "analyze answers": ["URL", "NOWHERE"],
    "papers test-task": ["URL --group 2024"],
    "papers proxy": ["URL --target q"],
    "analyze benchmark": ["URL"],
    "papers elicitation": ["URL"],
    "papers judge": ["URL --url http://127.0.0.1:9 --model x"],
    "compare": ["m0 m1 URL"],
    "report": ["URL -o report.html", "NOWHERE -o other.html"],
    "export": [
        "URL -o scores.csv",
        "URL -o eee --to every-eval-ever",
        "URL -o hub --to hub",
        "URL -o copy.db",
        "scores.csv -o URL",
        "URL --to mlflow -o tracked",
    ],
    "adapters export": [
        "URL --model m0 --task q -o adapter",
        "URL --model no --task q -o none",
        "adapter --merge -o merged",
        "URL --merge -o nothing",
    ],
    "store discard": ["URL --model no", "URL --model m0", "URL --adapters --model no"],
    "store rename": ["URL no other"],
    "store delete": ["URL no"],
    "serve": ["NOWHERE"],
    # These take no store: it is given where something else belongs.
    "predict": ["adapter q.jsonl -o predicted.csv", "URL q.jsonl"],
    "papers reproduce": ["train-before-test URL", "URL"],
    "tasks": ["", "URL"],
    "select": ["--data q.jsonl --models URL", "--data URL --models ./m0"],
    "demo": ["URL"],
    "doctor": ["URL"],
}


# Commands that have no JSON, or that take long and say the same in it.
SAID_ONCE = ("serve", "demo", "doctor", "papers elicitation")


def test_every_command_is_listed():
    from typer.main import get_command

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        if not hasattr(command, "commands"):
            yield " ".join(path)
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, (*path, name))

    assert set(walk(get_command(app), ())) == {*COMMANDS}


@pytest.mark.postgres
def test_the_password_is_written_nowhere(
    postgres_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    import psycopg
    from fastapi.testclient import TestClient

    from potentia.show.board.app import create_app

    name = f"t{uuid.uuid4().hex}"
    plain = postgres_server.replace("+psycopg", "")
    with psycopg.connect(f"{plain}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = (
        postgres_server.replace("potentia@", f"potentia:{SECRET}@")
        + f"/{name}?items={tmp_path / 'items'}"
    )
    for k in range(2):
        tiny.save_model(tmp_path / f"m{k}", seed=k)
    tiny.save_questions(tmp_path / "q.jsonl", n=30)
    (tmp_path / "bad.jsonl").write_text("")

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        """Return all that a command says, called as the shell calls it, with its errors in words."""
        with monkeypatch.context() as patch, mock.patch.dict(os.environ):
            patch.setattr(sys, "argv", ["potentia", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        said = "".join(capfd.readouterr())
        assert said
        assert (ended.value.code or 0) in (0, 1, 2), said
        assert "Traceback" not in said, said
        return said

    study = (
        "run",
        "--models",
        "./m0",
        "./m1",
        "--tasks",
        "q.jsonl",
        "--store",
        url,
        "--set",
        "tuning.epochs=1",
    )
    said = [run(*study, "tuning.learning_rates=[1e-3]")]
    for command, lines in COMMANDS.items():
        for line in lines:
            given = [
                word.replace("URL", url).replace("NOWHERE", url.replace(name, "nowhere"))
                for word in line.split()
            ]
            said += [run(*command.split(), *given)]
            if command not in SAID_ONCE and "--dry-run" not in line:
                said += [run(*command.split(), *given, "--json")]
    planned = plan_study(
        read_study(None, {"models": ["./m0", "./m1"], "tasks": ["q.jsonl"], "store": url})
    )
    write_chosen_study(planned, [("./m0", "q.jsonl")], tmp_path / "plan.yaml", False)
    assert read_study(tmp_path / "plan.yaml").store == url.replace(f":{SECRET}", "")
    said.append("".join(capfd.readouterr()))
    with TestClient(create_app(url), base_url="http://localhost") as client:
        key = client.get("/api/studies").json()[-1]["key"]
        for page in ("", "/how", "/scores", "/cells"):
            answer = client.get(f"/studies/{key}{page}")
            assert answer.status_code == 200, (page, answer.text[-600:])
            said.append(answer.text)
        said.append(client.get(f"/api/studies/{key}/cells").text)
    with psycopg.connect(f"{plain}/{name}") as connection:
        tables = [
            row[0]
            for row in connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            )
        ]
        assert "studies" in tables
        said += [str(connection.execute(f"SELECT * FROM {table}").fetchall()) for table in tables]
    said += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(f"/{name}" in text for text in said) > 5, "the store is named"
    assert not [text[max(0, text.index(SECRET) - 80) :][:200] for text in said if SECRET in text]
