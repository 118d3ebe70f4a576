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
documents, for one that saw the test. Documents that share a passage are read alike, so its errors are clustered.

How low is low was measured on copies exposed on purpose (``planted.csv``, made by ``bench/exposure.py``): each measure
is taken in spreads of clean copies and beside what these have by the same measure, and the less likely of the two
counts, at half the level. A logistic curve gives the share of exposed copies among as many exposed and clean ones, and
the clean ones count false alarms. Copies count that were probed at the same learning rate and are not of the family in
question. A cell is flagged where hardly a clean copy of any one family is as low, and significantly so among all
cells of the study (Benjamini–Hochberg). Related: the fall of losses under fine-tuning (FSD,
2410.10880), dataset inference (LLM-DI, 2406.06443), Min-K% (2310.16789) and Min-K%++ (2404.02936), CDD (2402.15938),
ConStat (2405.16281), CoDeC.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import mannwhitneyu

from potentia.analysis.left_out import NO_ENTRIES, drop_names_in
from potentia.analysis.stats import fit_balanced_logistic
from potentia.analysis.stats.intervals import exact_upper_bound
from potentia.analysis.stats.relatives import ModelFamilies
from potentia.analysis.stats.significance import benjamini_hochberg
from potentia.errors import InputError, suggest_names
from potentia.values.clusters import Clusters, clustered_error
from potentia.values.findings import Chart, Finding, Heatmap, Table, TableValue
from potentia.values.scores import Floats
from potentia.values.selection import ProbeResult

if TYPE_CHECKING:
    from potentia.evidence import Evidence

CLEAN_FAMILIES = 4  # other families that a declared panel needs
LEAST_OTHERS = 3  # models of other families, to say anything at all
FALSE_ALARMS = 0.02  # of the clean copies of any one family; none where it has fewer than fifty
FALSE_DISCOVERIES = 0.05  # share of the flagged results that may be false (Benjamini–Hochberg)
TAIL = 0.15  # of the clean copies, whose excesses say how likely still lower ones are
DOCUMENTS_LEVEL = 0.99  # of the clean copies' γ, beyond which these very documents count as known
LEAST_DOCUMENTS = 8  # of a split, for γ
LEAST_FALL = 0.03  # nats a byte; smaller falls of answers and prompts are taken as this
LOWEST, HIGHEST = 0.02, 3.0  # ratios beyond are taken as these
PLANTED = Path(__file__).with_name("planted.csv")
LOSSES = ("text", "answer")
DECLARED = "declared clean"
IN_FORM = ("same", "other", "test", "once")  # in the test's own form: what P is the chance of
SIGNS_LISTED = 5  # where none is flagged


@dataclass(frozen=True)
class ProbeReading:
    """What a probe says of one model and task, by loss and split: what was learned, and documents' losses before."""

    # of the text: how far its loss fell, in nats a byte; of the answer: the ratio of its fall to the prompt's
    learned_amounts: Mapping[tuple[str, str], float]
    documents: Mapping[tuple[str, str], Floats]
    data: str  # names the documents and the settings
    rate: float
    clusters: Mapping[str, Clusters] = field(default_factory=dict)  # by split, of its documents

    @classmethod
    def of(cls, probe: ProbeResult) -> ProbeReading:
        """Read one probe, as ``store.provenance.read_probes`` gives them by model and task."""
        learned_amounts: dict[tuple[str, str], float] = {}
        documents: dict[tuple[str, str], Floats] = {}
        clusters: dict[str, Clusters] = {}
        learned = probe.learned
        sums_by_split = probe.after_epochs[-1]
        for split, losses in probe.before.items():
            for loss in LOSSES:
                sizes = np.maximum(losses.bytes[loss], 1)
                documents[loss, split] = np.array(losses.nats[loss]) / sizes
            label_by_document = dict(enumerate(losses.clusters))
            clusters[split] = Clusters.of_examples(
                range(len(documents["text", split])), label_by_document
            )
            if split not in sums_by_split:
                continue
            after = sums_by_split[split]
            nats_learned = {}
            byte_count = {}
            for loss in LOSSES:
                nats_before = sum(losses.nats[loss][:learned])
                nats_learned[loss] = nats_before - after[loss]
                byte_count[loss] = sum(losses.bytes[loss][:learned])
            learned_amounts["text", split] = nats_learned["text"] / max(byte_count["text"], 1)
            if 0 < byte_count["answer"] < byte_count["text"]:
                prompt_drop = (nats_learned["text"] - nats_learned["answer"]) / (
                    byte_count["text"] - byte_count["answer"]
                )
                answer_drop = nats_learned["answer"] / byte_count["answer"]
                learned_amounts["answer", split] = max(answer_drop, LEAST_FALL) / max(
                    prompt_drop, LEAST_FALL
                )
        learning_rate = probe.learning_rate
        data = f"{probe.version} {probe.data} {learning_rate:g}"
        return cls(learned_amounts, documents, data, learning_rate, clusters)

    def clusters_of(self, split: str, documents: Floats) -> Clusters:
        """Return which of a split's documents share a passage."""
        return self.clusters.get(split, Clusters.singletons(len(documents)))


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
        """Return both ratios of a loss as one: their mean, or the one that is known; a loss that rose counts as 0.

        A geometric mean would take a validation loss that rises, as that of a small probe on a strong model may, for
        nothing left to learn, however much the model learned of its training examples.
        """
        ratios = np.array([getattr(self, loss), getattr(self, f"{loss}_validation")])
        finite_ratios = ratios[np.isfinite(ratios)]
        if not len(finite_ratios):
            return math.nan
        mean = float(np.mean(np.clip(finite_ratios, 0.0, HIGHEST)))
        return max(LOWEST, mean)


@dataclass(frozen=True)
class ExposureSign:
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
    def is_flagged(self) -> bool:
        """Whether it is a sign of exposure: hardly a clean copy of any other family is as low, among all results.

        Families differ: what 2 % of the clean copies of four families reach, 17 % of those of a fifth, stronger one do.
        So the family with the most false alarms decides, and the number of results that were looked at counts.
        """
        is_low = self.clean > 0 and self.worst_family <= FALSE_ALARMS and self.probability > 0.5
        return bool(is_low and self.adjusted <= FALSE_DISCOVERIES)

    def row(self) -> tuple[TableValue, ...]:
        """Return its cells in the table of the exposure."""
        clean_as_low: tuple[TableValue, TableValue] = (None, None)
        if self.clean:
            clean_as_low = (f"{self.false_alarms} of {self.clean}", self.adjusted)
        return (
            self.model,
            self.task,
            *map(self.measures.left, LOSSES),
            self.probability,
            *clean_as_low,
            *self.measures.gammas,
            self.reference,
            "yes" if self.known else "",
        )

    def sentence(self) -> str:
        """Say what is known, and no more."""
        panel = "models declared clean"
        if self.reference == "unknown":
            panel = "models of other families, whose training data is unknown"
        observation = f"had {self.left:.0%} as much left to learn as {panel}"
        explanation = "this kind of text in this form"
        if self.loss == "answer":
            observation = (
                f"had {self.left:.0%} as much left to learn of the answers, relative to the prompts,"
                f" as {panel}"
            )
            explanation = "such answers, of this task or of another"
        documents = " and ".join(f"{split} examples" for split in self.known_documents)
        if documents:
            explanation += f", and on these very {documents}"
        else:
            explanation += "; nothing shows that it saw these very examples"
        bound = exact_upper_bound(self.false_alarms, self.clean)
        clean_as_low = (
            f"{self.false_alarms} of {self.clean} clean copies of other families had as little left "
            f"(at most {bound:.1%}; p = {self.adjusted:.2g}, corrected for all results of this study)"
        )
        return (
            f"On {self.task} {self.model} {observation}."
            f" This suggests earlier training on {explanation}. {clean_as_low}."
        )

    @property
    def known_documents(self) -> list[str]:
        """The splits whose very documents the model knows better than 99 % of the clean copies do."""
        splits = ("training", "test")
        known_splits = []
        for split, gamma, least_gamma in zip(
            splits, self.measures.gammas, self.least_gammas, strict=True
        ):
            if gamma >= least_gamma:
                known_splits.append(split)
        return known_splits


# --- the measures ----------------------------------------------------------------------------------------------------


def measure_exposure_signs(
    readings: Mapping[tuple[str, str], ProbeReading],
    families: Mapping[str, str],
    *,
    clean_models: Collection[str] = (),
    exposed_tasks: Mapping[str, Collection[str]] = NO_ENTRIES,
    least_families: int = CLEAN_FAMILIES,
) -> tuple[list[ExposureSign], list[str]]:
    """Measure every model on every task beside models of other families; returns also who is left out, and why.

    ``clean_models`` are declared clean; ``exposed_tasks`` names the tasks that a model is known to have seen.
    """
    exposure_signs: list[ExposureSign] = []
    problems: list[str] = []
    for task in sorted({task for _, task in readings}):
        readings_of_task = {}
        for (model, probed_task), reading in readings.items():
            if probed_task == task:
                readings_of_task[model] = reading
        data_counts = Counter(reading.data for reading in readings_of_task.values())
        usual_data = data_counts.most_common(1)[0][0]
        comparable = {}
        for model, reading in readings_of_task.items():
            if reading.data == usual_data:
                comparable[model] = reading
        exposed_models = {model for model in comparable if task in exposed_tasks.get(model, ())}
        signs_of_task = _measure_task(
            task, comparable, families, exposed_models, clean_models, least_families
        )
        exposure_signs += signs_of_task
        too_few = (
            f"fewer than {LEAST_OTHERS} models of other families, not known to have seen the task,"
            " to compare with:"
        )
        measured_models = [exposure_sign.model for exposure_sign in signs_of_task]
        left_out = {
            "probed on other examples or at another learning rate:": sorted(
                drop_names_in(readings_of_task, comparable)
            ),
            too_few: drop_names_in(comparable, measured_models),
        }
        for reason, names in left_out.items():
            if names:
                problems.append(f"{task}: {reason} {', '.join(names)}")
    return exposure_signs, problems


def _measure_task(
    task: str,
    readings: Mapping[str, ProbeReading],
    families: Mapping[str, str],
    exposed_models: Collection[str],
    clean_models: Collection[str],
    least_families: int,
) -> list[ExposureSign]:
    """Measure the models of one task, each beside models of other families that are not known to have seen it."""
    family_by_model = {model: families.get(model, model) for model in readings}
    exposure_signs = []
    for model, reading in readings.items():
        family = family_by_model[model]
        rivals = {}
        for rival, rival_family in family_by_model.items():
            if rival not in exposed_models and rival_family != family:
                rivals[rival] = rival_family
        panel, reference = _choose_panel(rivals, clean_models, least_families)
        if not panel:
            continue
        panel_readings = [readings[member] for member in panel]
        exposure_sign = ExposureSign(
            model=model,
            family=family,
            task=task,
            measures=_measure_reading(
                reading, panel_readings, panel_is_clean=reference == DECLARED
            ),
            reference=reference,
            rate=reading.rate,
            panel=len(panel),
            known=model in exposed_models,
        )
        exposure_signs.append(exposure_sign)
    return exposure_signs


def _choose_panel(
    family_by_rival: Mapping[str, str], clean_models: Collection[str], least_families: int
) -> tuple[list[str], str]:
    """Return the models to compare with, and what they are known as; none where there are too few."""
    declared = [model for model in family_by_rival if model in clean_models]
    if len({family_by_rival[model] for model in declared}) >= least_families:
        return declared, DECLARED
    if len(family_by_rival) < LEAST_OTHERS:
        return [], "unknown"
    return list(family_by_rival), "unknown"


def _measure_reading(
    reading: ProbeReading, panel: Sequence[ProbeReading], *, panel_is_clean: bool
) -> Measures:
    """Measure a reading beside a panel of other models.

    A drop of the loss is divided by the panel's: by its median if the panel is known not to have seen the task, else by
    its upper quartile, since some of it may have. γ of documents is a t value: how much more easily than the panel the
    model reads them, compared with the validation documents.
    """

    def divide_by_panel(loss: str, split: str) -> float:
        key = (loss, split)
        panel_drops = [
            member.learned_amounts[key] for member in panel if key in member.learned_amounts
        ]
        panel_drops = panel_drops or [math.nan]
        if panel_is_clean:
            reference = float(np.median(panel_drops))
        else:
            reference = float(np.quantile(panel_drops, 0.75))
        if not reference > 0:
            return math.nan
        return reading.learned_amounts.get(key, math.nan) / reference

    return Measures(
        text=divide_by_panel("text", "train"),
        text_validation=divide_by_panel("text", "validation"),
        answer=divide_by_panel("answer", "train"),
        answer_validation=divide_by_panel("answer", "validation"),
        train_documents=_compute_gamma(reading, panel, "train"),
        test_documents=_compute_gamma(reading, panel, "test"),
    )


def _compute_gamma(reading: ProbeReading, panel: Sequence[ProbeReading], split: str) -> float:
    """Return γ: Welch's t of validation less these documents, in losses less the panel's on each; the larger of two.

    Its errors allow for documents that share a passage.
    """

    def subtract_panel(key: tuple[str, str]) -> Floats:
        panel_losses = [member.documents[key] for member in panel]
        return np.asarray(reading.documents[key] - np.mean(panel_losses, axis=0))

    t_values = []
    for loss in LOSSES:
        loss_and_split = [(loss, "validation"), (loss, split)]
        if any(len(reading.documents.get(key, ())) < LEAST_DOCUMENTS for key in loss_and_split):
            return math.nan
        held_out = subtract_panel((loss, "validation"))
        examined = subtract_panel((loss, split))
        error = math.hypot(
            clustered_error(held_out, reading.clusters_of("validation", held_out)),
            clustered_error(examined, reading.clusters_of(split, examined)),
        )
        t_values.append(float((held_out.mean() - examined.mean()) / error))
    return float(np.nanmax(t_values)) if np.isfinite(t_values).any() else math.nan


# --- calibration on planted truth ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlantedCopy:
    """One probe of a copy or an original whose past is known.

    ``way`` is empty where it did not see the task; ``by_answers`` says whether it learned by the answers' loss alone.
    """

    source: str
    model: str
    family: str
    task: str
    way: str
    reference: str
    rate: float
    measures: Measures
    by_answers: bool = False

    @property
    def way_label(self) -> str:
        """The way of exposure as tables show it; empty where there was none."""
        return f"{self.way} answers" if self.by_answers else self.way


@cache
def read_planted_copies() -> tuple[PlantedCopy, ...]:
    """Read the calibration that comes with the package."""
    rows = []
    for row in csv.DictReader(PLANTED.read_text("utf-8").splitlines()):
        measures = Measures(
            *(float(row.pop(measure_name)) for measure_name in Measures.__dataclass_fields__)
        )
        learning_rate = float(row.pop("rate"))
        by_answers = row.pop("by_answers") == "True"
        rows.append(
            PlantedCopy(**row, rate=learning_rate, measures=measures, by_answers=by_answers)
        )
    return tuple(rows)


@dataclass(frozen=True, eq=False)
class Calibration:
    """How clean copies spread, and what is low beside them."""

    # by loss: median log of what is left, and how far below one in six is
    level: Mapping[str, tuple[float, float]]
    clean: Mapping[str, Floats]  # by loss: how low they are; −inf where that is not known
    families: tuple[str, ...]  # of these
    slope: float
    intercept: float
    least_gammas: tuple[float, float] = (math.inf, math.inf)  # that 1 % of the clean ones reach

    @classmethod
    def of(cls, copies: Iterable[PlantedCopy]) -> Calibration | None:
        """Measure on cells whose past is known; clean and exposed ones weigh the same, whatever their numbers."""
        copies = tuple(copies)
        clean = [row.measures for row in copies if not row.way]
        exposed = [row.measures for row in copies if row.way in IN_FORM]
        if len(clean) < 2 or not exposed:
            return None
        level = {}
        for loss in LOSSES:
            logarithms = np.log([measures.left(loss) for measures in clean])
            median, lower = np.nanquantile(logarithms, [0.5, 0.16])
            level[loss] = float(median), float(median - lower)
        uncalibrated = cls(level, {}, (), math.nan, math.nan)
        clean_by_loss = [uncalibrated.lows(measures) for measures in clean]
        clean_lows = np.array(
            [max(low_by_loss.values(), default=math.nan) for low_by_loss in clean_by_loss]
        )
        exposed_by_loss = [uncalibrated.lows(measures) for measures in exposed]
        exposed_lows = np.array(
            [max(low_by_loss.values(), default=math.nan) for low_by_loss in exposed_by_loss]
        )
        is_exposed = np.repeat([False, True], [len(clean_lows), len(exposed_lows)])
        curve = fit_balanced_logistic(np.concatenate([clean_lows, exposed_lows]), is_exposed)
        gammas = np.array([measures.gammas for measures in clean])
        train_gamma, test_gamma = np.nanquantile(gammas, DOCUMENTS_LEVEL, axis=0)
        clean_lows_by_loss: dict[str, Floats] = {}
        for loss in LOSSES:
            lows_of_loss = [low_by_loss.get(loss, -math.inf) for low_by_loss in clean_by_loss]
            clean_lows_by_loss[loss] = np.array(lows_of_loss)
        return cls(
            level=level,
            clean=clean_lows_by_loss,
            families=tuple(row.family for row in copies if not row.way),
            slope=curve.slope,
            intercept=curve.intercept,
            least_gammas=(float(train_gamma), float(test_gamma)),
        )

    def worst_family(self, low: float, loss: str) -> float:
        """Return the largest share of the clean copies of one family that are as low by a loss."""
        families = np.array(self.families)
        shares = []
        for family in set(self.families):
            shares.append(float(np.mean(self.clean[loss][families == family] >= low)))
        return max(shares)

    def p_value(self, low: float, loss: str) -> float:
        """Return how likely a clean copy is as low by one of the losses; beyond the lowest by an exponential tail."""
        clean = self.clean[loss][np.isfinite(self.clean[loss])]
        threshold = float(np.quantile(clean, 1 - TAIL))
        share = float(np.mean(clean >= low))
        if low > threshold:
            excesses = clean[clean > threshold] - threshold
            share = TAIL * math.exp(-(low - threshold) / float(excesses.mean()))
        return min(1.0, len(LOSSES) * share)  # either of them would have flagged it

    def lows(self, measures: Measures) -> dict[str, float]:
        """Return how many spreads of clean ones a cell is below them, by each loss that is known."""
        low_by_loss = {}
        for loss in LOSSES:
            median, spread = self.level[loss]
            low = (median - math.log(measures.left(loss))) / spread
            if math.isfinite(low):
                low_by_loss[loss] = low
        return low_by_loss

    def judge(self, exposure_sign: ExposureSign) -> ExposureSign:
        """Say how low a cell is by the loss that says more, and what that means."""
        low_by_loss = self.lows(exposure_sign.measures)
        if not low_by_loss:
            return exposure_sign
        p_by_loss = {loss: self.p_value(low, loss) for loss, low in low_by_loss.items()}
        loss = min(
            low_by_loss, key=lambda loss_name: (p_by_loss[loss_name], -low_by_loss[loss_name])
        )
        low = low_by_loss[loss]
        evidence = self.slope * max(low_by_loss.values()) + self.intercept
        return replace(
            exposure_sign,
            loss=loss,
            low=low,
            probability=1.0 / (1.0 + math.exp(-evidence)),
            false_alarms=int(np.sum(self.clean[loss] >= low)),
            clean=len(self.clean[loss]),
            worst_family=self.worst_family(low, loss),
            p_value=p_by_loss[loss],
            adjusted=p_by_loss[loss],  # as if it were looked at alone
            least_gammas=self.least_gammas,
        )


_calibration = cache(Calibration.of)


def calibrate_sign(
    exposure_sign: ExposureSign, copies: tuple[PlantedCopy, ...] | None = None
) -> ExposureSign:
    """Judge a cell by copies of other families, probed at its rate beside such a reference."""
    if copies is None:
        copies = read_planted_copies()
    calibration = _calibration(_find_alike(exposure_sign, copies))
    return exposure_sign if calibration is None else calibration.judge(exposure_sign)


def _find_alike(
    exposure_sign: ExposureSign, copies: tuple[PlantedCopy, ...]
) -> tuple[PlantedCopy, ...]:
    """Return the copies of other families that were probed at a cell's rate beside such a reference."""
    reference_and_rate = (exposure_sign.reference, exposure_sign.rate)
    alike = []
    for row in copies:
        is_probed_alike = (row.reference, row.rate) == reference_and_rate
        if is_probed_alike and row.family != exposure_sign.family:
            alike.append(row)
    return tuple(alike)


def adjust_for_many(exposure_signs: Sequence[ExposureSign]) -> list[ExposureSign]:
    """Adjust p values for the number of results that were looked at (Benjamini–Hochberg)."""
    if not exposure_signs:
        return []
    p_values = np.array([exposure_sign.p_value for exposure_sign in exposure_signs])
    adjusted = benjamini_hochberg(p_values).tolist()
    return [
        replace(exposure_sign, adjusted=value)
        for exposure_sign, value in zip(exposure_signs, adjusted, strict=True)
    ]


def judge_planted_copies(copies: Sequence[PlantedCopy]) -> list[tuple[PlantedCopy, ExposureSign]]:
    """Judge every planted cell by a calibration without its family, those of one source and reference as one study."""
    all_rows = tuple(copies)
    by_study: dict[tuple[str, str], list[PlantedCopy]] = {}
    for row in all_rows:
        by_study.setdefault((row.source, row.reference), []).append(row)
    rows_with_signs: list[tuple[PlantedCopy, ExposureSign]] = []
    for study in by_study.values():
        calibrations: dict[tuple[str, float], Calibration | None] = {}
        exposure_signs = []
        for row in study:
            exposure_sign = ExposureSign(
                row.model, row.family, row.task, row.measures, row.reference, row.rate
            )
            family_and_rate = (row.family, row.rate)
            if family_and_rate not in calibrations:
                calibrations[family_and_rate] = _calibration(_find_alike(exposure_sign, all_rows))
            calibration = calibrations[family_and_rate]
            exposure_signs.append(
                exposure_sign if calibration is None else calibration.judge(exposure_sign)
            )
        rows_with_signs += zip(study, adjust_for_many(exposure_signs), strict=True)
    return rows_with_signs


def tabulate_families(copies: Sequence[PlantedCopy], reference: str = DECLARED) -> Table:
    """Return how many clean cells of every family are flagged, each judged without its family."""
    by_family: dict[str, list[ExposureSign]] = {}
    for row, exposure_sign in judge_planted_copies(copies):
        if row.reference == reference and not row.way:
            by_family.setdefault(row.family, []).append(exposure_sign)
    table_rows = []
    for family, exposure_signs in sorted(by_family.items()):
        flagged = sum(exposure_sign.is_flagged for exposure_sign in exposure_signs)
        flagged_share = flagged / len(exposure_signs)
        table_rows.append(
            (
                family,
                len(exposure_signs),
                flagged,
                flagged_share,
                exact_upper_bound(flagged, len(exposure_signs)),
            )
        )
    column_names = ("family", "clean results", "flagged", "share", "at most")
    note = (
        "Results of clean models that were flagged by mistake; each is judged by copies of the other families. "
        "At most: upper 95 % bound of the share (Clopper–Pearson), wide where there are few results."
    )
    return Table(
        f"False alarms by family (reference: {reference})", column_names, table_rows, note, digits=3
    )


def tabulate_exposures(copies: Sequence[PlantedCopy], reference: str = DECLARED) -> Table:
    """Return what the method finds of every way of exposure, also of those that escape it."""
    by_way: dict[str, list[ExposureSign]] = {}
    for row, exposure_sign in judge_planted_copies(copies):
        if row.reference == reference:
            by_way.setdefault(row.way_label, []).append(exposure_sign)
    clean_lows = np.array([exposure_sign.low for exposure_sign in by_way.get("", [])])
    table_rows = []
    for way_of_exposure, exposure_signs in sorted(
        by_way.items()
    ):  # clean ones, which have no way, first
        flagged = sum(exposure_sign.is_flagged for exposure_sign in exposure_signs)
        bound = None
        area = None
        if way_of_exposure:
            area = area_under(
                clean_lows, np.array([exposure_sign.low for exposure_sign in exposure_signs])
            )
        else:
            bound = exact_upper_bound(flagged, len(exposure_signs))
        medians_left = []
        for loss in LOSSES:
            medians_left.append(
                float(
                    np.median(
                        [exposure_sign.measures.left(loss) for exposure_sign in exposure_signs]
                    )
                )
            )
        known_documents = []
        for split in ("training", "test"):
            known_documents.append(
                sum(split in exposure_sign.known_documents for exposure_sign in exposure_signs)
            )
        table_rows.append(
            (
                way_of_exposure or "none (false alarms)",
                len(exposure_signs),
                flagged,
                bound,
                area,
                *medians_left,
                *known_documents,
            )
        )
    column_names = (
        "way",
        "results",
        "flagged",
        "at most",
        "area",
        "left of texts",
        "left of answers",
        "these training examples",
        "these test examples",
    )
    note = (
        "Copies whose exposure is known; each is judged without the copies of its own family. At most: upper 95 % "
        "bound of their share. Area: under the ROC curve of exposed against clean results. Left: median share left to "
        f"learn. The last two columns count results with a higher γ than {DOCUMENTS_LEVEL:.0%} of the clean results "
        "of other families."
    )
    return Table(
        f"What is found of each way of exposure (reference: {reference})",
        column_names,
        table_rows,
        note,
    )


def area_under(clean: Floats, exposed: Floats) -> float:
    """Return the chance that an exposed cell is lower than a clean one."""
    if not len(clean) or not len(exposed):
        return math.nan
    return float(mannwhitneyu(exposed, clean).statistic / (len(clean) * len(exposed)))


# --- the finding -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exposure(Finding):
    """Signs of earlier training on the tasks of a study, cell by cell."""

    signs: tuple[ExposureSign, ...]
    left_out: tuple[str, ...] = ()

    @property
    def flagged(self) -> list[ExposureSign]:
        """The cells that are flagged, the surest first."""
        return sorted(
            (exposure_sign for exposure_sign in self.signs if exposure_sign.is_flagged),
            key=lambda exposure_sign: -exposure_sign.low,
        )

    def sentences(self) -> list[str]:
        """Return a sentence for each cell that is flagged."""
        return [exposure_sign.sentence() for exposure_sign in self.flagged]

    def tables(self) -> Sequence[Table]:
        """Return the cells with the least left to learn, and what the method finds where the truth is known."""
        title = "Little left to learn"
        listed_signs = self.flagged
        if not listed_signs:
            title = "No result is flagged; the lowest five"
            lowest_first = sorted(
                self.signs, key=lambda exposure_sign: -np.nan_to_num(exposure_sign.low, nan=-np.inf)
            )
            listed_signs = lowest_first[:SIGNS_LISTED]
        table_rows = [exposure_sign.row() for exposure_sign in listed_signs]
        column_names = (
            "model",
            "task",
            "left of texts",
            "left of answers",
            "P",
            "clean as low",
            "adjusted p",
            "γ training examples",
            "γ test examples",
            "reference",
            "known",
        )
        note = (
            f"{len(self.flagged)} of {len(self.signs)} results are flagged. Left: how far the loss falls in a short "
            "fine-tuning, as a share of its fall for models of other families. P: probability that the model was "
            "exposed in this form, if half of all models were. γ: how much better the model knows these very "
            f"examples than similar ones; 1 % of clean copies reach {self._describe_least_gammas()}. "
            "Adjusted p: that a clean copy has as little left, corrected for all results (Benjamini–Hochberg). "
            "This is evidence, not proof: text like the test's can reach a model in many ways. "
            "A model with much left to learn may have seen the test all the same."
        )
        rates = {exposure_sign.rate for exposure_sign in self.signs}
        alike = [row for row in read_planted_copies() if row.rate in rates]
        kinds = sorted({exposure_sign.reference for exposure_sign in self.signs}) if alike else ()
        return [
            Table(title, column_names, table_rows, note, digits=2),
            *(tabulate_exposures(alike, kind) for kind in kinds),
            *(tabulate_families(alike, kind) for kind in kinds),
        ]

    def _describe_least_gammas(self) -> str:
        """Say which γ 1 % of the clean copies reach, on training and on test documents."""
        known_gammas = []
        for exposure_sign in self.signs:
            if math.isfinite(exposure_sign.least_gammas[0]):
                known_gammas.append(exposure_sign.least_gammas)
        if not known_gammas:
            return "an unknown value"
        train, test = np.median(np.array(known_gammas), axis=0)
        return f"{train:.1f} on training and {test:.1f} on test examples"

    def charts(self) -> Sequence[Chart]:
        """Return what is left to learn, models by tasks."""
        share_left = {
            (exposure_sign.model, exposure_sign.task): exposure_sign.left
            for exposure_sign in self.signs
        }
        models = tuple(dict.fromkeys(exposure_sign.model for exposure_sign in self.signs))
        tasks = tuple(sorted({exposure_sign.task for exposure_sign in self.signs}))
        values = []
        for model in models:
            values.append([share_left.get((model, task), math.nan) for task in tasks])
        caption = (
            "Share of what models of other families have left to learn (1: as much), of the text or of the answer, "
            "whichever is less for a model of this kind. Dark: little is left, as after earlier training on "
            "this kind of text in this form."
        )
        title = "How much is left to learn"
        return [
            Heatmap(
                "exposure",
                title,
                caption,
                models,
                tasks,
                np.array(values),
                low=0.0,
                high=1.5,
                fewer=True,
            )
        ]


def find_exposure(evidence: Evidence, *, clean: Sequence[str] = ()) -> Exposure:
    """Look for signs of earlier training on the tasks, by the probes that a study recorded.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        clean: Models that are known not to have seen the tests.

    Example:
        >>> potentia.find_exposure("potentia.db").to_frame()
    """
    probes = _read_probes(evidence)
    models = {model for model, _ in probes}
    unknown = drop_names_in(sorted(clean), models)
    if unknown:
        raise InputError(
            f"no probe of {unknown[0]}", hint=suggest_names(unknown[0], sorted(models))
        )
    family_of_model = ModelFamilies.of_evidence(evidence).family_of_model
    families = {}
    exposed_tasks = {}
    for model in models:
        original = evidence.exposed_copies.get(model, model)
        families[model] = family_of_model.get(original, original)
        model_facts = evidence.facts.find(model)
        if model_facts:
            exposed_tasks[model] = model_facts.exposure
    readings = {cell: ProbeReading.of(probe) for cell, probe in probes.items()}
    exposure_signs, problems = measure_exposure_signs(
        readings, families, clean_models=clean, exposed_tasks=exposed_tasks
    )
    scored_models: set[str] = set()
    for matrix in evidence.scores.values():
        scored_models.update(matrix.models)
    missing = drop_names_in(sorted(scored_models), models)
    if missing:
        problems.append(f"without a probe: {', '.join(missing)}")
    if not exposure_signs:
        raise InputError(
            "; ".join(problems) or "nothing to compare",
            hint="probe models of four families or more",
        )
    judged_signs = tuple(
        adjust_for_many([calibrate_sign(exposure_sign) for exposure_sign in exposure_signs])
    )
    uncalibrated_rates = sorted(
        {exposure_sign.rate for exposure_sign in judged_signs if not exposure_sign.clean}
    )
    if uncalibrated_rates:
        planted_rates = sorted({row.rate for row in read_planted_copies()})
        problems.append(
            f"the method was calibrated at learning rates {planted_rates}, not at {uncalibrated_rates}:"
            " the shares are shown, but no result is flagged"
        )
    return Exposure(judged_signs, tuple(problems))


def _read_probes(evidence: Evidence) -> dict[tuple[str, str], ProbeResult]:
    """Return the probes of models and tasks that have scores."""
    scored_cells: set[tuple[str, str]] = set()
    for matrix in evidence.scores.values():
        scored_cells.update(product(matrix.models, matrix.tasks))
    probes = {}
    for cell, probe in evidence.probes().items():
        if cell in scored_cells:
            probes[cell] = probe
    if not probes:
        hint = "put `probe: true` into the study and run it again under a new name: finished results are not probed"
        raise InputError(f"no probes in {evidence.source}", hint=hint)
    return probes
