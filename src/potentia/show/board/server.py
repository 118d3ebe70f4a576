"""Serving the board: loopback by default; any other address only with a token."""

from __future__ import annotations

import errno
import logging
import secrets
import socket
import time
from typing import Any

from potentia.errors import InputError
from potentia.show.board.security import is_loopback

MOST_LINES, EACH_SECONDS = 10, 60.0  # of the server's own log


def choose_token(host: str, token: str | None) -> str | None:
    """Return the token to ask for: the given one, a new one for an address that others can reach, else none."""
    if token is not None and len(token) < 8:
        raise InputError("the token is too short to keep anyone out", hint="give eight characters or more, or none")
    return token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)


def bind(host: str, port: int) -> socket.socket:
    """Take the address, or say why not."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host.strip("[]"), port))
        made.listen(128)  # early readers wait instead of being refused
    except OSError as error:
        hint = "another program has it: give another --port" if error.errno in (98, 48) else "check --host and --port"
        raise InputError(f"{host}:{port} cannot be used: {error.strerror or error}", hint=hint) from error
    return made


def address(host: str, port: int, token: str | None) -> str:
    """Return what to open in a browser."""
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


class Sparing(logging.Filter):
    """Lets a few records a minute through: with descriptors exhausted, every refused connection is one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.told, self.kept_back = time.monotonic(), 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether to write this one; the first after a silence tells how many were left out."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            record.msg, record.args, record.exc_info = "no descriptors are left (ulimit -n): new readers wait", (), None
        if time.monotonic() - self.began > EACH_SECONDS:
            if self.kept_back:
                record.msg, record.args = f"{record.getMessage()} ({self.kept_back} more before it)", ()
            self.began, self.told, self.kept_back = time.monotonic(), 0, 0
        self.told += 1
        self.kept_back += self.told > MOST_LINES
        return self.told <= MOST_LINES


def descriptors() -> int:
    """Take all the descriptors that this process may have, and return their number."""
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 65_536 if most == resource.RLIM_INFINITY else min(most, 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted


def serve(store_url: str, listener: socket.socket, *, token: str | None = None, history: tuple[str, ...] = ()) -> None:
    """Serve the board of a store on a bound socket until interrupted."""
    import uvicorn

    from potentia.show.board.app import create_app

    app = create_app(store_url, token, history=history)

    class Server(uvicorn.Server):
        """Ends the open streams when asked to stop; they would hold it up."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.desk.stop()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        limit_concurrency=descriptors() // 2,  # the rest is for files; who comes too late gets a 503
    )
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(Sparing())
    Server(config).run(sockets=[listener])
