"""The JSON API: what every page shows, as data, and counts for Prometheus. Lists are paged; nothing can be written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel

from potentia.run import is_running
from potentia.show import cell_payload, find_items, item_payload, lane_payload
from potentia.show.board.board_state import Desk, there
from potentia.values.findings import jsonable

Name = Annotated[str, Path(min_length=1, max_length=300)]
Page = Annotated[int, Query(ge=0, le=1_000_000, description="counted from 0")]
Size = Annotated[int, Query(ge=1, le=200, description="entries on a page")]
Wanted = Annotated[str | None, Query(max_length=300, pattern="^[^\0]*$")]
Sample = tuple[Mapping[str, str], float]
COUNTS = "text/plain; version=0.0.4; charset=utf-8"


class StudySummary(BaseModel):
    """A study and how far it is; ``asked`` is null for imported scores."""

    key: str
    name: str
    created: str
    asked: int | None
    done: int
    failed: int
    running: int
    seconds: float


class Listing(BaseModel):
    """One page of a list."""

    total: int
    page: int
    size: int
    entries: list[dict[str, Any]]


class Names(BaseModel):
    """What there is, by name, as of how many cells, and when it was made (seconds since 1970)."""

    names: list[str]
    cells: int
    made: float
    problem: str


def make_api(desk: Desk) -> APIRouter:
    """Make the routes on one desk."""
    api = APIRouter(
        prefix="/api", responses={404: {"description": "there is nothing of that name"}}
    )

    @api.get("/studies")
    def studies() -> list[StudySummary]:
        """Return all studies of the store, the one opened last first."""
        return [StudySummary(**summary) for summary in desk.summaries()]

    @api.get("/studies/{study}")
    def study(study: Name) -> dict[str, Any]:
        """Return what runs now: rows, lanes of running rows, counts, recent events."""
        return desk.watch(study).look()

    events_only: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}

    @api.get("/studies/{study}/stream", response_class=StreamingResponse, responses=events_only)
    async def stream(study: Name) -> StreamingResponse:
        """Follow a study: server-sent events named ``state``, one whenever something changes."""
        watch = desk.watch(study)
        return StreamingResponse(
            watch.stream(), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    @api.get("/studies/{study}/answer")
    async def answer(study: Name) -> dict[str, Any]:
        """Return the answer: headline, sentences, and every model's rank with its interval."""
        return (await desk.snapshot(desk.study(study).key)).answer

    @api.get("/studies/{study}/outlook", response_model=dict[str, Any])
    async def outlook(study: Name) -> Any:
        """Return what is predicted of cells not measured yet: P(best), ranks with intervals; 404 once all is there."""
        return _json((await desk.snapshot(desk.study(study).key)).findings.get("completion"))

    @api.get("/studies/{study}/findings")
    async def findings(study: Name) -> Names:
        """Name the findings of the study."""
        made = await desk.snapshot(desk.study(study).key)
        return Names(
            names=list(made.findings), cells=made.stamp[0], made=made.made, problem=made.problem
        )

    @api.get("/studies/{study}/findings/{name}", response_model=dict[str, Any])
    async def finding(study: Name, name: Name) -> Any:
        """Return one finding, as ``potentia analyze rankings --json`` prints it."""
        return _json((await desk.snapshot(desk.study(study).key)).findings.get(name))

    @api.get("/studies/{study}/scores/{protocol}", response_model=dict[str, Any])
    async def scores(study: Name, protocol: Name) -> Any:
        """Return the score matrix of one protocol; missing scores are null."""
        return _json((await desk.snapshot(desk.study(study).key)).scores.get(protocol))

    @api.get("/studies/{study}/cells")
    def cells(
        study: Name,
        protocol: Wanted = None,
        model: Wanted = None,
        task: Wanted = None,
        page: Page = 0,
        size: Size = 50,
    ) -> Listing:
        """Return committed cells in the order of their making."""
        only = {"study": desk.study(study).key, "protocol": protocol, "model": model, "task": task}
        found = desk.store.cells(**only, limit=size, offset=page * size)
        wanted = (
            "key",
            "model",
            "task",
            "protocol",
            "metric",
            "value",
            "stderr",
            "n",
            "seconds",
            "created",
            "gain",
        )
        entries = [
            {name: value for name, value in cell_payload(cell, ()).items() if name in wanted}
            for cell in found
        ]
        return Listing(total=desk.store.count(**only), page=page, size=size, entries=entries)

    @api.get("/studies/{study}/lanes")
    def lanes(study: Name, model: Wanted = None, page: Page = 0, size: Size = 50) -> Listing:
        """Return lanes with their curves."""
        key = desk.study(study).key
        shown = desk.store.lanes(study=key, model=model, limit=size, offset=page * size)
        entries = [{"model": lane.model, "cell": lane.cell, **lane_payload(lane)} for lane in shown]
        total = desk.store.count_lanes(study=key, model=model)
        return Listing(total=total, page=page, size=size, entries=jsonable(entries))

    @api.get("/studies/{study}/failures")
    def failures(study: Name, page: Page = 0, size: Size = 50) -> Listing:
        """Return the cells that failed, with the reason."""
        found = desk.store.failures(study=desk.study(study).key)
        entries = [asdict(failure) for failure in found[page * size : (page + 1) * size]]
        return Listing(total=len(found), page=page, size=size, entries=entries)

    @api.get("/studies/{study}/events")
    def events(
        study: Name,
        after: Annotated[int, Query(ge=0, le=2**62, description="the last id already seen")] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> list[dict[str, Any]]:
        """Return the log after an entry, oldest first."""
        found = desk.store.events(desk.study(study).key, after_id=after, limit=limit)
        return [jsonable(asdict(event)) for event in found]

    @api.get("/cells/{key}")
    def cell(key: Name) -> dict[str, Any]:
        """Return one cell: scores, what validation chose, lanes with curves, and how it was made."""
        record = desk.cell(key)
        return cell_payload(record, desk.store.lanes(cell=key), with_provenance=True)

    @api.get("/cells/{key}/items")
    def items(
        key: Name,
        page: Page = 0,
        size: Size = 20,
        query: Annotated[
            str, Query(max_length=300, description="text in prompt, answer or right answer")
        ] = "",
        outcome: Literal["all", "right", "wrong"] = "all",
    ) -> Listing:
        """Return a cell's items with the model's answers, searched and paged."""
        desk.cell(key)
        found = find_items(desk.items(key), query=query, outcome=outcome)
        shown = [jsonable(item_payload(item)) for item in found[page * size : (page + 1) * size]]
        return Listing(total=len(found), page=page, size=size, entries=shown)

    @api.get("/{rest:path}", include_in_schema=False)
    def nothing(rest: str) -> None:
        raise HTTPException(404, "there is nothing of that name")

    return api


def _json(text: str | None) -> Response:
    """Answer with JSON made earlier, or 404."""
    return Response(there(text), media_type="application/json")


def metrics(desk: Desk) -> str:
    """Return every study's counts, and the pace of the rows that run now."""
    studies = [({"study": s["name"], "key": s["key"]}, s) for s in desk.summaries()]
    states = ("asked", "done", "failed")  # imported scores were never asked for
    cells = [
        ({**of, "state": state}, s[state])
        for of, s in studies
        for state in states
        if s[state] is not None
    ]
    running, seconds = ([(of, s[name]) for of, s in studies] for name in ("running", "seconds"))
    rows = [
        ({"study": s["name"], "model": name}, state)
        for _, s in studies
        if s["running"]
        for name, state in desk.store.get_progress(s["key"]).items()
        if is_running(state)
    ]

    def of_rows(field: str) -> list[Sample]:
        return [(labels, state[field]) for labels, state in rows if state.get(field) is not None]

    silent = [(labels, max(0.0, time.time() - at)) for labels, at in of_rows("at")]
    return "".join(
        [
            _family("cells", "Cells of a study: asked for, done and failed.", cells),
            _family("rows_running", "Rows (models) of a study that are computed now.", running),
            _family(
                "cell_seconds_total",
                "Seconds that the cells of a study took to compute.",
                seconds,
                "counter",
            ),
            _family(
                "row_tokens_per_second", "Tokens a second of a row.", of_rows("tokens_per_second")
            ),
            _family(
                "row_seconds_left",
                "Seconds that the present phase of a row will take.",
                of_rows("left"),
            ),
            _family("row_lanes", "Lanes of a row that are tuned now.", of_rows("lanes_active")),
            _family("row_silent_seconds", "Seconds since a running row last spoke.", silent),
        ]
    )


def _family(name: str, words: str, samples: Iterable[Sample], kind: str = "gauge") -> str:
    name = f"potentia_{name}"
    lines = [f"{name}{{{_labels(labels)}}} {float(value):.10g}" for labels, value in samples]
    return "\n".join([f"# HELP {name} {words}", f"# TYPE {name} {kind}", *lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    plain = {name: value.encode("utf-8", "replace").decode() for name, value in labels.items()}
    escaped = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return ",".join(f'{name}="{value.translate(escaped)}"' for name, value in plain.items())
