"""A short calibration of the real engine: the study itself, made small, on a few of its models.

The smallest, the middle and the largest model run every task with the study's own lanes and one epoch, once on a few
documents and once on more; what the second took beyond the first is the pace, what is left are the beginnings (loading,
first passes). So padding, shared passes, generation and the device are in the figures as they will be in the run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from potentia.protocol import DIRECT
from potentia.run.cost import CellWork, Pace, StudyCost, paces_of_store, parameters_of, price, rows_left, work_of
from potentia.run.execute import run_study
from potentia.run.plan import StudyPlan, plan_study
from potentia.study import Study

DOCUMENTS = (16, 48)  # of each split
MODELS = 3


def estimate_cost(plan: StudyPlan, *, calibrate: bool = True, tell: Callable[[str], Any] = lambda _: None) -> StudyCost:
    """Price a study by the rows in its store, else by a short calibration; without either, seconds are NaN."""
    from potentia.engine import pick_device
    from potentia.store import Store

    device = str(pick_device(plan.study.device)).partition(":")[0]
    store = Store.find(plan.study.store)
    paces: list[Pace] = []
    if store is not None:
        with store:
            paces = paces_of_store(plan, store, device)
    if any(pace.train is not None for pace in paces) or (paces and not calibrate):
        return price(plan, paces, f"{len(paces)} measured rows in the store", device)
    left = rows_left(plan)
    if not calibrate or not left:
        return price(plan, paces, "", device)
    measured = measure_paces(plan, tell=tell)
    return price(plan, [*paces, *measured], f"a calibration on {len(measured)} of its models", device)


def measure_paces(plan: StudyPlan, *, tell: Callable[[str], Any] = lambda _: None) -> list[Pace]:
    """Run the study in small on a few of its models and return their paces."""
    rows = sorted(rows_left(plan), key=lambda row: np.nan_to_num(parameters_of(row.model), nan=np.inf))
    picked = [rows[k] for k in sorted({0, len(rows) // 2, len(rows) - 1})][:MODELS]
    paces = []
    with tempfile.TemporaryDirectory(prefix="potentia-pace-") as folder:
        for number, row in enumerate(picked):
            tell(f"calibrating on {row.model.name}")
            runs = []
            # The very first run also imports libraries and warms the device: it is made and not counted.
            for k, documents in enumerate((DOCUMENTS[0], *DOCUMENTS) if number == 0 else DOCUMENTS):
                small = _small(plan.study, row.model.name, documents, str(Path(folder) / f"{number}-{k}.db"))
                runs.append(_timed_run(small))
            pace = _slope(parameters_of(row.model), *runs[-2:])
            if pace is not None:
                paces.append(pace)
    return paces


def _small(study: Study, model: str, documents: int, store: str) -> Study:
    rows = {row.name: row for row in study.rows()}
    caps = study.caps.model_copy(
        update={split: min(getattr(study.caps, split), documents) for split in ("train", "validation", "test")}
    )
    adjust = study.adjust
    if adjust is not None:
        own = adjust.tuning and adjust.tuning.model_copy(update={"epochs": 1})
        adjust = adjust.model_copy(update={"at_steps": (), "tuning": own})
    return study.model_copy(
        update={
            "models": (rows[model].model_copy(update={"copy_of": None}),),  # a treated copy is as fast as its original
            "protocols": tuple(dict.fromkeys((DIRECT, *study.protocols))),
            "caps": caps,
            "tuning": study.tuning.model_copy(update={"epochs": 1}),
            "adjust": adjust,
            "treat": None,
            "only": None,
            "store": store,
            "keep_adapters": False,
        }
    )


Timed = tuple[list[tuple[CellWork, float]], float]  # the cells with their seconds, and the seconds of all the rest


def _timed_run(small: Study) -> Timed:
    from potentia.store import Store

    plan = plan_study(small)
    began = time.monotonic()
    run_study(plan)
    whole = time.monotonic() - began
    with Store.open(small.store, readonly=True) as store:
        seconds = {(c.task, str(c.protocol)): c.seconds for c in store.cells()}
    cells = [
        (work, seconds[work.task, str(work.protocol)])
        for work in work_of(plan)
        if (work.task, str(work.protocol)) in seconds
    ]
    return cells, max(whole - sum(s for _, s in cells), 0.0)


def _slope(parameters: float, few: Timed, more: Timed) -> Pace | None:
    """Return the pace between two runs; a share of the plain ratio at least, for clocks are noisy."""
    score: dict[str, float] = {}
    first = {(w.task, w.protocol): (w, s) for w, s in few[0]}
    pairs = [(first[w.task, w.protocol], (w, s)) for w, s in more[0] if (w.task, w.protocol) in first]
    for (a, slow), (b, fast) in ((p, q) for p, q in pairs if not q[0].protocol.tuned):
        score[b.task] = _rate(b.score_tokens - a.score_tokens, fast - slow, b.score_tokens, fast)
    tuned = [(p, q) for p, q in pairs if q[0].train_tokens]
    if not score or not tuned:
        return Pace(parameters, more[1], score, None) if score else None
    tokens = [sum(w[0].train_tokens for w in side) for side in _sides(tuned)]
    asked = [sum(w[0].score_tokens * score.get(w[0].task, 0.0) for w in side) for side in _sides(tuned)]
    whole = [sum(w[1] for w in side) - spent for side, spent in zip(_sides(tuned), asked, strict=True)]
    train = _rate(tokens[1] - tokens[0], whole[1] - whole[0], tokens[1], max(whole[1], 0.0))
    begin = max(whole[1] - train * tokens[1], 0.0)
    return replace(Pace(parameters, more[1], score, train), begin=begin)


def _sides(pairs: Sequence[tuple[tuple[CellWork, float], tuple[CellWork, float]]]) -> tuple[list[Any], list[Any]]:
    return [p for p, _ in pairs], [q for _, q in pairs]


def _rate(tokens: float, seconds: float, all_tokens: float, all_seconds: float) -> float:
    plain = all_seconds / max(all_tokens, 1e-9)
    return max(seconds / tokens, 0.2 * plain) if tokens > 0 else plain
