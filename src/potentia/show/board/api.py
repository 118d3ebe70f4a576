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
from potentia.show import cell_payload, filter_items, item_payload, lane_payload
from potentia.show.board.board_state import BoardState, require_or_404
from potentia.values.findings import to_json_values

Name = Annotated[str, Path(min_length=1, max_length=300)]
PageNumber = Annotated[int, Query(ge=0, le=1_000_000, description="counted from 0")]
PageSize = Annotated[int, Query(ge=1, le=200, description="entries on a page")]
OptionalName = Annotated[str | None, Query(max_length=300, pattern="^[^\0]*$")]
Sample = tuple[Mapping[str, str], float]
CELL_FIELDS = (  # of a list of cells
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
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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


class FindingNames(BaseModel):
    """What there is, by name, as of how many cells, and when it was made (seconds since 1970)."""

    names: list[str]
    cells: int
    made: float
    problem: str


def make_api(board: BoardState) -> APIRouter:
    """Make the routes of the API."""
    router = APIRouter(
        prefix="/api", responses={404: {"description": "there is nothing of that name"}}
    )

    @router.get("/studies")
    def studies() -> list[StudySummary]:
        """Return all studies of the store, the one opened last first."""
        return [StudySummary(**asdict(counts)) for counts in board.study_counts()]

    @router.get("/studies/{study}")
    def study(study: Name) -> dict[str, Any]:
        """Return what runs now: rows, lanes of running rows, counts, recent events."""
        return board.watch(study).current_state()

    events_only: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}

    @router.get("/studies/{study}/stream", response_class=StreamingResponse, responses=events_only)
    async def stream(study: Name) -> StreamingResponse:
        """Follow a study: server-sent events named ``state``, one whenever something changes."""
        watch = board.watch(study)
        return StreamingResponse(
            watch.stream(), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    @router.get("/studies/{study}/answer")
    async def answer(study: Name) -> dict[str, Any]:
        """Return the answer: headline, sentences, and every model's rank with its interval."""
        return (await board.snapshot(board.require_study(study).key)).answer

    @router.get("/studies/{study}/outlook", response_model=dict[str, Any])
    async def outlook(study: Name) -> Any:
        """Return what is predicted of cells not measured yet: P(best), ranks with intervals; 404 once all is there."""
        return _answer_json(
            (await board.snapshot(board.require_study(study).key)).findings.get("completion")
        )

    @router.get("/studies/{study}/findings")
    async def findings(study: Name) -> FindingNames:
        """Name the findings of the study."""
        snapshot = await board.snapshot(board.require_study(study).key)
        return FindingNames(
            names=list(snapshot.findings),
            cells=snapshot.stamp[0],
            made=snapshot.made,
            problem=snapshot.problem,
        )

    @router.get("/studies/{study}/findings/{name}", response_model=dict[str, Any])
    async def finding(study: Name, name: Name) -> Any:
        """Return one finding, as ``potentia analyze rankings --json`` prints it."""
        return _answer_json(
            (await board.snapshot(board.require_study(study).key)).findings.get(name)
        )

    @router.get("/studies/{study}/scores/{protocol}", response_model=dict[str, Any])
    async def scores(study: Name, protocol: Name) -> Any:
        """Return the score matrix of one protocol; missing scores are null."""
        return _answer_json(
            (await board.snapshot(board.require_study(study).key)).scores.get(protocol)
        )

    @router.get("/studies/{study}/cells")
    def cells(
        study: Name,
        protocol: OptionalName = None,
        model: OptionalName = None,
        task: OptionalName = None,
        page: PageNumber = 0,
        size: PageSize = 50,
    ) -> Listing:
        """Return committed cells in the order of their making."""
        filters = {
            "study": board.require_study(study).key,
            "protocol": protocol,
            "model": model,
            "task": task,
        }
        records = board.store.cells.read(**filters, limit=size, offset=page * size)
        entries = []
        for record in records:
            payload = cell_payload(record, ())
            entries.append({name: payload[name] for name in payload if name in CELL_FIELDS})
        return Listing(
            total=board.store.cells.count(**filters), page=page, size=size, entries=entries
        )

    @router.get("/studies/{study}/lanes")
    def lanes(
        study: Name, model: OptionalName = None, page: PageNumber = 0, size: PageSize = 50
    ) -> Listing:
        """Return lanes with their curves."""
        key = board.require_study(study).key
        records = board.store.lanes.read(study=key, model=model, limit=size, offset=page * size)
        entries = [
            {"model": lane.model, "cell": lane.cell, **lane_payload(lane)} for lane in records
        ]
        total = board.store.lanes.count(study=key, model=model)
        return Listing(total=total, page=page, size=size, entries=to_json_values(entries))

    @router.get("/studies/{study}/failures")
    def failures(study: Name, page: PageNumber = 0, size: PageSize = 50) -> Listing:
        """Return the results that failed, with the reason."""
        records = board.store.failures.read(study=board.require_study(study).key)
        entries = [asdict(failure) for failure in records[page * size : (page + 1) * size]]
        return Listing(total=len(records), page=page, size=size, entries=entries)

    @router.get("/studies/{study}/events")
    def events(
        study: Name,
        after: Annotated[int, Query(ge=0, le=2**62, description="the last id already seen")] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> list[dict[str, Any]]:
        """Return the log after an entry, oldest first."""
        records = board.store.events.read(
            board.require_study(study).key, after_id=after, limit=limit
        )
        return [to_json_values(asdict(event)) for event in records]

    @router.get("/cells/{key}")
    def cell(key: Name) -> dict[str, Any]:
        """Return one cell: scores, what validation chose, lanes with curves, and how it was made."""
        record = board.require_cell(key)
        return cell_payload(record, board.store.lanes.read(cell=key), with_provenance=True)

    @router.get("/cells/{key}/items")
    def items(
        key: Name,
        page: PageNumber = 0,
        size: PageSize = 20,
        query: Annotated[
            str, Query(max_length=300, description="text in prompt, answer or right answer")
        ] = "",
        outcome: Literal["all", "right", "wrong"] = "all",
    ) -> Listing:
        """Return a cell's items with the model's answers, searched and paged."""
        board.require_cell(key)
        matching = filter_items(board.items(key), query=query, outcome=outcome)
        on_page = matching[page * size : (page + 1) * size]
        entries = [to_json_values(item_payload(item)) for item in on_page]
        return Listing(total=len(matching), page=page, size=size, entries=entries)

    @router.get("/{rest:path}", include_in_schema=False)
    def nothing(rest: str) -> None:
        raise HTTPException(404, "there is nothing of that name")

    return router


def _answer_json(text: str | None) -> Response:
    """Answer with JSON made earlier, or 404."""
    return Response(require_or_404(text), media_type="application/json")


def render_prometheus_metrics(board: BoardState) -> str:
    """Return every study's counts, and the pace of the rows that run now."""
    cells: list[Sample] = []
    running: list[Sample] = []
    seconds: list[Sample] = []
    rows: list[tuple[Mapping[str, str], Mapping[str, Any]]] = []  # labels, and what a row reports
    for study in board.study_counts():
        labels = {"study": study.name, "key": study.key}
        if study.asked is not None:  # imported scores were never asked for
            cells.append(({**labels, "state": "asked"}, study.asked))
        cells.append(({**labels, "state": "done"}, study.done))
        cells.append(({**labels, "state": "failed"}, study.failed))
        running.append((labels, study.running))
        seconds.append((labels, study.seconds))
        if not study.running:
            continue
        for model, progress in board.store.events.read_progress(study.key).items():
            if is_running(progress):
                rows.append(({"study": study.name, "model": model}, progress))

    def samples_of_rows(field: str) -> list[Sample]:
        return [(labels, row[field]) for labels, row in rows if row.get(field) is not None]

    silent = [(labels, max(0.0, time.time() - at)) for labels, at in samples_of_rows("at")]
    families = [
        _render_family("cells", "Results of a study: asked for, done and failed.", cells),
        _render_family("rows_running", "Models of a study that are computed now.", running),
        _render_family(
            "cell_seconds_total",
            "Seconds that the results of a study took to compute.",
            seconds,
            metric_type="counter",
        ),
        _render_family(
            "row_tokens_per_second",
            "Tokens per second of a model's job.",
            samples_of_rows("tokens_per_second"),
        ),
        _render_family(
            "row_seconds_left",
            "Seconds that the present phase of a model's job will take.",
            samples_of_rows("left"),
        ),
        _render_family(
            "row_lanes", "Fine-tunings of a model that run now.", samples_of_rows("lanes_active")
        ),
        _render_family(
            "row_silent_seconds", "Seconds since the last report of a running job.", silent
        ),
    ]
    return "".join(families)


def _render_family(
    metric_name: str, description: str, samples: Iterable[Sample], *, metric_type: str = "gauge"
) -> str:
    metric_name = f"potentia_{metric_name}"
    lines = [f"# HELP {metric_name} {description}", f"# TYPE {metric_name} {metric_type}"]
    for labels, value in samples:
        lines.append(f"{metric_name}{{{_render_labels(labels)}}} {float(value):.10g}")
    return "\n".join([*lines, ""])


def _render_labels(labels: Mapping[str, str]) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    rendered = []
    for label_name, value in labels.items():
        plain = value.encode("utf-8", "replace").decode()
        rendered.append(f'{label_name}="{plain.translate(escapes)}"')
    return ",".join(rendered)
