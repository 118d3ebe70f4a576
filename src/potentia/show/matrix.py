"""The score matrix of the page: a table for every protocol and for every gain, with gaps and the reasons for them.

The completed matrix, where cells that are not measured yet are predicted, is the same table with those cells hatched.
One cell by itself is plain values, for the page or the API.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import numpy as np

from potentia.analysis.completion import Completion
from potentia.analysis.rankings import AGGREGATE_LABELS
from potentia.store import CellRecord, LaneRecord
from potentia.values.findings import short_names
from potentia.values.protocol import Protocol, in_order
from potentia.values.scores import ItemOutcome
from potentia.values.selection import Selection

if TYPE_CHECKING:
    from potentia.show.answer import Answer
    from potentia.show.source import ItemSample, ReportData

Place = tuple[str, str]  # model, task
IN_LANES = (
    "seeds",
    "failed_lanes",
    "validation_stderr",
    "validation_right",
)  # of a selection: the lanes say it
LONGEST = 2_000  # characters of a prompt or an answer; the middle of longer ones is left out
MOST_CELLS = 12_000  # scores of one table of the page; the best models come first


class Shown(NamedTuple):
    """What one cell shows: a measured score with its error, or a predicted one with its interval."""

    value: float
    stderr: float = math.nan
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class View:
    """One table of the matrix: models and tasks in the order of the page, and what its cells show."""

    id: str
    label: str
    protocol: Protocol
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    ranks: dict[str, tuple[float, float, float]]
    method: str
    up: dict[str, bool]
    facts: dict[str, dict[str, str]]  # family and kind of a model
    failed: dict[tuple[str, str, str], str]  # model, task, protocol → reason
    address: Callable[[str, str, str], str] | None  # of a cell's details
    cells: dict[Place, Shown]
    gain: bool = False

    def shown_tasks(self) -> list[str]:
        """Return the tasks that some model has under this protocol: a column of dots says nothing."""
        known = {t for _, t in self.cells} | {t for _, t, p in self.failed if p == self.protocol}
        return [task for task in self.tasks if task in known]

    def names(self) -> list[tuple[str, str]]:
        """Return every model with its short name."""
        return list(zip(self.models, short_names(self.models), strict=True))

    @cached_property
    def _spread(self) -> dict[str, list[float]]:
        spread: dict[str, list[float]] = {}
        for (_, task), cell in sorted(self.cells.items(), key=lambda at: at[1].value):
            spread.setdefault(task, []).append(cell.value)
        return spread

    def cell(self, model: str, task: str) -> dict[str, Any]:
        """Return what the template writes of one cell."""
        reason = "" if self.gain else self.failed.get((model, task, self.protocol), "")
        cell = self.cells.get((model, task))
        if cell is None:
            return {"reason": reason, "value": None}
        digits = 1 if abs(cell.value) >= 100 else 2 if cell.interval else 3
        good, share = self._shade(cell.value, task)
        linked = self.address is not None and not self.gain and cell.interval is None
        return {
            "reason": reason,
            "value": cell.value,
            "text": f"{cell.value:{'+' if self.gain else ''}.{digits}f}",
            "good": good,
            "share": f"{share:.2f}",
            "link": self.address(model, task, self.protocol) if self.address and linked else "",
            "error": cell.stderr if math.isfinite(cell.stderr) else None,
            "half": f"±{1.96 * cell.stderr:.{digits}f}",
            "interval": cell.interval,
            "ends": [f"{x:.{digits}f}" for x in cell.interval or ()],
        }

    def _shade(self, value: float, task: str) -> tuple[bool, float]:
        """Return whether it is good, and how strong its colour is.

        Scores go by their place among the models of the task, and steeper at the top: there the models differ least
        and matter most. Gains go by their size.
        """
        known, up = self._spread[task], self.up.get(task, True)
        if self.gain:
            reach = max(abs(known[0]), abs(known[-1])) or 1.0
            return (value > 0) == up or value == 0, abs(value) / reach
        place = bisect_left(known, value) / (len(known) - 1) if len(known) > 1 else 0.5
        return True, (place if up else 1 - place) ** 1.7


def score_views(data: ReportData, told: Answer, live: str) -> list[View]:
    """Return the scores by every protocol, the one that ranks first, and the gains over the first."""
    known = _known_of(data, told, live)
    protocols = in_order({*data.evidence.scores, *(f.protocol for f in data.failures)})
    cells = {p: _cells(data, p) for p in protocols}
    first = protocols[0]
    order = sorted(protocols, key=lambda p: p != data.main)
    views = [View(**known, id=p, label=p.label, protocol=p, cells=cells[p]) for p in order]
    for p in protocols[1:]:
        both = (
            (at, cells[first][at], cells[p][at]) for at in cells[p].keys() & cells[first].keys()
        )
        gains = {at: Shown(b.value - a.value, math.hypot(a.stderr, b.stderr)) for at, a, b in both}
        label = f"gain, {p.label}" if len(protocols) > 2 else "gain"
        views.append(View(**known, id=f"gain-{p}", label=label, protocol=p, cells=gains, gain=True))
    return views


def completed_view(data: ReportData, told: Answer, done: Completion, live: str) -> View:
    """Return the matrix that the study will have: measured cells, and predicted ones with their intervals."""
    order = [int(i) for i in np.argsort(done.rank, kind="stable")][
        : max(20, MOST_CELLS // len(done.tasks))
    ]
    known = _known_of(data, told, live) | {
        "models": tuple(done.models[i] for i in order),
        "tasks": done.tasks,
        "ranks": {
            done.models[i]: (done.rank[i], done.rank_low[i], done.rank_high[i]) for i in order
        },
        "method": "mean z score over tasks, predicted",
        "up": dict(zip(done.tasks, done.higher_is_better, strict=True)),
    }
    measured = _cells(data, done.protocol)
    cells = {}
    for i, model in enumerate(done.models):
        for j, task in enumerate(done.tasks):
            guess = Shown(
                float(done.mean[i, j]), interval=(float(done.low[i, j]), float(done.high[i, j]))
            )
            cells[model, task] = (
                measured.get((model, task), guess) if done.measured[i, j] else guess
            )
    return View(
        **known, id="completed", label=done.protocol.label, protocol=done.protocol, cells=cells
    )


def has_details(data: ReportData) -> bool:
    """Say whether some cell has more to show than its score: lanes, items, or how it was made."""
    return bool(data.items) or any(cell.provenance.task.fingerprint for cell in data.cells)


def cells_context(data: ReportData, told: Answer) -> dict[str, Any]:
    """Return what the browser of single cells needs: which there are, and for a file what they hold, by model."""
    (models, tasks), shown = names_of(data), shown_models(data, told)

    def index(live: str) -> dict[str, Any]:
        """Return for every protocol and model a row of noughts and ones over the tasks."""
        there = {(c.protocol, c.model, c.task) for c in data.cells}
        names, protocols = models if live else shown, in_order({c.protocol for c in data.cells})
        return {
            "models": names,
            "tasks": tasks,
            "protocols": [{"name": p, "label": p.label} for p in protocols],
            "there": {
                p: ["".join("01"[(p, m, t) in there] for t in tasks) for m in names]
                for p in protocols
            },
            "main": data.main,
        }

    def by_model() -> dict[
        str, list[Any]
    ]:  # for the file; the board fetches a cell when it is looked at
        lanes: dict[str | None, list[Any]] = {}
        for lane in data.evidence.lanes(shown if len(shown) < len(models) else None):
            lanes.setdefault(lane.cell, []).append(lane)
        made: dict[str, list[Any]] = {model: [] for model in shown}
        for cell in data.cells:
            if cell.model in made:
                made[cell.model].append(
                    cell_payload(cell, lanes.get(cell.key, ()), data.items.get(cell.key))
                )
        return made

    return {"by_model": by_model, "index": index, "per_cell": data.items_per_cell}


def names_of(data: ReportData) -> tuple[list[str], list[str]]:
    """Return every model and task that has a score or a failure, tasks in the order of the matrices."""
    matrices = data.evidence.scores.values()
    models = [
        *(m for matrix in matrices for m in matrix.models),
        *(failure.model for failure in data.failures),
    ]
    tasks = [
        *(t for matrix in matrices for t in matrix.tasks),
        *(failure.task for failure in data.failures),
    ]
    return list(dict.fromkeys(models)), list(dict.fromkeys(tasks))


def shown_models(data: ReportData, told: Answer) -> list[str]:
    """Return the models of the page: ranked ones first, of checkpoints in the order of their steps; no more than fit.

    A page of thousands of models would open in no browser; what is left out is told, and an export has it.
    """
    models, tasks = names_of(data)
    place = {s.model: k for k, s in enumerate(told.standings)}
    models.sort(key=lambda name: (place.get(name, len(place)), name.casefold()))
    if data.runs is not None:
        course = {
            model: k for k, model in enumerate(m for run in data.runs.runs for m in run.models)
        }
        models.sort(key=lambda name: course.get(name, len(course)))
    return models[: max(20, MOST_CELLS // max(1, len(tasks)))]


def _known_of(data: ReportData, told: Answer, live: str) -> dict[str, Any]:
    """Return what all views share: models and tasks in the order of the page, and what is known of them."""
    measured = {
        t: m for x in data.evidence.scores.values() for t, m in zip(x.tasks, x.metrics, strict=True)
    }
    models, (_, tasks) = shown_models(data, told), names_of(data)
    tasks.sort(
        key=lambda task: task in measured and measured[task].is_text
    )  # texts to predict come after the tasks
    known = data.evidence.background
    return {
        "models": tuple(models),
        "tasks": tuple(tasks),
        "ranks": {}
        if data.runs is not None
        else {s.model: (s.rank, *s.rank_interval) for s in told.standings},
        "method": AGGREGATE_LABELS.get(told.method, told.method),
        "up": {task: metric.higher_is_better for task, metric in measured.items()},
        "facts": {
            m: {"family": known.families.get(m, ""), "kind": known.kinds.get(m, "")} for m in models
        },
        "failed": {(f.model, f.task, f.protocol): f.reason for f in data.failures},
        "address": partial(_address, live) if has_details(data) else None,
    }


def _address(live: str, model: str, task: str, protocol: str) -> str:
    """Return where the details of a cell are: in the page, or on the board."""
    if live:
        return f"{live}/cell?{urlencode({'model': model, 'task': task, 'protocol': protocol})}"
    return "#cell=" + "/".join(quote(part, safe="") for part in (model, task, protocol))


def _cells(data: ReportData, protocol: Protocol) -> dict[Place, Shown]:
    matrix = data.evidence.scores.get(protocol)
    found = matrix.scores() if matrix is not None else ()
    return {(model, task): Shown(score.value, score.stderr) for model, task, score in found}


def cell_payload(
    cell: CellRecord,
    lanes: Iterable[LaneRecord],
    items: ItemSample | None = None,
    *,
    with_provenance: bool = False,
) -> dict[str, Any]:
    """Return one cell as plain values for the page or the API: score, what validation chose, lanes, items."""
    score = cell.score
    documents_by_split = cell.provenance.task.splits.used_by_split()
    made: dict[str, Any] = {
        **_fields(cell, "key", "model", "task", "protocol", "metric", "created"),
        "value": _known(score.value),
        "stderr": _known(score.stderr),
        "n": score.n,
        "higher_is_better": score.higher_is_better,
        "scores": {name: [_round(s.value), _round(s.stderr)] for name, s in cell.scores.items()},
        "seconds": round(cell.seconds, 2),
        "direct": _known(cell.direct_value),
        "gain": _known(cell.gain),
        "selection": selection_payload(cell.selection),
        "splits": {name: used for name, used in documents_by_split.items() if used is not None},
        "lanes": [lane_payload(lane) for lane in lanes],
        "items": [item_payload(item) for item in items.shown] if items else [],
        "total": items.total if items else 0,
        "right": items.right if items else None,
    }
    if with_provenance:
        made["provenance"] = cell.provenance.to_dict()
    return made


def selection_payload(selection: Selection) -> dict[str, Any]:
    """Return what validation chose as plain values for the page; what the lanes say is left out."""
    payload = selection.to_dict()
    if selection.search is not None:
        payload["search"] = selection.search.label
        payload["may_have_more"] = selection.may_have_more
    return {
        name: value
        for name, value in payload.items()
        if name not in IN_LANES and value not in (None, [], {}, 0)
    }


def lane_payload(lane: LaneRecord) -> dict[str, Any]:
    """Return one lane with its curve."""
    made = _fields(
        lane, "key", "task", "learning_rate", "style", "seed", "status", "selected", "note"
    )
    curves = {"value": "value", "stderr": "stderr", "loss": "train_loss"}
    made["epoch"] = [point.epoch for point in lane.epochs]
    return made | {
        name: [_round(getattr(p, field)) for p in lane.epochs] for name, field in curves.items()
    }


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def item_payload(item: ItemOutcome) -> dict[str, Any]:
    """Return one item: what was asked, what was right, what the model chose and how sure it was."""
    detail = item.detail
    choices, logprobs = detail.get("choices"), detail.get("logprobs")
    made: dict[str, Any] = {
        "id": item.doc_id,
        "value": _round(item.value),
        "prompt": shorten(str(detail.get("prompt", ""))),
        "gold": shorten(item.gold),
        "prediction": shorten(item.prediction),
    }
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        made["choices"] = [shorten(str(choice), 300) for choice in choices]
        if isinstance(logprobs, Sequence) and len(logprobs) == len(choices):
            made["logprobs"] = [_round(value) for value in logprobs]
    return made


def find_items(
    items: Sequence[ItemOutcome], *, query: str = "", outcome: str = "all"
) -> list[ItemOutcome]:
    """Return the items that are right or wrong as asked and hold the query in prompt, gold or answer, in any case."""
    wanted = query.casefold().strip()

    def holds(item: ItemOutcome) -> bool:
        texts = (str(item.detail.get("prompt", "")), item.gold, item.prediction, str(item.doc_id))
        return any(wanted in text.casefold() for text in texts)

    return [
        item
        for item in items
        if (outcome == "all" or (item.value > 0.5) == (outcome == "right")) and holds(item)
    ]


def shorten(text: str, longest: int = LONGEST) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _round(value: Any) -> float | None:
    return (
        round(float(value), 5) if isinstance(value, (int, float)) and math.isfinite(value) else None
    )
