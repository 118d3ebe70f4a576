"""The application: API, pages, and the guard around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from potentia.errors import PotentiaError
from potentia.show.board.api import make_api
from potentia.show.board.board_state import Desk
from potentia.show.board.metrics import KIND, metrics
from potentia.show.board.pages import error_page, make_pages
from potentia.show.board.security import Guard

if TYPE_CHECKING:
    from concurrent.futures import Executor


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
        version=_version(),
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
        return Response(metrics(desk), headers={"content-type": KIND})

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


def _version() -> Any:
    from importlib.metadata import version

    return version("potentia")
