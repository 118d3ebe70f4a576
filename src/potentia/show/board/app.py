"""The application: the pages, made of the report's sections and the live state; the API beside them, the guard before.

It is served on loopback, or on any other address with a token.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from potentia.errors import InputError, PotentiaError
from potentia.show import cell_payload
from potentia.show.board.api import COUNTS, Name, make_api, metrics
from potentia.show.board.board_state import Desk, there
from potentia.show.board.security import Guard, is_loopback
from potentia.show.board.snapshot import Snapshot, Snapshots, make_snapshot
from potentia.show.page import SCRIPTS, STYLES, asset, environment
from potentia.store import Store
from potentia.timing import format_duration

if TYPE_CHECKING:
    from concurrent.futures import Executor

MOST_LINES, EACH_SECONDS = 10, 60.0  # of the server's own log
Wanted = Annotated[str, Query(pattern="^[^\0]*$")]


def create_app(
    store_url: str,
    token: str | None = None,
    *,
    executor: Executor | None = None,
    history: tuple[str, ...] = (),
) -> FastAPI:
    """Make the board of a store. Without a token it answers requests for loopback hosts only.

    ``executor`` runs the analyses; by default one niced process of its own. ``history`` are stores or score files of
    other models, to predict cells that are not measured yet.
    """
    snapshots = Snapshots(store_url, executor, partial(make_snapshot, history=history))
    desk = Desk(Store.open(store_url, readonly=True), snapshots)

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

    def told(
        request: Request, status: int, detail: Any, page: str, headers: Any = None
    ) -> Response:
        if not request.url.path.startswith("/api/") and "text/html" in request.headers.get(
            "accept", ""
        ):
            return _page(
                "error.html", status=404 if status == 422 else status, title="not here", detail=page
            )
        return JSONResponse({"detail": detail}, status, headers=headers)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return told(request, error.status_code, error.detail, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = [
            {"loc": list(e["loc"]), "msg": e["msg"], "type": e["type"]} for e in error.errors()
        ]
        return told(request, 422, problems, "there is no such page")

    @app.exception_handler(PotentiaError)
    async def broken(request: Request, error: PotentiaError) -> Response:
        return told(request, 503, error.message, error.message)

    @app.exception_handler(OSError)
    async def away(
        request: Request, error: OSError
    ) -> Response:  # no descriptors are left, and no page can be read
        return PlainTextResponse(f"try again in a moment: {error.strerror or error}\n", 503)

    return app


def make_pages(desk: Desk) -> APIRouter:
    """Make the routes of the pages on one desk."""
    pages = APIRouter(default_response_class=HTMLResponse, include_in_schema=False)

    @pages.get("/assets/{name}")
    def assets(name: str, request: Request) -> Response:
        if name not in (*SCRIPTS, *STYLES):
            raise HTTPException(404, "there is no such asset")
        body, packed, _ = _asset(name)
        headers = {
            "cache-control": "public, max-age=31536000, immutable",
            "vary": "accept-encoding",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            body, headers = packed, {**headers, "content-encoding": "gzip"}
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return Response(body, media_type=f"{kind}; charset=utf-8", headers=headers)

    @pages.get("/")
    async def home() -> HTMLResponse:
        return _page("home.html", title="studies", studies=await desk.overview())

    @pages.get("/studies/{study}")
    async def board(study: Name) -> HTMLResponse:
        record = await run_in_threadpool(desk.study, study)
        state = await run_in_threadpool(desk.watch(record.key).look)
        made = await desk.peek(record.key)  # the board itself never waits for findings
        known = made or Snapshot(record.key, (0, 0), 0.0, 0.0)
        return _page(
            "board.html",
            title=record.name,
            state=state,
            answer=known.section("answer") or "",
            problem=known.problem,
            cells=known.stamp[0],
            made=known.made,
            pending=made is None,
            key=record.key,
            sections=known.sections,
            here="live",
        )

    @pages.get("/studies/{study}/cell")
    async def cell_of(study: Name, model: Wanted, task: Wanted, protocol: Wanted) -> HTMLResponse:
        record = await run_in_threadpool(desk.study, study)
        wanted = partial(
            desk.store.cells, study=record.key, model=model, task=task, protocol=protocol, limit=1
        )
        found = await run_in_threadpool(wanted)
        return await cell(study, there(next(iter(found), None), "there is no such cell").key)

    @pages.get("/studies/{study}/{section}")
    async def section(study: Name, section: Name) -> HTMLResponse:
        record = await run_in_threadpool(desk.study, study)
        made = await desk.snapshot(record.key)
        html = there(made.section(section), "this study has nothing to show here, or not yet")
        behind = (await run_in_threadpool(desk.stamp, record.key))[0] - made.stamp[0]
        return _page(
            "section.html",
            title=record.name,
            section=html,
            behind=behind,
            made=made.made,
            key=record.key,
            sections=made.sections,
            here=section,
        )

    @pages.get("/studies/{study}/data/{name}")
    async def data(study: Name, name: Name) -> Response:
        record = await run_in_threadpool(desk.study, study)
        packed = there((await desk.snapshot(record.key)).parts.get(name))
        return Response(packed, media_type="application/json", headers={"content-encoding": "gzip"})

    @pages.get("/studies/{study}/cells/{cell}")
    async def cell(study: Name, cell: Name) -> HTMLResponse:
        record = await run_in_threadpool(desk.study, study)
        found = await run_in_threadpool(desk.cell, cell)
        lanes = await run_in_threadpool(lambda: desk.store.lanes(cell=cell))
        made = await desk.snapshot(record.key)
        return _page(
            "cell.html",
            title=record.name,
            cell=cell_payload(found, lanes),
            key=record.key,
            provenance=found.provenance.to_dict(),
            sections=made.sections,
            here="cells",
        )

    return pages


def _page(template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    known = {"http_status": status, "key": "", "sections": (), "here": "", **context}
    return HTMLResponse(_templates().get_template(template).render(**known), status_code=status)


@cache
def _templates() -> Any:
    """Return the report's templates with the board's own before them."""
    from jinja2 import ChoiceLoader, PackageLoader

    base = environment()
    made = base.overlay(
        loader=ChoiceLoader([PackageLoader("potentia.show.board", "templates"), base.loader])
    )
    made.filters.update(age=lambda when: f"{format_duration(max(0.0, time.time() - when))} ago")
    made.globals.update(asset_url=lambda name: _asset(name)[2], scripts=SCRIPTS, styles=STYLES)
    return made


@cache
def _asset(name: str) -> tuple[bytes, bytes, str]:
    """Return an asset, packed, and its address: with the hash of its content, so that browsers keep it."""
    body = asset(name).encode()
    return (
        body,
        gzip.compress(body, mtime=0),
        f"/assets/{name}?v={hashlib.sha256(body).hexdigest()[:12]}",
    )


def choose_token(host: str, token: str | None) -> str | None:
    """Return the token to ask for: the given one, a new one for an address that others can reach, else none."""
    if token is not None and len(token) < 8:
        raise InputError(
            "the token is too short to keep anyone out",
            hint="give eight characters or more, or none",
        )
    return token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)


def bind(host: str, port: int) -> socket.socket:
    """Take the address, or say why not."""
    try:
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host.strip("[]"), port))
        made.listen(128)  # early readers wait instead of being refused
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        hint = "another program has it: give another --port" if taken else "check --host and --port"
        raise InputError(
            f"{host}:{port} cannot be used: {error.strerror or error}", hint=hint
        ) from error
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
            record.msg, record.args, record.exc_info = (
                "no descriptors are left (ulimit -n): new readers wait",
                (),
                None,
            )
        if time.monotonic() - self.began > EACH_SECONDS:
            if self.kept_back:
                record.msg, record.args = (
                    f"{record.getMessage()} ({self.kept_back} more before it)",
                    (),
                )
            self.began, self.told, self.kept_back = time.monotonic(), 0, 0
        self.told += 1
        self.kept_back += self.told > MOST_LINES
        return self.told <= MOST_LINES


def _descriptors() -> int:
    """Take all the descriptors that this process may have, and return their number."""
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 65_536 if most == resource.RLIM_INFINITY else min(most, 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted


def serve(
    store_url: str,
    listener: socket.socket,
    *,
    token: str | None = None,
    history: tuple[str, ...] = (),
) -> None:
    """Serve the board of a store on a bound socket until interrupted."""
    import uvicorn

    from potentia.show.board.request_timeout import TimedRequestProtocol

    app = create_app(store_url, token, history=history)

    class Server(uvicorn.Server):
        """Ends the open streams when asked to stop; they would hold it up."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.desk.stop()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        http=TimedRequestProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        limit_concurrency=_descriptors()
        // 2,  # the rest is for files; who comes too late gets a 503
    )
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(Sparing())
    Server(config).run(sockets=[listener])
