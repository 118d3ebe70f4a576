"""The HTML pages: rendered here from the report's sections and the live state, filled by the report's scripts."""

from __future__ import annotations

import hashlib
import time
from functools import cache
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from potentia.show import SCRIPTS, STYLES, asset, cell_payload, environment
from potentia.show.board.api import Name
from potentia.show.board.board_state import Desk
from potentia.values.findings import clock


@cache
def templates() -> Any:
    """Return the report's templates with the board's own before them."""
    from jinja2 import ChoiceLoader, PackageLoader

    base = environment()
    made = base.overlay(loader=ChoiceLoader([PackageLoader("potentia.show.board", "templates"), base.loader]))
    made.filters.update(age=age)
    made.globals.update(asset_url=asset_url, scripts=SCRIPTS, styles=STYLES)
    return made


@cache
def asset_url(name: str) -> str:
    """Return an asset's address with the hash of its content, so that browsers keep it until it changes."""
    return f"/assets/{name}?v={hashlib.sha256(asset(name).encode()).hexdigest()[:12]}"


def make_pages(desk: Desk) -> APIRouter:
    """Make the routes of the pages on one desk."""
    pages = APIRouter(default_response_class=HTMLResponse, include_in_schema=False)

    @pages.get("/assets/{name}")
    def assets(name: str, request: Request) -> Response:
        if name not in (*SCRIPTS, *STYLES):
            raise HTTPException(404, "there is no such asset")
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        body, packed = _bytes(name)
        headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                packed, media_type=f"{kind}; charset=utf-8", headers={**headers, "content-encoding": "gzip"}
            )
        return Response(body, media_type=f"{kind}; charset=utf-8", headers=headers)

    @pages.get("/")
    async def home() -> HTMLResponse:
        studies = await desk.overview()
        return _page("home.html", title="studies", studies=studies, key="", links=(), here="")

    @pages.get("/studies/{study}")
    async def board(study: Name) -> HTMLResponse:
        record = await run_in_threadpool(desk.study, study)
        state = await run_in_threadpool(desk.watch(record.key).look)
        made = await desk.peek(record.key)  # the board itself never waits for findings
        sections = made.sections if made else ()
        return _page(
            "board.html",
            title=record.name,
            state=state,
            answer=next((html for name, _, html in sections if name == "answer"), ""),
            problem=made.problem if made else "",
            cells=made.stamp[0] if made else 0,
            made=made.made if made else 0.0,
            pending=made is None,
            key=record.key,
            links=_links(sections),
            here="live",
        )

    @pages.get("/studies/{study}/cell")
    async def cell_of(study: Name, model: str, task: str, protocol: str) -> HTMLResponse:
        record = await run_in_threadpool(desk.study, study)
        found = await run_in_threadpool(desk.cell_of, record.key, model, task, protocol)
        return await cell(study, found.key)

    @pages.get("/studies/{study}/{section}")
    async def section(study: Name, section: Name) -> HTMLResponse:
        record = await run_in_threadpool(desk.study, study)
        made = await desk.snapshot(record.key)
        html = next((html for name, _, html in made.sections if name == section), None)
        if html is None:
            raise HTTPException(404, "this study has nothing to show here, or not yet")
        behind = (await run_in_threadpool(desk.stamp, record.key))[0] - made.stamp[0]
        return _page("section.html", title=record.name, section=html, behind=behind, made=made.made, key=record.key,
                     links=_links(made.sections), here=section)  # fmt: skip

    @pages.get("/studies/{study}/data/{name}")
    async def data(study: Name, name: Name) -> Response:
        record = await run_in_threadpool(desk.study, study)
        packed = (await desk.snapshot(record.key)).parts.get(name)
        if packed is None:
            raise HTTPException(404, "there is nothing of that name")
        return Response(packed, media_type="application/json", headers={"content-encoding": "gzip"})

    @pages.get("/studies/{study}/cells/{cell}")
    async def cell(study: Name, cell: Name) -> HTMLResponse:
        record = await run_in_threadpool(desk.study, study)
        found = await run_in_threadpool(desk.cell, cell)
        lanes = await run_in_threadpool(lambda: desk.store.lanes(cell=cell))
        made = await desk.snapshot(record.key)
        return _page("cell.html", title=record.name, cell=cell_payload(found, lanes), key=record.key,
                     manifest=found.manifest, links=_links(made.sections), here="cells")  # fmt: skip

    return pages


def error_page(status: int, detail: str) -> HTMLResponse:
    """Return a page that says what is wrong."""
    return _page("error.html", status=status, title="not here", detail=detail, key="", links=(), here="")


def age(made: float) -> str:
    """Say how long ago something was made."""
    return f"{clock(max(0.0, time.time() - made))} ago"


def _page(template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    context |= {"http_status": status}
    return HTMLResponse(templates().get_template(template).render(**context), status_code=status)


def _links(sections: tuple[tuple[str, str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, title) for name, title, _ in sections)


@cache
def _bytes(name: str) -> tuple[bytes, bytes]:
    import gzip

    body = asset(name).encode()
    return body, gzip.compress(body, mtime=0)
