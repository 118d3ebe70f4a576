"""What the cells of a study cost: lanes, tokens and FLOPs from the tasks, and seconds from paces that were measured.

A pace is how fast a model of some size went on a device: seconds to load, seconds per token scored (by task: texts that
are written cost more than texts that are read) and per token trained. Paces come from the rows that the store holds,
else from a short ``calibration``. A model between two measured sizes has a pace between theirs, one beyond them
pays in proportion to its size.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.errors import InputError
from potentia.run.progress import read_events
from potentia.study import adjust_tuning
from potentia.values.protocol import TRAIN_BEFORE_TEST, Protocol

if TYPE_CHECKING:
    from potentia.run.plan import CellPlan, Row, StudyPlan
    from potentia.store import CellRecord, Store
    from potentia.study import ModelSpec
    from potentia.tasks import Task

CHARACTERS_PER_TOKEN = 4.0  # a rough reading of English text; paces are measured by the same ruler
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LEAST_ROOM, ROOM_PER_PARAMETER = (
    4 * 2**30,
    6.0,
)  # bytes of a GPU: what any row has, weights and their float32 copy
# activations per token and √parameter, half as much again as the layers of five models keep, and tokens of a pass
ROOM_PER_TOKEN, PASS_TOKENS = 44.0, 20_000
FEW_BYTES = {
    "8bit": 1.2,
    "4bit": 0.75,
}  # per weight; embeddings and head among them, which keep their dtype


@dataclass(frozen=True)
class CellWork:
    """What one cell has to do, whoever computes it."""

    model: str
    task: str
    protocol: Protocol
    finished: bool
    lanes: float  # as many as are expected: a search may ask for more learning rates
    train_tokens: float  # over all epochs of all lanes
    score_tokens: float  # test, and validation after every epoch of every lane
    flops: float  # NaN where the size is unknown
    seconds: float = float("nan")


@dataclass(frozen=True)
class Pace:
    """Seconds that a model of this size took; None where that was not measured."""

    parameters: float
    load: float | None  # and all else that is done once a row
    score: Mapping[str, float]  # by task, per token
    train: float | None  # per token
    check: float = 1.0  # how much slower tuned models are asked than untuned ones
    each: float = 0.0  # the fixed part of an epoch's end of all lanes
    shown: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # per token of a question after examples


@dataclass(frozen=True)
class StudyCost:
    """The work of every cell, with seconds where a pace is known."""

    cells: tuple[CellWork, ...]
    loads: Mapping[str, float]  # seconds by model; 0 where only the store's cells were timed
    weights: Mapping[str, float]  # bytes by model; NaN where unknown
    source: str  # where the seconds come from
    device: str
    start: float = (
        0.0  # seconds more that a process takes which begins anew: libraries, kernels, the device
    )

    @property
    def pending(self) -> tuple[CellWork, ...]:
        """The cells still to compute."""
        return tuple(cell for cell in self.cells if not cell.finished)

    @property
    def seconds(self) -> float:
        """Seconds of what is left, in a process that begins anew."""
        left = self.pending
        begin = self.start if left else 0.0
        return float(
            begin
            + sum(c.seconds for c in left)
            + sum(self.loads[m] for m in {c.model for c in left})
        )


def count_work(plan: StudyPlan) -> list[CellWork]:
    """Count lanes, tokens and FLOPs of every cell."""
    study = plan.study
    tuning, data = study.tuning, plan.tasks.auxiliary
    found: list[CellWork] = []

    @cache
    def tokens(name: str, split: Any) -> float:
        return count_tokens(plan.tasks.by_name[name], split)

    for row in plan.rows:
        size = find_parameters(row.model)
        adjusted = [
            cell
            for cell in row.cells
            if cell.protocol.kind == "adjust" and cell.protocol.step is None
        ]
        for cell in row.cells:
            score, train, lanes = tokens(cell.task, "test"), 0.0, 0.0
            if cell.protocol == TRAIN_BEFORE_TEST:
                documents = len(plan.tasks.by_name[cell.task].documents("train"))
                epochs, repeats = tuning.rounds(documents)
                lanes = tuning.expected_lanes * study.seeds
                train = tokens(cell.task, "train") * epochs * repeats * lanes
                score += tokens(cell.task, "validation") * (epochs * lanes + 1)
            elif cell in adjusted and data is not None:  # one tuning for all of them, shared out
                recipe = adjust_tuning(study, row.model, size if size == size else 0.0)
                jobs = recipe.expected_lanes * study.seeds
                lanes = jobs if cell is adjusted[0] else 0.0
                epochs, repeats = recipe.rounds(len(data.documents("train")))
                train = count_tokens(data, "train") * epochs * repeats * jobs / len(adjusted)
                score += tokens(cell.task, "validation") * (jobs + 1)
            flops = size * (4 * train + 2 * score)
            found.append(
                CellWork(
                    row.model.name,
                    cell.task,
                    cell.protocol,
                    cell.finished,
                    lanes,
                    train,
                    score,
                    flops,
                )
            )
    return found


def price_work(
    plan: StudyPlan, paces: Sequence[Pace], source: str, device: str, *, start: float = 0.0
) -> StudyCost:
    """Put seconds on the work of a study."""
    work, shown = count_work(plan), count_exposure_tokens(plan)
    width = BYTES.get(plan.study.dtype, 4 if device == "cpu" else 2)
    tuned = Counter(
        cell.model for cell in work if cell.protocol.tuned and cell.protocol.step is None
    )
    trained = [len(task.documents("train")) for task in plan.tasks.by_name.values()]
    looks = max(plan.study.tuning.rounds(documents)[0] for documents in trained)
    at, loads, weights = {}, {}, {}
    for model in (row.model for row in plan.rows):
        size = find_parameters(model)
        pace = at[model.name] = _pace_at(paces, size)
        made = (
            shown * (pace.train or 0.0) if model.copy_of is not None else 0.0
        )  # tuned before it is there
        loads[model.name] = (pace.load or 0.0) + made
        weights[model.name] = size * FEW_BYTES.get(model.quantise or "", width)
    cells = [
        replace(cell, seconds=_seconds(cell, at[cell.model], looks / max(tuned[cell.model], 1)))
        for cell in work
    ]
    return StudyCost(tuple(cells), loads, weights, source, device, start)


def _seconds(cell: CellWork, pace: Pace, looks: float) -> float:
    """Return the seconds of a cell, which has a share of the looks that all lanes of its row take together."""
    score = pace.score.get(cell.task, _typical(pace.score))
    if cell.protocol.kind == "few_shot":
        score = pace.shown.get(
            (cell.task, str(cell.protocol)), score * (1 + (cell.protocol.shots or 0))
        )
    if not cell.train_tokens:
        return float(cell.score_tokens * score)
    train = np.nan if pace.train is None else pace.train
    return float(
        cell.score_tokens * score * pace.check + cell.train_tokens * train + pace.each * looks
    )


def count_exposure_tokens(plan: StudyPlan) -> float:
    """Return the tokens that a treated copy learns from before it is scored."""
    if plan.study.treat is None:
        return 0.0
    shown = plan.tasks.exposure.values()
    epochs, repeats = plan.study.treat.recipe(plan.study.tuning).rounds(
        sum(len(t.documents("train")) for t in shown)
    )
    return epochs * repeats * sum(count_tokens(task, "train") for task in shown)


def read_paces(plan: StudyPlan, store: Store, device: str) -> list[Pace]:
    """Return the paces of the rows whose cells the store has, of the same kind of device."""
    work = {(w.model, w.task, w.protocol): w for w in count_work(plan)}
    loads = _loads(plan, store)
    paces = []
    for row in plan.rows:
        records = [
            (work[row.model.name, cell.task, cell.protocol], record)
            for cell in row.cells
            if cell.finished and (record := _timed(store, cell, device)) is not None
        ]
        timed = [(w, r.seconds) for w, r in records]
        load = (
            loads.get(row.model.name) if row.model.copy_of is None else None
        )  # a copy is also made
        pace = measure_pace(find_parameters(row.model), timed, load=load)
        if pace is not None and np.isfinite(pace.parameters):
            paces.append(pace)
    return paces


def measure_pace(
    parameters: float, timed: Iterable[tuple[CellWork, float]], *, load: float | None = None
) -> Pace | None:
    """Make a pace of the cells of one row and the seconds they took.

    The tuned cells of a row train together and are committed one by one, so their seconds count as one sum.
    """
    given = list(timed)
    score = {
        w.task: s / w.score_tokens
        for w, s in given
        if w.protocol.kind == "direct" and w.score_tokens
    }
    few = [(w, s) for w, s in given if w.protocol.kind == "few_shot" and w.score_tokens]
    tuned = [(w, s) for w, s in given if w.train_tokens]
    if not score and not tuned:
        return None
    shown = {(w.task, str(w.protocol)): s / w.score_tokens for w, s in few}
    train = _trained(tuned, score) if tuned else None
    return Pace(parameters, load, score or {w.task: 0.0 for w, _ in tuned}, train, shown=shown)


def _trained(tuned: Sequence[tuple[CellWork, float]], score: Mapping[str, float]) -> float:
    """Return the seconds per token trained: all but what asking took; where that is unknown, all."""
    whole, usual = sum(s for _, s in tuned), _typical(score)
    asked = sum(w.score_tokens * score.get(w.task, usual) for w, _ in tuned)
    asked = asked if np.isfinite(asked) else 0.0
    return max(whole - asked, 0.1 * whole) / sum(w.train_tokens for w, _ in tuned)


def count_tokens(task: Task, split: Any) -> float:
    """Estimate the tokens of a split from its first documents."""
    documents: Sequence[Any] = task.documents(split)
    if not documents:
        return 0.0
    sample = documents[: min(len(documents), 50)]
    length = sum(len(r.context) + len(r.continuation) for r in task.examples(sample)) / len(sample)
    return len(documents) * length / CHARACTERS_PER_TOKEN


def estimate_gpu_bytes(model: ModelSpec) -> float:
    """Return the bytes of a GPU that a row needs: weights, passes of lanes, caches; NaN where its size is unknown.

    Passes need most: small models hold longer ones, and one whose passes find no room runs them kernel by kernel.
    """
    size = find_parameters(model)
    tokens = min(PASS_TOKENS, max(10_000, 1e13 / size))
    return LEAST_ROOM + ROOM_PER_PARAMETER * size + ROOM_PER_TOKEN * math.sqrt(size) * tokens


def find_parameters(model: ModelSpec) -> float:
    """Parameters of a model: as the study says, as is known, or by the size of its weight files; NaN where unknown."""
    from potentia.facts import models

    if model.parameters:
        return model.parameters
    facts = models().find(model.name) or models().find(model.source)
    if facts is not None and facts.parameters:
        return facts.parameters
    return _file_bytes(model) / 2 or float("nan")


def _file_bytes(model: ModelSpec) -> int:
    """Return the size of the weight files of a folder; 0 where there are none."""
    folder = Path(model.source).expanduser()
    return sum(
        f.stat().st_size for pattern in ("*.safetensors", "*.bin") for f in folder.glob(pattern)
    )


def estimate_weight_bytes(row: Row) -> int | None:
    """Return the size of a model's weights in memory, by its files or its facts; None where nothing is known."""
    wide = 4 if row.study.dtype in ("float32", "auto") else 2
    file, inside = Path(row.model.source).expanduser(), _file_bytes(row.model)
    if file.is_file():
        whole = 4 * file.stat().st_size  # a GGUF file is unpacked
    elif inside:
        whole = inside * (2 if wide == 4 else 1)
    elif row.model.parameters:
        whole = int(row.model.parameters * wide)
    else:
        return None
    few = FEW_BYTES.get(row.model.quantise or "")
    return whole if few is None else int(whole / wide * few)


# --- paces in between ---------------------------------------------------------------------------------------------


def _pace_at(paces: Sequence[Pace], size: float) -> Pace:
    """Return the pace of a size: between measured ones on log scales, beyond them in proportion."""

    def pick(read: Callable[[Pace], float | None]) -> float | None:
        return _between(paces, size, read)

    def table(name: str) -> dict[Any, float]:
        places = {place for pace in paces for place in getattr(pace, name)}
        found = {at: pick(lambda pace: getattr(pace, name).get(at)) for at in places}  # noqa: B023 - read at once
        return {at: value for at, value in found.items() if value is not None}

    load, train, each = (pick(attrgetter(name)) for name in ("load", "train", "each"))
    check = _between(paces, size, attrgetter("check"), alike=True)
    score, shown = table("score"), table("shown")
    return Pace(size, load, score, train, 1.0 if check is None else check, each or 0.0, shown)


def _between(
    paces: Sequence[Pace], size: float, read: Callable[[Pace], float | None], *, alike: bool = False
) -> float | None:
    known = sorted((p.parameters, v) for p in paces if (v := read(p)) is not None)
    if not known:
        return None
    x, y = (np.array(part, dtype=np.float64) for part in zip(*known, strict=True))
    if not np.isfinite(size):
        return float(np.median(y))
    sizes = np.unique(x)
    means = np.array([y[x == s].mean() for s in sizes])
    inside = float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(np.maximum(means, 1e-12)))))
    return inside if alike else inside * max(size / float(sizes[-1]), 1.0)


def _typical(score: Mapping[str, float]) -> float:
    return float(np.median(list(score.values()))) if score else float("nan")


def _timed(store: Store, cell: CellPlan, device: str) -> CellRecord | None:
    """Return the cell's record where its seconds were measured on such a device."""
    record = store.cells.get(cell.key)
    if record is None or record.seconds <= 0:
        return None
    where = record.provenance.model.device or ""
    return record if where.partition(":")[0] == device else None


def _loads(plan: StudyPlan, store: Store) -> dict[str, float]:
    """Return the seconds that the rows of this study took to load when they ran last."""
    rows = [event.payload for event in read_events(store, plan.key) if event.kind == "row"]
    return {
        str(row["row"]): float(row["tally"]["load"])
        for row in rows
        if "load" in row.get("tally", {})
    }


UNITS = {
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "gpuh": 3600.0,
    "gpu-hour": 3600.0,
    "gpu-hours": 3600.0,
    "d": 86400.0,
    "days": 86400.0,
}


def parse_budget(text: str, whole: float) -> float:
    """Read a budget in seconds of the device: ``90s``, ``30min``, ``1.5h``, ``2gpu-hours``, or ``10%`` of all."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z-]+|%)\s*", text)
    if found is None or (found[2] != "%" and found[2].lower() not in UNITS) or float(found[1]) <= 0:
        raise InputError(
            f"a budget of {text!r}",
            hint="say 90s, 30min, 2h, 2gpu-hours, or 10% of the whole study",
        )
    if found[2] == "%":
        return float(found[1]) / 100.0 * whole
    return float(found[1]) * UNITS[found[2].lower()]


def format_time(seconds: float) -> str:
    """Say a time as a person would: 40 s, 12 min, 3.5 h."""
    if not np.isfinite(seconds):
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
