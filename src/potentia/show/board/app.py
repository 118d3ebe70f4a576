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
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from potentia.errors import InputError, PotentiaError
from potentia.processes import raise_descriptor_limit
from potentia.show import cell_payload
from potentia.show.board.api import PROMETHEUS_TYPE, Name, make_api, render_prometheus_metrics
from potentia.show.board.board_state import BoardState, require_or_404
from potentia.show.board.security import RequestGuard, is_loopback
from potentia.show.board.snapshot import SnapshotCache, StudySnapshot, make_snapshot
from potentia.show.page import SCRIPTS, STYLES, asset, environment
from potentia.store import Store
from potentia.timing import format_duration
from potentia.values.protocol import TaskName

if TYPE_CHECKING:
    from concurrent.futures import Executor

LINES_PER_PERIOD = 10  # of the server's own log
PERIOD_SECONDS = 60.0
MOST_DESCRIPTORS = 65_536
CellName = Annotated[str, Query(pattern="^[^\0]*$")]


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
    snapshots = SnapshotCache(store_url, executor, partial(make_snapshot, history=history))
    board = BoardState(Store.open(store_url, readonly=True), snapshots)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await board.begin_first_snapshot()
        yield
        board.close()

    app = FastAPI(
        title="Potentia",
        description="Read-only access to a result store: studies, results, examples, findings, and what runs now.",
        version=version("potentia"),
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.board = board
    app.include_router(make_api(board))
    app.include_router(make_pages(board))
    app.add_middleware(RequestGuard, token=token)

    @app.get("/metrics", include_in_schema=False)
    def prometheus_metrics() -> Response:
        return Response(render_prometheus_metrics(board), headers={"content-type": PROMETHEUS_TYPE})

    def answer_error(
        request: Request, status: int, detail: Any, page_detail: str, headers: Any = None
    ) -> Response:
        is_api = request.url.path.startswith("/api/")
        if not is_api and "text/html" in request.headers.get("accept", ""):
            page_status = 404 if status == 422 else status
            return _render_page(
                "error.html", status=page_status, title="not here", detail=page_detail
            )
        return JSONResponse({"detail": detail}, status, headers=headers)

    @app.exception_handler(HTTPException)
    async def answer_refusal(request: Request, error: HTTPException) -> Response:
        return answer_error(
            request, error.status_code, error.detail, str(error.detail), error.headers
        )

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(request: Request, error: RequestValidationError) -> Response:
        problems = [
            {"loc": list(problem["loc"]), "msg": problem["msg"], "type": problem["type"]}
            for problem in error.errors()
        ]
        return answer_error(request, 422, problems, "there is no such page")

    @app.exception_handler(PotentiaError)
    async def answer_own_error(request: Request, error: PotentiaError) -> Response:
        return answer_error(request, 503, error.message, error.message)

    @app.exception_handler(OSError)
    async def answer_system_error(request: Request, error: OSError) -> Response:
        # No descriptors are left, and no page can be read.
        return PlainTextResponse(f"try again in a moment: {error.strerror or error}\n", 503)

    return app


def make_pages(board: BoardState) -> APIRouter:
    """Make the routes of the pages."""
    pages = APIRouter(default_response_class=HTMLResponse, include_in_schema=False)

    @pages.get("/assets/{name}")
    def serve_asset(name: str, request: Request) -> Response:
        if name not in (*SCRIPTS, *STYLES):
            raise HTTPException(404, "there is no such asset")
        served = _load_asset(name)
        headers = {
            "cache-control": "public, max-age=31536000, immutable",
            "vary": "accept-encoding",
        }
        body = served.body
        if "gzip" in request.headers.get("accept-encoding", ""):
            body = served.packed
            headers["content-encoding"] = "gzip"
        media_type = "text/css" if name.endswith(".css") else "text/javascript"
        return Response(body, media_type=f"{media_type}; charset=utf-8", headers=headers)

    @pages.get("/")
    async def show_home() -> HTMLResponse:
        return _render_page("home.html", title="studies", studies=await board.study_overviews())

    @pages.get("/studies/{study}")
    async def show_study(study: Name) -> HTMLResponse:
        record = await run_in_threadpool(board.require_study, study)
        state = await run_in_threadpool(board.watch(record.key).current_state)
        latest = await board.latest_snapshot(record.key)  # the page never waits for findings
        snapshot = latest or StudySnapshot(record.key, stamp=(0, 0), seconds=0.0, made=0.0)
        return _render_page(
            "board.html",
            title=record.name,
            state=state,
            answer=snapshot.section("answer") or "",
            problem=snapshot.problem,
            cells=snapshot.stamp[0],
            made=snapshot.made,
            pending=latest is None,
            key=record.key,
            sections=snapshot.sections,
            here="live",
        )

    @pages.get("/studies/{study}/cell")
    async def show_named_cell(
        study: Name, model: CellName, task: CellName, protocol: CellName
    ) -> HTMLResponse:
        record = await run_in_threadpool(board.require_study, study)
        find_cells = partial(
            board.store.cells.read, study=record.key, model=model, protocol=protocol
        )
        cells = sorted(await run_in_threadpool(find_cells), key=lambda cell: cell.task)
        # a table names the whole task: its first fold answers
        of_task = [cell for cell in cells if task in (cell.task, TaskName(cell.task).whole)]
        cell = require_or_404(next(iter(of_task), None), "there is no such result")
        return await show_cell(study, cell.key)

    @pages.get("/studies/{study}/{section}")
    async def show_section(study: Name, section: Name) -> HTMLResponse:
        record = await run_in_threadpool(board.require_study, study)
        snapshot = await board.snapshot(record.key)
        html = require_or_404(
            snapshot.section(section), "this study has nothing to show here, or not yet"
        )
        cells, _ = await run_in_threadpool(board.count_results, record.key)
        return _render_page(
            "section.html",
            title=record.name,
            section=html,
            behind=cells - snapshot.stamp[0],
            made=snapshot.made,
            key=record.key,
            sections=snapshot.sections,
            here=section,
        )

    @pages.get("/studies/{study}/data/{name}")
    async def serve_section_data(study: Name, name: Name) -> Response:
        record = await run_in_threadpool(board.require_study, study)
        packed = require_or_404((await board.snapshot(record.key)).packed_values.get(name))
        return Response(packed, media_type="application/json", headers={"content-encoding": "gzip"})

    @pages.get("/studies/{study}/cells/{cell}")
    async def show_cell(study: Name, cell: Name) -> HTMLResponse:
        record = await run_in_threadpool(board.require_study, study)
        cell_record = await run_in_threadpool(board.require_cell, cell)
        lanes = await run_in_threadpool(lambda: board.store.lanes.read(cell=cell))
        snapshot = await board.snapshot(record.key)
        return _render_page(
            "cell.html",
            title=record.name,
            cell=cell_payload(cell_record, lanes),
            key=record.key,
            provenance=cell_record.provenance.to_dict(),
            sections=snapshot.sections,
            here="cells",
        )

    return pages


def _render_page(template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    variables = {"http_status": status, "key": "", "sections": (), "here": "", **context}
    return HTMLResponse(
        _load_templates().get_template(template).render(**variables), status_code=status
    )


@cache
def _load_templates() -> Any:
    """Return the report's templates with the board's own before them."""
    from jinja2 import ChoiceLoader, PackageLoader

    report_templates = environment()
    board_templates = PackageLoader("potentia.show.board", "templates")
    templates = report_templates.overlay(
        loader=ChoiceLoader([board_templates, report_templates.loader])
    )
    templates.filters.update(age=_format_age)
    templates.globals.update(
        asset_url=lambda name: _load_asset(name).address, scripts=SCRIPTS, styles=STYLES
    )
    return templates


def _format_age(moment: float) -> str:
    return f"{format_duration(max(0.0, time.time() - moment))} ago"


@dataclass(frozen=True)
class _ServedAsset:
    """An asset, packed, and its address: with the hash of its content, so that browsers keep it."""

    body: bytes
    packed: bytes
    address: str


@cache
def _load_asset(asset_name: str) -> _ServedAsset:
    body = asset(asset_name).encode()
    digest = hashlib.sha256(body).hexdigest()[:12]
    return _ServedAsset(
        body, gzip.compress(body, mtime=0), address=f"/assets/{asset_name}?v={digest}"
    )


def choose_token(host: str, token: str | None) -> str | None:
    """Return the token to ask for: the given one, a new one for an address that others can reach, else none."""
    if token is not None and len(token) < 8:
        raise InputError(
            "the token is too short to keep anyone out",
            hint="give eight characters or more, or none",
        )
    return token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)


def bind_listener(host: str, port: int) -> socket.socket:
    """Take the address, or say why not."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(128)  # early readers wait instead of being refused
    except OSError as error:
        hint = "check --host and --port"
        if error.errno == errno.EADDRINUSE:
            hint = "another program has it: give another --port"
        raise InputError(
            f"{host}:{port} cannot be used: {error.strerror or error}", hint=hint
        ) from error
    return listener


def browser_address(host: str, port: int, token: str | None) -> str:
    """Return what to open in a browser."""
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    query = f"?token={token}" if token else ""
    return f"http://{host}:{port}/{query}"


class RateLimitedLog(logging.Filter):
    """Lets a few records a minute through: with descriptors exhausted, every refused connection is one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._start_period()

    def _start_period(self) -> None:
        self.period_began = time.monotonic()
        self.records = 0
        self.suppressed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether to write this one; the first after a silence tells how many were left out."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            _replace_message(record, "no descriptors are left (ulimit -n): new readers wait")
            record.exc_info = None
        if time.monotonic() - self.period_began > PERIOD_SECONDS:
            if self.suppressed:
                message = f"{record.getMessage()} ({self.suppressed} more before it)"
                _replace_message(record, message)
            self._start_period()
        self.records += 1
        if self.records <= LINES_PER_PERIOD:
            return True
        self.suppressed += 1
        return False


def _replace_message(record: logging.LogRecord, message: str) -> None:
    record.msg = message
    record.args = ()


def serve_board(
    store_url: str,
    listener: socket.socket,
    *,
    token: str | None = None,
    history: tuple[str, ...] = (),
) -> None:
    """Serve the board of a store on a bound socket until interrupted.

    ``history`` are stores or score files of other models, to predict cells that are not measured yet.
    """
    import uvicorn

    from potentia.show.board.request_timeout import TimedRequestProtocol

    app = create_app(store_url, token, history=history)

    class Server(uvicorn.Server):
        """Ends the open streams when asked to stop; they would hold it up."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.board.stop()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        http=TimedRequestProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        # Half of the descriptors are for files; who comes too late gets a 503.
        limit_concurrency=raise_descriptor_limit(MOST_DESCRIPTORS) // 2,
    )
    for logger_name in ("asyncio", "uvicorn.error"):
        logging.getLogger(logger_name).addFilter(RateLimitedLog())
    Server(config).run(sockets=[listener])
