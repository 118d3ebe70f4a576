"""Signs that a model saw a test: how much it has left to learn of the task, beside models that did not see it.

A model that has seen a test's kind of text has little left to learn from it. The probe of a row (``run/probe.py``)
takes two epochs over a fixed list of training documents. Its loss falls by L1 − L2 in training and by V0 − V1 on
validation documents that it never trains on. ρ and ρᵥ are these falls, per byte, over those of a reference: the median
of models of other families that are declared clean, else the upper quartile of the other families' models (with half of
them exposed a median breaks, and the upper quartile holds). γ asks about documents: the t of the validation documents'
loss less the training documents', before any update, each less the reference models' on that document. It is high for a
model that saw these very documents; on the test documents, for one that saw the test.

How low is low was measured on copies exposed on purpose (``planted.csv``, made by ``bench/exposure.py``): a logistic
curve gives the share of exposed copies among as many exposed and clean ones, and the clean ones count false alarms. The
family of the model in question is left out of both. Related: the fall of losses under fine-tuning (FSD, 2410.10880),
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
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import beta, rankdata

from potentia.errors import InputError
from potentia.values.findings import Cell, Chart, Finding, Heatmap, Table
from potentia.values.scores import Floats

if TYPE_CHECKING:
    from potentia.evidence import Evidence

CLEAN_FAMILIES = 4  # other families that a declared panel needs
LEAST_OTHERS = 3  # models of other families, to say anything at all
FALSE_ALARMS = 0.05  # the most that a sentence may have
VERY_DOCUMENTS = 3.0  # γ from which these very documents are spoken of: one in 700 by chance
LOWEST, HIGHEST = 0.01, 3.0  # ratios beyond are taken as these
PLANTED = Path(__file__).with_name("planted.csv")


@dataclass(frozen=True)
class Reading:
    """What a probe says of one model and task: two falls of loss in nats per byte, and every document's loss before."""

    fall: float
    fall_validation: float
    documents: Mapping[str, Floats]  # by split, nats per byte
    data: str  # names the documents and the settings

    @classmethod
    def of(cls, probe: Mapping[str, Any]) -> Reading:
        """Read what ``Store.probes`` gives."""
        sums = {split: _sums(probe[split]) for split in ("train", "validation", "test") if split in probe}
        nats, tokens, size = sums["train"]
        fall = (probe["epoch_1"] - probe["epoch_2"]) * tokens.sum() / size.sum()
        after = math.nan
        if "after" in probe and "validation" in sums:
            nats, _, size = sums["validation"]
            after = (nats.sum() - sum(probe["after"]["nats"])) / size.sum()
        data = f"{probe['version']} {probe['data']} {probe['learning_rate']:g}"
        return cls(float(fall), float(after), {s: nats / size for s, (nats, _, size) in sums.items()}, data)


def _sums(split: Mapping[str, Any]) -> tuple[Floats, Floats, Floats]:
    nats, tokens, size = (np.asarray(split[name], dtype=np.float64) for name in ("nats", "tokens", "bytes"))
    return nats, tokens, np.maximum(size, 1.0)


@dataclass(frozen=True)
class Sign:
    """What is left of a task for a model to learn, of what the reference has left, and what that says."""

    model: str
    family: str
    task: str
    left: float  # ρ
    left_validation: float  # ρᵥ
    train_documents: float  # γ
    test_documents: float  # γ of the test documents
    reference: str  # "declared clean" or "unknown"
    panel: int  # models of the reference
    probability: float = math.nan  # of exposure, among as many exposed and clean copies
    false_alarms: int = 0  # clean ones of the calibration that are as low
    clean: int = 0  # of so many
    known: bool = False  # the facts say that the model saw the task

    @property
    def score(self) -> float:
        """Both ratios in one number, on a log scale."""
        return low_score(self.left, self.left_validation)

    @property
    def rate_bound(self) -> float:
        """The largest rate of false alarms that the calibration leaves open, with 95 % certainty."""
        return upper_bound(self.false_alarms, self.clean)

    @property
    def speaks(self) -> bool:
        """Whether anything is said of it: copies as low were rather exposed, and hardly a clean one is as low."""
        return bool(self.clean and self.probability > 0.5 and self.false_alarms <= FALSE_ALARMS * self.clean)

    def sentence(self) -> str:
        """Say what is known, and no more."""
        left = min(self.left_validation if math.isfinite(self.left_validation) else self.left, 9.99)
        whose = "models that are declared clean"
        if self.reference == "unknown":
            whose = "the models beside it, whose past is unknown,"
        said = f"On {self.task} {self.model} had {max(left, 0.0):.0%} left to learn of what {whose} have."
        said += " That fits earlier training on this kind of text in this form"
        very = [f"{split} documents" for split, t in (("training", self.train_documents), ("test", self.test_documents))
                if t >= VERY_DOCUMENTS]  # fmt: skip
        if very:
            said += f", and it knows these very {' and '.join(very)} better than others like them"
        else:
            said += "; no sign of these very documents"
        return f"{said}. {self.false_alarms} of {self.clean} clean ones were as low (at most {self.rate_bound:.0%})."


def low_score(left: float, left_validation: float) -> float:
    """Put both ratios into one number: the mean of their logarithms; one alone where the other is not known."""
    known = [x for x in (left, left_validation) if math.isfinite(x)]
    return float(np.mean(np.log(np.clip(known, LOWEST, HIGHEST)))) if known else math.nan


def upper_bound(hits: int, of: int) -> float:
    """Return the upper end of the 95 % interval of a rate (Clopper–Pearson)."""
    return 1.0 if hits >= of else float(beta.ppf(0.975, hits + 1, of - hits))


# --- the measures ----------------------------------------------------------------------------------------------------


def measure_signs(
    readings: Mapping[tuple[str, str], Reading],
    families: Mapping[str, str],
    *,
    clean: Collection[str] = (),
    exposed: Mapping[str, Collection[str]] | None = None,
    least_families: int = CLEAN_FAMILIES,
    calibrate: bool = True,
) -> tuple[list[Sign], list[str]]:
    """Measure every model on every task beside models of other families; returns also who is left out, and why.

    ``clean`` are models declared clean; ``exposed`` the tasks that a model is known to have seen.
    """
    exposed, signs, problems = exposed or {}, [], []
    for task in sorted({task for _, task in readings}):
        here = {model: reading for (model, other), reading in readings.items() if other == task}
        data = Counter(reading.data for reading in here.values()).most_common(1)[0][0]
        if others := sorted(model for model, reading in here.items() if reading.data != data):
            problems.append(f"{task}: probed on other documents or at another rate: {', '.join(others)}")
        here = {model: reading for model, reading in here.items() if reading.data == data}
        seen = {model for model in here if task in exposed.get(model, ())}
        alone: list[str] = []
        for model, reading in here.items():
            family = families.get(model, model)
            beside = [m for m in here if families.get(m, m) != family and m not in seen]
            declared = [m for m in beside if m in clean]
            known = len({families.get(m, m) for m in declared}) >= least_families
            panel = declared if known else beside
            if len(panel) < (1 if known else LEAST_OTHERS):
                alone.append(model)
                continue
            signs.append(_sign(model, family, task, reading, [here[m] for m in panel], known, model in seen))
        if alone:
            few = f"fewer than {LEAST_OTHERS} models of other families, not known to have seen it,"
            problems.append(f"{task}: {few} are beside {', '.join(alone)}")
    made = [_calibrated(sign) for sign in signs] if calibrate else signs
    return made, problems


def _sign(
    model: str, family: str, task: str, reading: Reading, panel: Sequence[Reading], known: bool, seen: bool
) -> Sign:
    def ratio(mine: float, theirs: Iterable[float]) -> float:
        there = np.array([x for x in theirs if math.isfinite(x)])
        reference = float(np.median(there) if known else np.quantile(there, 0.75)) if len(there) else math.nan
        return mine / reference if reference > 0 else math.nan

    return Sign(
        model,
        family,
        task,
        ratio(reading.fall, [p.fall for p in panel]),
        ratio(reading.fall_validation, [p.fall_validation for p in panel]),
        _documents_known(reading, panel, "train"),
        _documents_known(reading, panel, "test"),
        "declared clean" if known else "unknown",
        len(panel),
        known=seen,
    )


def _documents_known(reading: Reading, panel: Sequence[Reading], split: str) -> float:
    """Return γ: Welch's t of validation less these documents, in losses less the panel's on each document."""
    if split not in reading.documents or "validation" not in reading.documents:
        return math.nan
    apart = {
        name: reading.documents[name] - np.mean([p.documents[name] for p in panel], axis=0)
        for name in ("validation", split)
    }
    held, asked = apart["validation"], apart[split]
    if min(len(held), len(asked)) < 8:
        return math.nan
    error = math.sqrt(held.var(ddof=1) / len(held) + asked.var(ddof=1) / len(asked))
    return float((held.mean() - asked.mean()) / error) if error > 0 else math.nan


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
    left: float
    left_validation: float
    train_documents: float
    test_documents: float


@cache
def planted(path: Path = PLANTED) -> tuple[Planted, ...]:
    """Read the calibration that comes with the package."""
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = ("left", "left_validation", "train_documents", "test_documents")
    read: list[dict[str, Any]] = [row | {k: float(row[k] or "nan") for k in numbers} for row in rows]
    return tuple(Planted(**row) for row in read)


IN_FORM = ("same", "other", "test", "once")  # exposure in the test's own form: what P is the chance of


@cache
def calibration(reference: str, without: str, rows: tuple[Planted, ...] | None = None) -> tuple[Floats, float, float]:
    """Return the scores of clean cells, and slope and intercept of the logistic curve; one family left out.

    Clean and exposed cells weigh the same in the curve, whatever their numbers.
    """
    from sklearn.linear_model import LogisticRegression

    known = [row for row in rows or planted() if row.reference == reference and row.family != without]
    clean = np.array([low_score(row.left, row.left_validation) for row in known if not row.way])
    shown = np.array([low_score(row.left, row.left_validation) for row in known if row.way in IN_FORM])
    if not len(clean) or not len(shown):
        return clean, math.nan, math.nan
    x = np.concatenate([clean, shown])
    y = np.concatenate([np.zeros(len(clean)), np.ones(len(shown))])
    curve = LogisticRegression(C=100.0, class_weight="balanced").fit(x[:, None], y)
    return clean, float(curve.coef_[0, 0]), float(curve.intercept_[0])


def _calibrated(sign: Sign, rows: tuple[Planted, ...] | None = None) -> Sign:
    clean, slope, level = calibration(sign.reference, sign.family, rows)
    score = sign.score
    if not math.isfinite(score) or math.isnan(slope):
        return sign
    probability = 1.0 / (1.0 + math.exp(-(slope * score + level)))
    return replace(sign, probability=probability, false_alarms=int(np.sum(clean <= score)), clean=len(clean))


def judged(rows: Sequence[Planted]) -> list[tuple[Planted, Sign]]:
    """Judge every planted cell by a calibration without its family."""
    every = tuple(rows)
    found = []
    for row in every:
        measures = (row.left, row.left_validation, row.train_documents, row.test_documents)
        found.append((row, _calibrated(Sign(row.model, row.family, row.task, *measures, row.reference, 0), every)))
    return found


def ways_table(rows: Sequence[Planted], reference: str = "declared clean") -> Table:
    """Return what the method finds of every way of exposure, also of those that escape it."""
    known = [(row, sign) for row, sign in judged(rows) if row.reference == reference]
    clean = np.array([sign.score for row, sign in known if not row.way])
    body: list[tuple[Cell, ...]] = []
    for way in sorted({row.way for row, _ in known}, key=lambda way: (bool(way), way)):
        own = [sign for row, sign in known if row.way == way]
        alarms = sum(sign.speaks for sign in own)
        very = [sum(getattr(s, name) >= VERY_DOCUMENTS for s in own) for name in ("train_documents", "test_documents")]
        area = area_under(clean, np.array([sign.score for sign in own])) if way else None
        left = float(np.median([math.exp(sign.score) for sign in own]))
        bound = upper_bound(alarms, len(own)) if not way else None
        body.append((way or "none (false alarms)", len(own), alarms, bound, area, left, *very))
    columns = (
        "way",
        "cells",
        "spoken of",
        "at most",
        "area",
        "left",
        "these training documents",
        "these test documents",
    )
    note = (
        "Planted exposure; every cell is judged by a calibration without its family. At most: upper 95 % bound of the "
        "rate. Area: under the ROC curve, beside the clean cells. Left: median share left to learn. The last two: "
        f"cells with γ ≥ {VERY_DOCUMENTS:g}."
    )
    return Table(f"What is found of each way of exposure (reference: {reference})", columns, tuple(body), note)


def area_under(clean: Floats, shown: Floats) -> float:
    """Return the chance that an exposed cell is lower than a clean one."""
    if not len(clean) or not len(shown):
        return math.nan
    ranks = rankdata(np.concatenate([clean, shown]))
    return float(1.0 - (ranks[len(clean) :].sum() - len(shown) * (len(shown) + 1) / 2) / (len(clean) * len(shown)))


# --- the finding -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exposure(Finding):
    """Signs of earlier training on the tasks of a study, cell by cell."""

    signs: tuple[Sign, ...]
    left_out: tuple[str, ...] = ()

    @property
    def spoken(self) -> list[Sign]:
        """The cells that anything is said of, the surest first."""
        return sorted((sign for sign in self.signs if sign.speaks), key=lambda sign: sign.score)

    def sentences(self) -> list[str]:
        """Return a sentence for each cell that is spoken of."""
        return [sign.sentence() for sign in self.spoken]

    def tables(self) -> Sequence[Table]:
        """Return the cells with the least left to learn, and what the method finds where the truth is known."""
        by_score = sorted(self.signs, key=lambda sign: sign.score)
        chosen = self.spoken or by_score[:5]
        rows: list[tuple[Cell, ...]] = [
            (s.model, s.task, s.left_validation, s.left, s.probability,
             *((f"{s.false_alarms} of {s.clean}", s.rate_bound) if s.clean else (None, None)),
             s.train_documents, s.test_documents, s.reference, "yes" if s.known else "")
            for s in chosen
        ]  # fmt: skip
        low = len(self.spoken)
        title = "Little left to learn" if low else "No cell is low enough to speak of; the lowest five"
        columns = ("model", "task", "left (validation)", "left (training)", "P", "false alarms", "at most",
                   "γ training documents", "γ test documents", "reference", "known")  # fmt: skip
        note = (
            f"{low} of {len(self.signs)} cells. Left: the fall of the loss over a short fine-tuning, beside models of "
            "other families. P: share of exposed copies among as many exposed and clean ones, exposed in its form. "
            f"γ ≥ {VERY_DOCUMENTS:g}: the model knows these very documents better than others like them. Evidence, not "
            "proof: text like the test's may have reached a model in many ways. A high value is no evidence of "
            "innocence."
        )
        first = Table(title, columns, tuple(rows), note, digits=2)
        kinds = sorted({sign.reference for sign in self.signs})
        return [first, *(ways_table(planted(), kind) for kind in kinds if planted())]

    def charts(self) -> Sequence[Chart]:
        """Return what is left to learn, models by tasks."""
        models = tuple(dict.fromkeys(sign.model for sign in self.signs))
        tasks = tuple(sorted({sign.task for sign in self.signs}))
        values = np.full((len(models), len(tasks)), math.nan)
        for sign in self.signs:
            values[models.index(sign.model), tasks.index(sign.task)] = min(math.exp(sign.score), HIGHEST)
        return [
            Heatmap(
                "exposure",
                "How much is left to learn",
                "Of what models of other families have left, 1: as much. The darker, the less is left: earlier "
                "training on this kind of text, in this form, looks like that.",
                models,
                tasks,
                values,
                low=0.0,
                high=1.5,
                fewer=True,
            )
        ]


def find_exposure(evidence: Evidence, *, clean: Sequence[str] = ()) -> Exposure:
    """Look for signs of earlier training on the tasks, by the probes that a study recorded."""
    wanted = {(model, task) for m in evidence.scores.values() for model in m.models for task in m.tasks}
    probes = {place: probe for place, probe in evidence.probes().items() if place in wanted}
    if not probes:
        hint = "put `probe: true` into the study and run it anew: cells that are done are not probed"
        raise InputError(f"no probes in {evidence.source}", hint=hint)
    models = {model for model, _ in probes}
    if unknown := sorted(set(clean) - models):
        raise InputError(f"no probe of {unknown[0]}", hint=f"there are: {', '.join(sorted(models)[:12])}")
    facts = {model: evidence.facts.find(evidence.copies.get(model, model)) for model in models}
    families = {model: found.family or model for model, found in facts.items() if found is not None}
    own = {model: evidence.facts.find(model) for model in models}
    exposed = {model: found.exposure for model, found in own.items() if found is not None}
    readings = {place: Reading.of(probe) for place, probe in probes.items()}
    signs, problems = measure_signs(readings, families, clean=clean, exposed=exposed)
    missing = sorted({model for model, _ in wanted} - models)
    if missing:
        problems.append(f"without a probe: {', '.join(missing)}")
    if not signs:
        raise InputError("; ".join(problems) or "nothing to compare", hint="probe models of four families or more")
    return Exposure(tuple(signs), tuple(problems))
