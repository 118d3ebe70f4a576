"""The application: API, pages and the guard around them; served on loopback, or on any other address with a token."""

from __future__ import annotations

import errno
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from potentia.errors import InputError, PotentiaError
from potentia.show.board.api import COUNTS, make_api, metrics
from potentia.show.board.board_state import Desk
from potentia.show.board.pages import error_page, make_pages
from potentia.show.board.security import Guard, is_loopback

if TYPE_CHECKING:
    from concurrent.futures import Executor

MOST_LINES, EACH_SECONDS = 10, 60.0  # of the server's own log


def create_app(
    store_url: str, token: str | None = None, *, executor: Executor | None = None, history: tuple[str, ...] = ()
) -> FastAPI:
    """Make the board of a store. Without a token it answers requests for loopback hosts only.

    ``executor`` runs the analyses; by default one niced process of its own. ``history`` are stores or score files of
    other models, to predict cells that are not measured yet.
    """
    desk = Desk(store_url, executor=executor, history=history)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await desk.warm()
        yield
        desk.close()

    app = FastAPI(
        title="Potentia",
        description="Read-only access to a result store: studies, cells, items, findings, and what runs now.",
        version=version("potentia"),
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.desk = desk
    app.include_router(make_api(desk))
    app.include_router(make_pages(desk))
    app.add_middleware(Guard, token=token)

    @app.get("/metrics", include_in_schema=False)
    def counts() -> Response:
        return Response(metrics(desk), headers={"content-type": COUNTS})

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if _wants_page(request):
            return error_page(error.status_code, str(error.detail))
        return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        if _wants_page(request):
            return error_page(404, "there is no such page")
        problems = [{"loc": list(e["loc"]), "msg": e["msg"], "type": e["type"]} for e in error.errors()]
        return JSONResponse({"detail": problems}, 422)

    @app.exception_handler(PotentiaError)
    async def broken(request: Request, error: PotentiaError) -> Response:
        if _wants_page(request):
            return error_page(503, error.message)
        return JSONResponse({"detail": error.message}, 503)

    @app.exception_handler(OSError)
    async def away(request: Request, error: OSError) -> Response:  # no descriptors are left, and no page can be read
        return PlainTextResponse(f"try again in a moment: {error.strerror or error}\n", 503)

    return app


def _wants_page(request: Request) -> bool:
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get("accept", "")


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
