"""Who may read the board."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from made_store import STUDY
from potentia.errors import InputError
from potentia.show.board.app import RateLimitedLog, choose_token
from potentia.show.board.security import is_loopback
from speed import PATIENCE

POTENTIA = str(Path(sys.executable).with_name("potentia"))
EVERYTHING = (
    "/",
    f"/studies/{STUDY}",
    "/api/studies",
    "/openapi.json",
    "/assets/report.css",
    "/assets/report.css",
    "/nothing",
    "/metrics",
)


@pytest.mark.parametrize("path", EVERYTHING)
def test_without_the_token_nothing_is_served(locked: TestClient, path: str):
    locked.cookies.clear()
    wrong = ("Bearer wrong", "Bearer ", "Basic YTpi")
    cookies = ("potentia=wrong", "potentia=a-long-secret", "potentia=")
    for headers in ({}, *({"authorization": w} for w in wrong), *({"cookie": c} for c in cookies)):
        answer = locked.get(path, headers=headers)
        assert answer.status_code == 401
        assert "made" not in answer.text
    assert locked.get(path + "?token=wrong").status_code == 401
    assert locked.post("/login", data={"token": "wrong"}).status_code == 401


def test_a_bearer_token_opens_the_api(locked: TestClient):
    locked.cookies.clear()
    answer = locked.get("/api/studies", headers={"authorization": "Bearer a-long-secret"})
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("way", ["address", "form"])
def test_a_browser_gets_a_cookie_that_is_not_the_token(locked: TestClient, way: str):
    locked.cookies.clear()
    if way == "address":
        answer = locked.get("/?x=1&token=a-long-secret", headers={"accept": "text/html"})
        assert "url=/?x=1'" in answer.text, "the token leaves the address"
    else:
        answer = locked.post("/login", data={"token": "a-long-secret"})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "a-long-secret" not in cookie
    assert locked.get("/api/studies").status_code == 200
    assert locked.get(f"/studies/{STUDY}", headers={"accept": "text/html"}).status_code == 200


def test_the_way_in_leads_nowhere_else(locked: TestClient):
    locked.cookies.clear()
    answer = locked.get("//evil.example/'><script>alert(1)</script>?token=a-long-secret")
    assert "url=//" not in answer.text
    assert "<script>" not in answer.text


def test_a_browser_is_asked_for_the_token(locked: TestClient):
    locked.cookies.clear()
    answer = locked.get("/", headers={"accept": "text/html"})
    assert answer.status_code == 401
    assert "action='/login'" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


OTHER_HOSTS = [
    "evil.example",
    "192.168.0.3:8765",
    "127.0.0.1.evil.example",
    "",
    "[::1].evil.com",
    "[::1]evil.com:80",
    "[::1]:80.evil.com",
    "[::1%evil.com]",
    "[[::1]]",
    "::1",
    "127.0.0.1:80:80",
    "127.0.0.1:evil.com",
    "evil.com@127.0.0.1",
    "localhost.",
    "[localhost]",
]


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_another_name_for_loopback_is_refused(board: TestClient, host: str):
    assert board.get("/api/studies", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "127.0.0.2:80", "localhost", "[::1]:80"])
def test_loopback_names_are_served(board: TestClient, host: str):
    assert board.get("/api/studies", headers={"host": host}).status_code == 200


def test_an_address_that_others_reach_always_has_a_token():
    assert choose_token("127.0.0.1", None) is None
    assert choose_token("localhost", None) is None
    assert len(choose_token("0.0.0.0", None) or "") >= 32
    assert choose_token("0.0.0.0", None) != choose_token("0.0.0.0", None)
    assert choose_token("board.example", "longer-than-8") == "longer-than-8"
    with pytest.raises(InputError, match="too short"):
        choose_token("0.0.0.0", "short")
    assert not any(
        is_loopback(host)
        for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.nip.io")
    )


def test_a_flood_of_errors_is_a_few_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """With descriptors exhausted asyncio logs every refused connection, thousands a second."""
    import logging

    from potentia.show.board import app as server

    logger = logging.Logger("flooded")
    logger.addFilter(RateLimitedLog())
    logger.addHandler(caplog.handler)
    for _ in range(5000):
        logger.error("socket.accept() out of system resource")
    assert len(caplog.records) == server.LINES_PER_PERIOD
    monkeypatch.setattr(server, "PERIOD_SECONDS", 0.0)
    logger.error("once more")
    assert "4990 more before it" in caplog.records[-1].getMessage()


def test_the_board_lives_through_exhausted_descriptors(store: Path, tmp_path: Path):
    """Connections beyond the limit are refused without a flood of words, and it answers again afterwards."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "from potentia.cli.app import run_command_line;"
        "sys.argv[1:] = ['serve', *sys.argv[1:], '--port', '0']; run_command_line()"
    )
    said = tmp_path / "log"
    with said.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(store)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={
                **os.environ,
                "COLUMNS": "300",
                "PYTHONUNBUFFERED": "1",
                "POTENTIA_TOKEN": "given-by-me",
            },
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "given-by-me" not in line, "a token that was given is not shown"
        port = int(re.search(r":(\d+)/", line)[1])  # type: ignore[index]
        crowd = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(90)]
        time.sleep(3)
        for one in crowd:
            one.close()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
                request.add_header("authorization", "Bearer given-by-me")
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    assert answer.status == 200
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)
    assert "no descriptors are left" in said.read_text()
    assert "Traceback" not in said.read_text()
    assert "given-by-me" not in said.read_text()
    assert said.stat().st_size < 50_000


def test_the_command_serves_behind_a_token(store: Path):
    process = subprocess.Popen(
        [POTENTIA, "serve", str(store), "--host", "0.0.0.0", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "300", "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"http://0\.0\.0\.0:(\d+)/\?token=(\S+)", line)
        assert match, line
        port, token = match.groups()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/studies")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=PATIENCE)
        assert refused.value.code == 401
        request.add_header("authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert answer.status == 200
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def test_a_taken_port_and_a_missing_store_are_told(store: Path, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [POTENTIA, "serve", str(store), "--port", str(port)], capture_output=True, text=True
        )
    assert done.returncode == 2
    assert "another --port" in done.stderr
    done = subprocess.run(
        [POTENTIA, "serve", str(tmp_path / "none.db")], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "there is no such store" in done.stderr
