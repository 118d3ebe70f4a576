"""Two models side by side on every task they share: who is better, by how much, and how sure that is.

Both have answered the same documents, so where items are stored the difference is taken document by document: its
interval is of the paired differences, and McNemar's exact test looks at the documents that one model alone gets right.
Where there are no items, or a score is no mean of items (f1, mcc), two scores have nothing in common but their errors.
Many tasks are looked at, so which differences are real is decided together (Benjamini–Hochberg, 5 % false discoveries);
who is better over all of them is what the overall ranking says (``decide``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from potentia.analysis.rankings.decide import Lead, Missing, decide, lead_of, noise_of, paired_items, what_is_missing
from potentia.analysis.rankings.groups import items_per_task
from potentia.analysis.rankings.sentences import pair_sentences
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.significance import benjamini_hochberg, mcnemar
from potentia.errors import InputError
from potentia.values.findings import Cell, Finding, Interval, Table, short_names
from potentia.values.protocol import Protocol
from potentia.values.scores import Outcomes, ScoreMatrix, seed_error

if TYPE_CHECKING:
    from potentia.evidence import Evidence

MCNEMAR, PAIRED, APART = "McNemar", "paired t", "z"


@dataclass(frozen=True)
class TaskPair:
    """One task under one protocol; ``difference`` is of the first model over the second, and more is better."""

    models: tuple[str, str]
    protocol: Protocol
    task: str
    first: float
    second: float
    difference: Interval
    p_value: float
    test: str
    documents: int | None  # that both have answered; None without items
    first_only: tuple[int, ...] = ()  # documents that the first model alone gets right
    second_only: tuple[int, ...] = ()
    text: bool = False  # a text to predict, in bits; it has no part in a mean of scores
    real: bool = False  # significant among all tasks of the protocol


@dataclass(frozen=True)
class Pair(Finding):
    """Two models on every task and protocol that both have."""

    first: str
    second: str
    tasks: tuple[TaskPair, ...]
    leads: dict[Protocol, Lead]  # who is better over all tasks of a protocol
    missing: dict[Protocol, Missing]  # what would tell them apart
    level: float = LEVEL

    @property
    def names(self) -> tuple[str, str]:
        """The two models by the short names that people read."""
        one, two = short_names([self.first, self.second])
        return one, two

    def sentences(self) -> list[str]:
        """Say, for each protocol, who is better and how sure that is."""
        found = []
        for protocol, lead in self.leads.items():
            pairs = [pair for pair in self.tasks if pair.protocol == protocol]
            tasks = [pair for pair in pairs if not pair.text] or pairs
            found += pair_sentences(lead, protocol, tasks, self.missing.get(protocol))
        return found

    def tables(self) -> Sequence[Table]:
        """Return a row for each task and protocol."""
        one, two = self.names
        items = any(pair.documents is not None for pair in self.tasks)
        rows: list[tuple[Cell, ...]] = []
        for pair in self.tasks:
            low, high = pair.difference.low, pair.difference.high
            row: list[Cell] = [pair.protocol.label, pair.task, pair.first, pair.second, pair.difference.value]
            row.append(f"{low:+.3f} to {high:+.3f}" if math.isfinite(low) else None)
            counted = pair.documents is not None
            if items:
                row += [len(pair.first_only), len(pair.second_only), pair.documents] if counted else [None] * 3
            p = "< 0.001" if pair.p_value < 0.0005 else pair.p_value
            rows.append((*row, p, pair.test, "yes" if pair.real else "no"))
        alone = (f"{one} alone", f"{two} alone", "documents") if items else ()
        note = "Difference: the first over the second, where more is better."
        if items:
            note += " Alone: documents that one of the two alone gets right."
        note += " Real: significant among all tasks of the protocol (Benjamini–Hochberg, 5 % false discoveries)."
        span = f"{100 * self.level:.0f} % interval"
        columns = ("protocol", "task", one, two, "difference", span, *alone, "p", "test", "real")
        return [Table(f"{one} against {two}", columns, tuple(rows), note=note)]


def find_pair(evidence: Evidence, first: str, second: str, *, level: float = LEVEL) -> Pair:
    """Compare two models, given by name or by a part of it that no other model has."""
    from potentia.analysis.planning.find import unseen_cells  # planning lies above this room

    one, two = (known_model(evidence, name) for name in (first, second))
    if one == two:
        raise InputError(f"{first} and {second} are the same model", where=evidence.source)
    pairs: list[TaskPair] = []
    leads: dict[Protocol, Lead] = {}
    missing: dict[Protocol, Missing] = {}
    for protocol, matrix in evidence.planned.items():
        if not {one, two} <= set(matrix.models):
            continue
        outcomes = evidence.outcomes.get(protocol, {})
        found = compare_tasks(matrix.select(models=[one, two]), outcomes, level=level)
        if not found:
            continue
        pairs += found
        ranked = matrix.benchmarks() if any(not pair.text for pair in found) else matrix.corpora()
        ranking = decide(ranked, outcomes, unseen=unseen_cells(evidence, [ranked]).get(protocol), level=level)
        lead = lead_of(ranking, ranked, outcomes, one, two)
        if lead is not None:
            leads[protocol] = lead
            more = what_is_missing(ranking, ranked, outcomes, items_per_task(ranked), lead.first, lead.second)
            missing |= {} if more is None else {protocol: more}
    if not pairs:
        raise InputError(f"{one} and {two} share no task", where=evidence.source)
    return Pair(one, two, tuple(pairs), leads, missing, level)


def compare_tasks(matrix: ScoreMatrix, outcomes: Outcomes, *, level: float = LEVEL) -> list[TaskPair]:
    """Compare the two rows of a matrix on every task that both have; which differences are real is decided together."""
    tasks = set(matrix.benchmarks().tasks)
    every = [_of_task(matrix, k, outcomes, level, text=t not in tasks) for k, t in enumerate(matrix.tasks)]
    found = [pair for pair in every if pair is not None]
    if not found:
        return []
    adjusted = benjamini_hochberg(np.array([[pair.p_value] for pair in found]))[:, 0]
    return [replace(pair, real=bool(p <= 1 - level)) for pair, p in zip(found, adjusted.tolist(), strict=True)]


def known_model(evidence: Evidence, name: str) -> str:
    """Return the model that is meant: its name, its last part, or a part that no other model has."""
    models, plain = evidence.models, name.casefold()
    for same in (
        lambda m: m == name,
        lambda m: m.rpartition("/")[2].casefold() == plain,
        lambda m: plain in m.casefold(),
    ):
        found = [model for model in models if same(model)]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(
                f"{name!r} may be {len(found)} models", where=evidence.source, hint=f"such as {', '.join(found[:5])}"
            )
    raise InputError(f"no model {name!r}", where=evidence.source, hint=f"there are: {', '.join(models[:12])}")


def _of_task(matrix: ScoreMatrix, k: int, outcomes: Outcomes, level: float, *, text: bool) -> TaskPair | None:
    """Compare the two rows of a matrix on one task; None where one has no score."""
    one, two = (float(v) for v in matrix.values[:, k])
    if not (math.isfinite(one) and math.isfinite(two)):
        return None
    difference = (one - two) * (1.0 if matrix.higher_is_better[k] else -1.0)
    error, test, p, freedom = float(np.hypot(*matrix.stderr[:, k])), APART, math.nan, math.inf
    documents, only = None, ((), ())
    if np.isfinite(matrix.n[:, k]).all() and math.isfinite(error):  # the errors themselves are known from n documents
        error, freedom = float(np.hypot(*noise_of(matrix, k, None))), float(matrix.n[:, k].min()) - 1
    found = paired_items(matrix, k, outcomes)
    if found is not None:
        x, y = found[1]
        documents, freedom, test = len(x), len(x) - 1, PAIRED
        seeds = [0.0] if matrix.seeds is None else [seed_error(s or ()) for s in matrix.seeds[:, k]]
        error = math.hypot(float(np.std(x - y, ddof=1)) / math.sqrt(len(x)), *seeds)
        if set(np.unique([x, y])) <= {0.0, 1.0}:
            numbers = np.array(sorted(outcomes[matrix.tasks[k]][matrix.models[0]]))
            only = (tuple(numbers[x > y].tolist()), tuple(numbers[x < y].tolist()))
            test, p = MCNEMAR, mcnemar(len(only[0]), len(only[1]))
    if test != MCNEMAR and math.isfinite(error):
        p = 2.0 * float(student.sf(abs(difference) / error, freedom)) if error > 0 else float(difference == 0)
    half = float(norm.ppf(0.5 + level / 2)) * error
    span = Interval(difference, difference - half, difference + half, level)
    names = (matrix.models[0], matrix.models[1])
    return TaskPair(names, matrix.protocol, matrix.tasks[k], one, two, span, p, test, documents, *only, text=text)
