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
learning rate and are not of the family in question. A cell is spoken of where it is lower than every clean copy, and
significantly so among all cells of the study (Benjamini–Hochberg). Related: the fall of losses under fine-tuning (FSD,
2410.10880), dataset inference (LLM-DI, 2406.06443), Min-K% (2310.16789) and Min-K%++ (2404.02936), CDD (2402.15938),
ConStat (2405.16281), CoDeC.
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
from potentia.analysis.stats.significance import benjamini_hochberg
from potentia.errors import InputError
from potentia.values.findings import Cell, Chart, Finding, Heatmap, Table
from potentia.values.scores import Floats
from potentia.values.selection import ProbeResult

if TYPE_CHECKING:
    from potentia.evidence import Evidence

CLEAN_FAMILIES = 4  # other families that a declared panel needs
LEAST_OTHERS = 3  # models of other families, to say anything at all
FALSE_ALARMS = 0.02  # of the clean copies of any one family; none where it has fewer than fifty
FALSE_DISCOVERIES = 0.05  # share of the results spoken of that may be false (Benjamini–Hochberg)
TAIL = 0.15  # of the clean copies, whose excesses say how likely still lower ones are
DOCUMENTS_LEVEL = 0.99  # of the clean copies' γ, beyond which these very documents are spoken of
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
    worst_family: float = math.nan  # the largest share of one family's clean copies that are as low
    p_value: float = math.nan  # that a clean one is as low
    adjusted: float = math.nan  # the same among all results of the study (Benjamini–Hochberg)
    least_gammas: tuple[float, float] = (math.inf, math.inf)  # of documents that are known

    @property
    def left(self) -> float:
        """The share that is left to learn, by the loss that says most."""
        return self.measures.left(self.loss or "text")

    @property
    def speaks(self) -> bool:
        """Whether anything is said of it: hardly a clean copy of any other family is as low, among all results.

        Families differ: what 2 % of the clean copies of four families reach, 17 % of those of a fifth, stronger one do.
        So the family with the most false alarms decides, and the number of results that were looked at counts.
        """
        is_low = self.clean > 0 and self.worst_family <= FALSE_ALARMS and self.probability > 0.5
        return bool(is_low and self.adjusted <= FALSE_DISCOVERIES)

    def row(self) -> tuple[Cell, ...]:
        """Return its cells in the table of the exposure."""
        alarms: tuple[Cell, Cell] = (None, None)
        if self.clean:
            alarms = (f"{self.false_alarms} of {self.clean}", self.adjusted)
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
        very = " and ".join(f"{split} documents" for split in self.known_documents)
        knows = f", and it knows these very {very} better than others like them" if very else ""
        fits += knows or "; no sign of these very documents"
        bound = exact_upper_bound(self.false_alarms, self.clean)
        alarms = (
            f"{self.false_alarms} of {self.clean} clean copies of other families are as low "
            f"(at most {bound:.1%}; p = {self.adjusted:.2g} among all results of this study)"
        )
        return (
            f"On {self.task} {self.model} {what}. That fits earlier training on {fits}. {alarms}."
        )

    @property
    def known_documents(self) -> list[str]:
        """The splits whose very documents the model knows better than 99 % of the clean copies do."""
        names = ("training", "test")
        known = []
        for name, gamma, least in zip(names, self.measures.gammas, self.least_gammas, strict=True):
            if gamma >= least:
                known.append(name)
        return known


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
    families: tuple[str, ...]  # of these
    slope: float
    intercept: float
    least_gammas: tuple[float, float] = (math.inf, math.inf)  # that 1 % of the clean ones reach

    @classmethod
    def of(cls, rows: Iterable[Planted]) -> Calibration | None:
        """Measure on cells whose past is known; clean and exposed ones weigh the same, whatever their numbers."""
        rows = tuple(rows)
        ways = [(row.way.removesuffix(" answers"), row.measures) for row in rows]
        clean = [measures for way, measures in ways if not way]
        shown = [measures for way, measures in ways if way in IN_FORM]
        if len(clean) < 2 or not shown:
            return None
        level = {}
        for loss in LOSSES:
            median, lower = np.nanquantile(np.log([one.left(loss) for one in clean]), [0.5, 0.16])
            level[loss] = float(median), float(median - lower)
        made = cls(level, np.array([]), (), math.nan, math.nan)
        low = [np.array([made.low(one)[0] for one in part]) for part in (clean, shown)]
        x, y = np.concatenate(low), np.repeat([0.0, 1.0], [len(part) for part in low])
        curve = fit_balanced_logistic(x, y > 0)
        gammas = np.array([measures.gammas for measures in clean])
        train_gamma, test_gamma = np.nanquantile(gammas, DOCUMENTS_LEVEL, axis=0)
        return cls(
            level=level,
            clean=low[0],
            families=tuple(row.family for row in rows if not row.way),
            slope=curve.slope,
            intercept=curve.intercept,
            least_gammas=(float(train_gamma), float(test_gamma)),
        )

    def worst_family(self, low: float) -> float:
        """Return the largest share of the clean copies of one family that are as low."""
        families = np.array(self.families)
        shares = [
            float(np.mean(self.clean[families == name] >= low)) for name in set(self.families)
        ]
        return max(shares)

    def p_value(self, low: float) -> float:
        """Return how likely a clean copy is as low; beyond the lowest ones by an exponential tail."""
        threshold = float(np.nanquantile(self.clean, 1 - TAIL))
        if low <= threshold:
            return float(np.mean(self.clean >= low))
        excesses = self.clean[self.clean > threshold] - threshold
        return TAIL * math.exp(-(low - threshold) / float(excesses.mean()))

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
            worst_family=self.worst_family(low),
            p_value=self.p_value(low),
            adjusted=self.p_value(low),  # as if it were looked at alone
            least_gammas=self.least_gammas,
        )


_calibration = cache(Calibration.of)


def calibrated(sign: Sign, rows: tuple[Planted, ...] | None = None) -> Sign:
    """Judge a cell by copies of other families, probed at its rate beside such a reference."""
    every = planted() if rows is None else rows
    found = _calibration(_find_alike(sign, every))
    return sign if found is None else found.judge(sign)


def _find_alike(sign: Sign, rows: tuple[Planted, ...]) -> tuple[Planted, ...]:
    """Return the copies of other families that were probed at a cell's rate beside such a reference."""
    like = (sign.reference, sign.rate)
    return tuple(
        row for row in rows if (row.reference, row.rate) == like and row.family != sign.family
    )


def adjust_for_many(signs: Sequence[Sign]) -> list[Sign]:
    """Adjust p values for the number of results that were looked at (Benjamini–Hochberg)."""
    if not signs:
        return []
    p_values = np.array([sign.p_value for sign in signs])
    adjusted = benjamini_hochberg(p_values).tolist()
    return [replace(sign, adjusted=value) for sign, value in zip(signs, adjusted, strict=True)]


def judged(rows: Sequence[Planted]) -> list[tuple[Planted, Sign]]:
    """Judge every planted cell by a calibration without its family, those of one source and reference as one study."""
    every = tuple(rows)
    by_study: dict[tuple[str, str], list[Planted]] = {}
    for row in every:
        by_study.setdefault((row.source, row.reference), []).append(row)
    found: list[tuple[Planted, Sign]] = []
    for study in by_study.values():
        calibrations: dict[tuple[str, float], Calibration | None] = {}
        signs = []
        for row in study:
            sign = Sign(row.model, row.family, row.task, row.measures, row.reference, row.rate)
            key = (row.family, row.rate)
            if key not in calibrations:
                calibrations[key] = _calibration(_find_alike(sign, every))
            calibration = calibrations[key]
            signs.append(sign if calibration is None else calibration.judge(sign))
        found += zip(study, adjust_for_many(signs), strict=True)
    return found


def families_table(rows: Sequence[Planted], reference: str = DECLARED) -> Table:
    """Return how many clean cells of every family are spoken of, each judged without its family."""
    by_family: dict[str, list[Sign]] = {}
    for row, sign in judged(rows):
        if row.reference == reference and not row.way:
            by_family.setdefault(row.family, []).append(sign)
    body = []
    for family, signs in sorted(by_family.items()):
        alarms = sum(sign.speaks for sign in signs)
        rate = alarms / len(signs)
        body.append((family, len(signs), alarms, rate, exact_upper_bound(alarms, len(signs))))
    columns = ("family", "clean cells", "spoken of", "rate", "at most")
    note = (
        "False alarms by family: clean cells of the calibration, each judged by copies of the other families. "
        "At most: upper 95 % bound (Clopper–Pearson); few cells leave it wide."
    )
    return Table(f"False alarms by family (reference: {reference})", columns, body, note, digits=3)


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
        very = [
            sum(split in sign.known_documents for sign in signs) for split in ("training", "test")
        ]
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
        f"cells whose γ is higher than that of {DOCUMENTS_LEVEL:.0%} of the clean cells of other families."
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
            "clean as low",
            "adjusted p",
            "γ training documents",
            "γ test documents",
            "reference",
            "known",
        )
        note = (
            f"{low} of {len(self.signs)} cells. Left: the fall of the loss over a short fine-tuning, beside models of "
            "other families. P: share of exposed copies among as many exposed and clean ones, exposed in its form. "
            "γ: how much better the model knows these very documents than others like them; 1 % of clean copies reach "
            f"{self._describe_least_gammas()}. Adjusted p: that a clean copy is as low, among all results "
            "(Benjamini–Hochberg). Evidence, not proof: text like the test's may have reached a model in many ways. "
            "A high value is no evidence of "
            "innocence."
        )
        rates = {sign.rate for sign in self.signs}
        alike = [row for row in planted() if row.rate in rates]
        kinds = sorted({sign.reference for sign in self.signs}) if alike else ()
        return [
            Table(title, columns, rows, note, digits=2),
            *(ways_table(alike, kind) for kind in kinds),
            *(families_table(alike, kind) for kind in kinds),
        ]

    def _describe_least_gammas(self) -> str:
        """Say which γ 1 % of the clean copies reach, on training and on test documents."""
        known = [sign.least_gammas for sign in self.signs if math.isfinite(sign.least_gammas[0])]
        if not known:
            return "an unknown value"
        train, test = np.median(np.array(known), axis=0)
        return f"{train:.1f} on training and {test:.1f} on test documents"

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
    found = tuple(adjust_for_many([calibrated(sign) for sign in signs]))
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
