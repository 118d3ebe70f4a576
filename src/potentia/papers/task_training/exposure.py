"""Signs that a model saw a test: how much it has left to learn of the task, beside models that did not see it.

A model that has seen a test's kind of text has little left to learn from it. The probe of a row (``run/probe.py``)
takes two epochs over a fixed list of training documents, and says by how much two losses fall: that of the whole text
and that of its answer, on the documents it learns from and on validation documents. A reference is what they are
compared with: the median of models of other families that are declared clean, else the upper quartile of the other
families' models (with half of them exposed a median breaks, and the upper quartile holds). Two measures:

- *texts*: the fall of the text's loss, over the reference's. Training on whole texts leaves little of it.
- *answers*: the fall of the answer's loss over that of the prompt's, over the reference's. Training on answers leaves
  little to learn of them and all of the prompts, so that the prompts say how much such a model learns of anything.

γ asks about documents: the t of the validation documents' loss less the training documents', before any update, each
less the reference models' on that document. It is high for a model that saw these very documents; on the test
documents, for one that saw the test.

How low is low was measured on copies exposed on purpose (``planted.csv``, made by ``bench/exposure.py``): each measure
is taken in spreads of clean copies, and the lower of the two counts. A logistic curve gives the share of exposed copies
among as many exposed and clean ones, and the clean ones count false alarms. Copies count that were probed at the same
learning rate and are not of the family in question. Related: the fall of losses under fine-tuning (FSD, 2410.10880),
document inference (2406.06443), Min-K% (2310.16789), CDD (2402.15938), ConStat (2405.16281).
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import mannwhitneyu, ttest_ind

from potentia.analysis.left_out import NO_ENTRIES, drop_names_in
from potentia.analysis.stats import fit_balanced_logistic
from potentia.analysis.stats.intervals import exact_upper_bound
from potentia.errors import InputError
from potentia.values.findings import Cell, Chart, Finding, Heatmap, Table
from potentia.values.scores import Floats
from potentia.values.selection import ProbeResult

if TYPE_CHECKING:
    from potentia.evidence import Evidence

CLEAN_FAMILIES = 4  # other families that a declared panel needs
LEAST_OTHERS = 3  # models of other families, to say anything at all
FALSE_ALARMS = 0.02  # of the calibration: what keeps families that are not in it below 0.05
VERY_DOCUMENTS = 3.0  # γ from which these very documents are spoken of: one in 700 by chance
LEAST_DOCUMENTS = 8  # of a split, for γ
LEAST_FALL = 0.03  # nats a byte; smaller falls of answers and prompts are taken as this
LOWEST, HIGHEST = 0.02, 3.0  # ratios beyond are taken as these
PLANTED = Path(__file__).with_name("planted.csv")
LOSSES = ("text", "answer")
DECLARED = "declared clean"
IN_FORM = (
    "same",
    "other",
    "test",
    "once",
)  # exposure in the test's own form: what P is the chance of


@dataclass(frozen=True)
class Reading:
    """What a probe says of one model and task, by loss and split: what was learned, and documents' losses before."""

    falls: Mapping[
        tuple[str, str], float
    ]  # of the text's loss, a byte; of the answer's, over that of the prompt's
    documents: Mapping[tuple[str, str], Floats]
    data: str  # names the documents and the settings
    rate: float

    @classmethod
    def of(cls, probe: ProbeResult) -> Reading:
        """Read what ``Store.probes`` gives."""
        falls, documents, learned = {}, {}, probe.learned
        sums_by_split = probe.after_epochs[-1]
        for split, losses in probe.before.items():
            for loss in LOSSES:
                sizes = np.maximum(losses.bytes[loss], 1)
                documents[loss, split] = np.array(losses.nats[loss]) / sizes
            if split not in sums_by_split:
                continue
            after = sums_by_split[split]
            nats = {loss: sum(losses.nats[loss][:learned]) - after[loss] for loss in LOSSES}
            size = {loss: sum(losses.bytes[loss][:learned]) for loss in LOSSES}
            falls["text", split] = nats["text"] / max(size["text"], 1)
            if 0 < size["answer"] < size["text"]:
                prompt = (nats["text"] - nats["answer"]) / (size["text"] - size["answer"])
                answer = nats["answer"] / size["answer"]
                falls["answer", split] = max(answer, LEAST_FALL) / max(prompt, LEAST_FALL)
        rate = probe.learning_rate
        return cls(falls, documents, f"{probe.version} {probe.data} {rate:g}", rate)


@dataclass(frozen=True)
class Measures:
    """What is left to learn, of what a reference has left, by loss; and how well documents are known."""

    text: float
    text_validation: float
    answer: float  # beside the prompt
    answer_validation: float
    train_documents: float  # γ, the larger of both losses'
    test_documents: float

    @property
    def gammas(self) -> tuple[float, float]:
        """How well these very training and test documents are known."""
        return self.train_documents, self.test_documents

    def left(self, loss: str) -> float:
        """Return both ratios of a loss as one: their geometric mean, or the one that is known."""
        both = np.array([getattr(self, loss), getattr(self, f"{loss}_validation")])
        known = both[np.isfinite(both)]
        return (
            float(np.exp(np.mean(np.log(np.clip(known, LOWEST, HIGHEST)))))
            if len(known)
            else math.nan
        )


@dataclass(frozen=True)
class Sign:
    """What is left of a task for a model to learn, and what that says."""

    model: str
    family: str
    task: str
    measures: Measures
    reference: str  # "declared clean" or "unknown"
    rate: float  # of the probe
    panel: int = 0  # models of the reference
    known: bool = False  # the facts say that the model saw the task
    loss: str = ""  # of which less is left, beside clean copies
    low: float = math.nan  # how many spreads of clean ones below them
    probability: float = math.nan  # of exposure, among as many exposed and clean copies
    false_alarms: int = 0  # clean ones of the calibration that are as low
    clean: int = 0  # of so many

    @property
    def left(self) -> float:
        """The share that is left to learn, by the loss that says most."""
        return self.measures.left(self.loss or "text")

    @property
    def speaks(self) -> bool:
        """Whether anything is said of it: copies as low were rather exposed, and hardly a clean one is as low."""
        return bool(
            self.clean and self.probability > 0.5 and self.false_alarms <= FALSE_ALARMS * self.clean
        )

    def row(self) -> tuple[Cell, ...]:
        """Return its cells in the table of the exposure."""
        alarms: tuple[Cell, Cell] = (None, None)
        if self.clean:
            alarms = (
                f"{self.false_alarms} of {self.clean}",
                exact_upper_bound(self.false_alarms, self.clean),
            )
        left, known = map(self.measures.left, LOSSES), "yes" if self.known else ""
        return (
            self.model,
            self.task,
            *left,
            self.probability,
            *alarms,
            *self.measures.gammas,
            self.reference,
            known,
        )

    def sentence(self) -> str:
        """Say what is known, and no more."""
        unknown = self.reference == "unknown"
        whose = (
            "the models beside it, whose past is unknown" if unknown else "models declared clean"
        )
        what = f"has {self.left:.0%} as much left to learn as {whose}"
        fits = "this kind of text in this form"
        if self.loss == "answer":
            what = f"learned {self.left:.0%} as much of answers, beside what it learned of prompts, as {whose}"
            fits = "such answers, of this task or of another"
        splits = zip(("training", "test"), self.measures.gammas, strict=True)
        very = " and ".join(
            f"{split} documents" for split, gamma in splits if gamma >= VERY_DOCUMENTS
        )
        knows = f", and it knows these very {very} better than others like them" if very else ""
        fits += knows or "; no sign of these very documents"
        bound = exact_upper_bound(self.false_alarms, self.clean)
        alarms = f"{self.false_alarms} of {self.clean} clean ones were as low (at most {bound:.0%})"
        return (
            f"On {self.task} {self.model} {what}. That fits earlier training on {fits}. {alarms}."
        )


# --- the measures ----------------------------------------------------------------------------------------------------


def measure_signs(
    readings: Mapping[tuple[str, str], Reading],
    families: Mapping[str, str],
    *,
    clean: Collection[str] = (),
    exposed: Mapping[str, Collection[str]] = NO_ENTRIES,
    least_families: int = CLEAN_FAMILIES,
) -> tuple[list[Sign], list[str]]:
    """Measure every model on every task beside models of other families; returns also who is left out, and why.

    ``clean`` are models declared clean; ``exposed`` the tasks that a model is known to have seen.
    """
    signs: list[Sign] = []
    problems: list[str] = []
    for task in sorted({task for _, task in readings}):
        here = {model: reading for (model, other), reading in readings.items() if other == task}
        data = Counter(reading.data for reading in here.values()).most_common(1)[0][0]
        alike = {model: reading for model, reading in here.items() if reading.data == data}
        seen = {model for model in alike if task in exposed.get(model, ())}
        unseen = {model: families.get(model, model) for model in alike if model not in seen}
        measured = []
        for model, reading in alike.items():
            family = families.get(model, model)
            beside = {other: of for other, of in unseen.items() if of != family}
            panel, reference = _panel(beside, clean, least_families)
            if panel:
                measures = _measures(reading, [alike[m] for m in panel], reference == DECLARED)
                measured.append(
                    Sign(
                        model,
                        family,
                        task,
                        measures,
                        reference,
                        reading.rate,
                        len(panel),
                        model in seen,
                    )
                )
        signs += measured
        few = f"fewer than {LEAST_OTHERS} models of other families, not known to have seen it, are beside"
        reasons = {
            "probed on other documents or at another rate:": sorted(drop_names_in(here, alike))
        }
        reasons[few] = drop_names_in(alike, [sign.model for sign in measured])
        problems += [f"{task}: {why} {', '.join(names)}" for why, names in reasons.items() if names]
    return signs, problems


def _panel(beside: Mapping[str, str], clean: Collection[str], least: int) -> tuple[list[str], str]:
    """Return the models to compare with, and what they are known as; none where there are too few."""
    declared = [model for model in beside if model in clean]
    if len({beside[model] for model in declared}) >= least:
        return declared, DECLARED
    return list(beside) if len(beside) >= LEAST_OTHERS else [], "unknown"


def _measures(reading: Reading, panel: Sequence[Reading], known: bool) -> Measures:
    def ratio(place: tuple[str, str]) -> float:
        there = [one.falls[place] for one in panel if place in one.falls] or [math.nan]
        reference = float(np.median(there) if known else np.quantile(there, 0.75))
        return reading.falls.get(place, math.nan) / reference if reference > 0 else math.nan

    falls = (ratio((loss, split)) for loss in LOSSES for split in ("train", "validation"))
    return Measures(
        *falls, *(_documents_known(reading, panel, split) for split in ("train", "test"))
    )


def _documents_known(reading: Reading, panel: Sequence[Reading], split: str) -> float:
    """Return γ: Welch's t of validation less these documents, in losses less the panel's on each; the larger of two."""
    found = []
    for loss in LOSSES:
        places = [(loss, "validation"), (loss, split)]
        if any(len(reading.documents.get(place, ())) < LEAST_DOCUMENTS for place in places):
            return math.nan
        held, asked = (
            reading.documents[p] - np.mean([one.documents[p] for one in panel], axis=0)
            for p in places
        )
        found.append(float(ttest_ind(held, asked, equal_var=False).statistic))
    return float(np.nanmax(found)) if np.isfinite(found).any() else math.nan


# --- calibration on planted truth ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """One probe of a copy or an original whose past is known; ``way`` is empty where it did not see the task."""

    source: str
    model: str
    family: str
    task: str
    way: str
    reference: str
    rate: float
    measures: Measures


@cache
def planted() -> tuple[Planted, ...]:
    """Read the calibration that comes with the package."""
    found = []
    for row in csv.DictReader(PLANTED.read_text("utf-8").splitlines()):
        measures = Measures(*(float(row.pop(name)) for name in Measures.__dataclass_fields__))
        rate = float(row.pop("rate"))
        found.append(Planted(**row, rate=rate, measures=measures))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Calibration:
    """How clean copies spread, and what is low beside them."""

    level: Mapping[
        str, tuple[float, float]
    ]  # by loss: median log of what is left, and how far below one in six is
    clean: Floats  # how low they are
    slope: float
    intercept: float

    @classmethod
    def of(cls, rows: Iterable[Planted]) -> Calibration | None:
        """Measure on cells whose past is known; clean and exposed ones weigh the same, whatever their numbers."""
        ways = [(row.way.removesuffix(" answers"), row.measures) for row in rows]
        clean = [measures for way, measures in ways if not way]
        shown = [measures for way, measures in ways if way in IN_FORM]
        if len(clean) < 2 or not shown:
            return None
        level = {}
        for loss in LOSSES:
            median, lower = np.nanquantile(np.log([one.left(loss) for one in clean]), [0.5, 0.16])
            level[loss] = float(median), float(median - lower)
        made = cls(level, np.array([]), math.nan, math.nan)
        low = [np.array([made.low(one)[0] for one in part]) for part in (clean, shown)]
        x, y = np.concatenate(low), np.repeat([0.0, 1.0], [len(part) for part in low])
        curve = fit_balanced_logistic(x, y > 0)
        return cls(level, low[0], curve.slope, curve.intercept)

    def low(self, measures: Measures) -> tuple[float, str]:
        """Return how many spreads of clean ones a cell is below them, by the loss that says more, and that loss."""
        by = {
            loss: (self.level[loss][0] - math.log(measures.left(loss))) / self.level[loss][1]
            for loss in LOSSES
        }
        known = {loss: low for loss, low in by.items() if math.isfinite(low)}
        loss = max(known, key=lambda name: known[name], default="text")
        return known.get(loss, math.nan), loss

    def judge(self, sign: Sign) -> Sign:
        """Say how low a cell is, and what that means."""
        low, loss = self.low(sign.measures)
        if math.isnan(low):
            return sign
        probability = 1.0 / (1.0 + math.exp(-(self.slope * low + self.intercept)))
        alarms = int(np.sum(self.clean >= low))
        return replace(
            sign,
            loss=loss,
            low=low,
            probability=probability,
            false_alarms=alarms,
            clean=len(self.clean),
        )


_calibration = cache(Calibration.of)


def calibrated(sign: Sign, rows: tuple[Planted, ...] | None = None) -> Sign:
    """Judge a cell by copies of other families, probed at its rate beside such a reference."""
    like = (sign.reference, sign.rate)
    every = planted() if rows is None else rows
    found = _calibration(
        tuple(r for r in every if (r.reference, r.rate) == like and r.family != sign.family)
    )
    return sign if found is None else found.judge(sign)


def judged(rows: Sequence[Planted]) -> list[tuple[Planted, Sign]]:
    """Judge every planted cell by a calibration without its family."""
    every = tuple(rows)
    signs = [
        Sign(row.model, row.family, row.task, row.measures, row.reference, row.rate)
        for row in every
    ]
    return [(row, calibrated(sign, every)) for row, sign in zip(every, signs, strict=True)]


def ways_table(rows: Sequence[Planted], reference: str = DECLARED) -> Table:
    """Return what the method finds of every way of exposure, also of those that escape it."""
    by_way: dict[str, list[Sign]] = {}
    for row, sign in judged(rows):
        if row.reference == reference:
            by_way.setdefault(row.way, []).append(sign)
    lows = {way: np.array([sign.low for sign in signs]) for way, signs in by_way.items()}
    body = []
    for way, signs in sorted(by_way.items()):  # clean ones, which have no way, are first
        alarms = sum(sign.speaks for sign in signs)
        bound = None if way else exact_upper_bound(alarms, len(signs))
        area = area_under(lows.get("", np.array([])), lows[way]) if way else None
        left = [float(np.median([sign.measures.left(loss) for sign in signs])) for loss in LOSSES]
        very = (
            (np.array([sign.measures.gammas for sign in signs]) >= VERY_DOCUMENTS)
            .sum(axis=0)
            .tolist()
        )
        body.append((way or "none (false alarms)", len(signs), alarms, bound, area, *left, *very))
    columns = (
        "way",
        "cells",
        "spoken of",
        "at most",
        "area",
        "left of texts",
        "left of answers",
        "these training documents",
        "these test documents",
    )
    note = (
        "Planted exposure; every cell is judged by a calibration without its family. At most: upper 95 % bound of the "
        "rate. Area: under the ROC curve, beside the clean cells. Left: median share left to learn. The last two: "
        f"cells with γ ≥ {VERY_DOCUMENTS:g}."
    )
    return Table(
        f"What is found of each way of exposure (reference: {reference})", columns, body, note
    )


def area_under(clean: Floats, shown: Floats) -> float:
    """Return the chance that an exposed cell is lower than a clean one."""
    if not len(clean) or not len(shown):
        return math.nan
    return float(mannwhitneyu(shown, clean).statistic / (len(clean) * len(shown)))


# --- the finding -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exposure(Finding):
    """Signs of earlier training on the tasks of a study, cell by cell."""

    signs: tuple[Sign, ...]
    left_out: tuple[str, ...] = ()

    @property
    def spoken(self) -> list[Sign]:
        """The cells that anything is said of, the surest first."""
        return sorted((sign for sign in self.signs if sign.speaks), key=lambda sign: -sign.low)

    def sentences(self) -> list[str]:
        """Return a sentence for each cell that is spoken of."""
        return [sign.sentence() for sign in self.spoken]

    def tables(self) -> Sequence[Table]:
        """Return the cells with the least left to learn, and what the method finds where the truth is known."""
        shown = (
            self.spoken
            or sorted(self.signs, key=lambda sign: -np.nan_to_num(sign.low, nan=-np.inf))[:5]
        )
        rows = [s.row() for s in shown]
        low = len(self.spoken)
        title = (
            "Little left to learn" if low else "No cell is low enough to speak of; the lowest five"
        )
        columns = (
            "model",
            "task",
            "left of texts",
            "left of answers",
            "P",
            "false alarms",
            "at most",
            "γ training documents",
            "γ test documents",
            "reference",
            "known",
        )
        note = (
            f"{low} of {len(self.signs)} cells. Left: the fall of the loss over a short fine-tuning, beside models of "
            "other families. P: share of exposed copies among as many exposed and clean ones, exposed in its form. "
            f"γ ≥ {VERY_DOCUMENTS:g}: the model knows these very documents better than others like them. Evidence, not "
            "proof: text like the test's may have reached a model in many ways. A high value is no evidence of "
            "innocence."
        )
        rates = {sign.rate for sign in self.signs}
        alike = [row for row in planted() if row.rate in rates]
        kinds = sorted({sign.reference for sign in self.signs}) if alike else ()
        return [
            Table(title, columns, rows, note, digits=2),
            *(ways_table(alike, kind) for kind in kinds),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return what is left to learn, models by tasks."""
        left = {(sign.model, sign.task): sign.left for sign in self.signs}
        models, tasks = (
            tuple(dict.fromkeys(model for model, _ in left)),
            tuple(sorted({task for _, task in left})),
        )
        values = np.array(
            [[left.get((model, task), math.nan) for task in tasks] for model in models]
        )
        caption = (
            "Of what models of other families have left, 1: as much; of the text or of the answer, whichever is less "
            "for a model of this kind. The darker, the less is left: earlier training on this kind of text, in this "
            "form, looks like that."
        )
        title = "How much is left to learn"
        return [
            Heatmap(
                "exposure", title, caption, models, tasks, values, low=0.0, high=1.5, fewer=True
            )
        ]


def find_exposure(evidence: Evidence, *, clean: Sequence[str] = ()) -> Exposure:
    """Look for signs of earlier training on the tasks, by the probes that a study recorded."""
    probes = _probes(evidence)
    models = {model for model, _ in probes}
    if unknown := drop_names_in(sorted(clean), models):
        raise InputError(
            f"no probe of {unknown[0]}", hint=f"there are: {', '.join(sorted(models)[:12])}"
        )
    facts = {
        model: evidence.facts.find(evidence.exposed_copies.get(model, model)) for model in models
    }
    families = {model: of.family or model for model, of in facts.items() if of}
    exposed = {model: own.exposure for model in models if (own := evidence.facts.find(model))}
    readings = {place: Reading.of(probe) for place, probe in probes.items()}
    signs, problems = measure_signs(readings, families, clean=clean, exposed=exposed)
    if missing := drop_names_in(
        sorted({model for m in evidence.scores.values() for model in m.models}), models
    ):
        problems.append(f"without a probe: {', '.join(missing)}")
    if not signs:
        raise InputError(
            "; ".join(problems) or "nothing to compare",
            hint="probe models of four families or more",
        )
    found = tuple(map(calibrated, signs))
    if rates := sorted({sign.rate for sign in found if not sign.clean}):
        known = sorted({row.rate for row in planted()})
        problems.append(
            f"no copies were probed at {rates}, only at {known}: what is left is shown, nothing is said"
        )
    return Exposure(found, tuple(problems))


def _probes(evidence: Evidence) -> dict[tuple[str, str], ProbeResult]:
    """Return the probes of models and tasks that have scores."""
    scored = {
        (model, task) for m in evidence.scores.values() for model in m.models for task in m.tasks
    }
    found = {place: probe for place, probe in evidence.probes().items() if place in scored}
    if not found:
        hint = (
            "put `probe: true` into the study and run it anew: cells that are done are not probed"
        )
        raise InputError(f"no probes in {evidence.source}", hint=hint)
    return found
