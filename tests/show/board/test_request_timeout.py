"""Requests that never arrive whole, on a real server with real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvicorn

from potentia.show.board.app import bind_listener, create_app
from potentia.show.board.request_timeout import TimedRequestProtocol
from speed import PATIENCE

SECONDS = 1.0


@pytest.fixture
def port(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A board that waits a second for a request."""
    monkeypatch.setattr(TimedRequestProtocol, "request_seconds", SECONDS)
    app = create_app(str(store), "a-long-secret", executor=ThreadPoolExecutor(1))
    server = uvicorn.Server(uvicorn.Config(app, http=TimedRequestProtocol, log_level="error"))
    listener = bind_listener("127.0.0.1", 0)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


def is_closed_by_the_server(connection: socket.socket) -> bool:
    """Wait until the other side ends a connection, which a held one never is; what it sends is read and dropped."""
    connection.settimeout(PATIENCE)
    try:
        while connection.recv(65_536):
            pass
    except TimeoutError:
        return False
    return True


def drips_until_closed(connection: socket.socket, drop: bytes) -> bool:
    """Send a few bytes at a time until the other side ends the connection; say whether it did."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            connection.sendall(drop)
        except OSError:
            return True
        time.sleep(SECONDS / 10)
    return False


def is_closed(connection: socket.socket) -> bool:
    """Say whether the other side has ended a connection; what it sent before is read and dropped."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:  # nothing more to read for now
        return False
    return True


HALF_SENT = {
    "nothing at all": b"",
    "half a line": b"GET /api/st",
    "no end of the headers": b"GET /api/studies HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: ",
    "no body": b"POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 400\r\n\r\ntoken=",
}


@pytest.mark.parametrize("story", HALF_SENT)
def test_a_half_sent_request_is_not_held_for_ever(port: int, story: str):
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(HALF_SENT[story])
        assert is_closed_by_the_server(connection)


def test_a_request_that_drips_is_not_held_for_ever(port: int):
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        assert drips_until_closed(connection, b"x: y\r\n")


def test_the_second_request_of_a_connection_has_an_end_too(port: int):
    request = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer a-long-secret\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(request + b"\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(request)
        assert is_closed_by_the_server(connection)


def test_an_answer_may_take_longer_than_a_request(port: int):
    """The stream of events goes on after the time that a request has."""
    from made_store import STUDY

    request = f"GET /api/studies/{STUDY}/stream HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    request += "authorization: Bearer a-long-secret\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(request.encode())
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
        time.sleep(3 * SECONDS)
        assert not is_closed(connection)
