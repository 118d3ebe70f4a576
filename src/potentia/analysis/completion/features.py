"""What is known of models before they are tuned, the scale of scores, and both as the factor model's problem.

A latent ability of the models is a Gaussian process whose kernel is a weighted sum of (M, M) parts: linear in the
principal components of the scores before tuning, in log parameters, log training tokens, date and kind; a
second-degree and a smooth part over components and size; and blocks for family, generation (a family, by date),
lineage (a base model and what was tuned from it) and the model itself. An input that is unknown has mean zero and
variance one, and enters as such: E[x_i x_j] = m_i m_j + δ_ij v_i, so a model without facts is not an average model but
an uncertain one.

An accuracy y on a task with chance c is predicted as logit(ε + (1 − 2ε)·(y − c)/(1 − c)), ε = 0.05: equal steps mean
about equal odds, and a score at or below chance stays finite. Where lower is better (bits per byte) the scale is −log
y; a metric outside the unit interval keeps its own. On every link scale higher is better.

The study's models come first, each history's after them; a model in both has two rows, tied by name and lineage, for a
score of another run is evidence of a kind, not a measurement of this study. Every task is centred and scaled by what
its known scores say of the average model; a task of which nothing is known is expected above its mean direct score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.analysis.checkpoints.lineage import named_checkpoints
from potentia.analysis.completion.factors import FactorProblem
from potentia.errors import InputError
from potentia.facts import Background, ModelTable, benchmark, chance
from potentia.values.metric import Metric
from potentia.values.protocol import TaskName
from potentia.values.scores import Floats, ScoreMatrix

COMPONENTS = 6
SMOOTH_COMPONENTS = 3
SMOOTH_LENGTH = 2.0
GENERATION_MONTHS = 4.0
# Before anything is tuned: the first ability rises with direct scores, size and tokens; learned weights take over.
EXPECTED = {"component 1": 0.5, "size": 0.35, "tokens": 0.2}


@dataclass(frozen=True)
class Kinship:
    """Family and lineage of each model; a model that nobody knows is its own."""

    family: tuple[str, ...]
    lineage: tuple[str, ...]

    @classmethod
    def look_up(cls, models: Sequence[str], table: ModelTable) -> Kinship:
        """Look the models up; the checkpoints of a run (``run@step``) are one family."""
        runs = {model: f"run {place.series}" for model, place in named_checkpoints(models).items()}
        families = {model: facts.family for model in models if (facts := table.find(model))}
        family = [families.get(m) or runs.get(m, f"alone {m}") for m in models]
        lineages = Background.of(models, table=table).lineages
        return cls(tuple(family), tuple(lineages.get(m, m) for m in models))


def describe_models(
    models: Sequence[str],
    kinship: Kinship,
    tasks: Sequence[str],
    direct: Sequence[ScoreMatrix],
    table: ModelTable,
) -> tuple[dict[str, Floats], Floats]:
    """Gather what a ``Problem`` needs to know of models; a name may come twice, in the study and in its history.

    Returns its parts by their names, and each task's mean direct score on the link scale, NaN where unknown.
    """
    columns, labels = _direct_columns(models, direct)
    scores, spread = fit_components(columns, COMPONENTS)
    inputs = {f"component {k + 1}": (scores[:, k], spread[:, k]) for k in range(scores.shape[1])}
    near = [*list(inputs)[:SMOOTH_COMPONENTS], "size"]
    linear = [*inputs, "size"]
    known, months = _facts(models, table)
    inputs |= known
    lineage, family = _same(kinship.lineage), _same(kinship.family)
    apart = np.abs(months[:, None] - months)
    generation = family * np.where(np.isfinite(apart), np.exp(-apart / GENERATION_MONTHS), 0.0)
    np.fill_diagonal(generation, 1.0)
    parts = [np.outer(x, x) + np.diag(v) for x, v in inputs.values()]
    parts += [_curve([inputs[name] for name in linear]), _smooth([inputs[name] for name in near])]
    parts += [family, generation, lineage, _same(models)]
    grams = np.stack([part for part in parts if np.abs(part).max(initial=0.0) > 1e-12])
    mean = np.asarray(sum(w * inputs[name][0] for name, w in EXPECTED.items() if name in inputs))
    own, level = _own_scores(tasks, columns, labels, scores)
    return {"grams": grams, "mean": mean, "kin": lineage, "own": own}, level


def _facts(
    models: Sequence[str], table: ModelTable
) -> tuple[dict[str, tuple[Floats, Floats]], Floats]:
    """Mean and variance of what is known of the models beside their scores, and the months of their dates."""
    facts = [table.find(m) for m in models]
    size, tokens = (
        [getattr(f, of, None) or np.nan for f in facts] for of in ("parameters", "tokens")
    )
    months = np.array(
        [12.0 * int(f.date[:4]) + int(f.date[5:7]) if f and f.date else np.nan for f in facts]
    )
    date, unsure = _standard(months)
    found = {"size": _standard(np.log(size)), "tokens": _standard(np.log(tokens))}
    found["date"] = np.maximum(date, -2.0), unsure
    found["instruct"] = _standard([float(f.kind == "instruct") if f else np.nan for f in facts])
    return found, months


def fit_components(columns: Floats, most: int) -> tuple[Floats, Floats]:
    """Principal components of standardised columns with gaps, by EM: each row's mean and variance of each component.

    Probabilistic PCA (Tipping & Bishop): x = W s + noise, s ~ N(0, 1). A row with gaps has wider scores, a row
    without any score the prior's. Each component is scaled to a second moment of one and the first is turned so that
    higher scores are better.
    """
    rows = len(columns)
    columns = columns[:, np.isfinite(columns).sum(axis=0) > 1]
    columns = columns[:, np.nanstd(columns, axis=0) > 1e-9]
    known = np.isfinite(columns)
    seen = int(known.any(axis=1).sum())
    count = min(most, columns.shape[1], max(seen - 1, 0))
    if count < 1:
        return np.zeros((rows, 0)), np.zeros((rows, 0))
    x = np.nan_to_num((columns - np.nanmean(columns, axis=0)) / np.nanstd(columns, axis=0))
    _, singular, right = np.linalg.svd(x, full_matrices=False)
    loadings = right[:count].T * singular[:count] / np.sqrt(seen)  # (columns, count)
    noise = max(float((singular[count:] ** 2).sum()) / max(int(known.sum()), 1), 1e-3)
    weight = known.astype(np.float64)
    for _ in range(50 if not known.all() else 10):
        mean, cov = _scores(x, weight, loadings, noise)
        second = cov + mean[:, :, None] * mean[:, None, :]  # (rows, count, count)
        moment = np.einsum("rc,rab->cab", weight, second) + 1e-6 * np.eye(count)
        loadings = np.linalg.solve(moment, np.einsum("rc,ra->ca", x * weight, mean)[:, :, None])[
            :, :, 0
        ]
        fitted = np.einsum("ca,rab,cb->rc", loadings, second, loadings, optimize=True)
        error = weight * (x**2 - 2.0 * x * (mean @ loadings.T) + fitted)
        noise = max(float(error.sum() / weight.sum()), 1e-3)
    left, size, _ = np.linalg.svd(loadings, full_matrices=False)  # turned to principal axes
    loadings = left * size
    loadings = loadings * np.where(loadings.sum(axis=0) < 0, -1.0, 1.0)
    mean, cov = _scores(x, weight, loadings, noise)
    variance = np.einsum("raa->ra", cov)
    scale = np.sqrt((mean**2 + variance).mean(axis=0))
    return mean / scale, variance / scale**2


def _scores(x: Floats, weight: Floats, loadings: Floats, noise: float) -> tuple[Floats, Floats]:
    precision = (
        np.eye(loadings.shape[1]) + np.einsum("rc,ca,cb->rab", weight, loadings, loadings) / noise
    )
    cov = np.linalg.inv(precision)
    return np.einsum("rab,rb->ra", cov, (x * weight) @ loadings / noise), cov


def _direct_columns(
    models: Sequence[str], direct: Sequence[ScoreMatrix]
) -> tuple[Floats, list[str]]:
    """Every column of the scores before tuning on its link scale, for these models; labels are task names."""
    blocks, labels = [np.zeros((len(models), 0))], []
    for matrix in direct:
        place = {m: i for i, m in enumerate(matrix.models)}
        links = TaskLinks.choose(
            dict(zip(matrix.tasks, matrix.metrics, strict=True)), matrix.values
        )
        z = np.vstack([links.forward(matrix.values), np.full((1, len(matrix.tasks)), np.nan)])
        blocks.append(z[[place.get(m, len(matrix.models)) for m in models]])
        labels += list(matrix.tasks)
    return np.concatenate(blocks, axis=1), labels


def _own_scores(
    tasks: Sequence[str], columns: Floats, labels: Sequence[str], scores: Floats
) -> tuple[Floats, Floats]:
    """Each task's own direct score, standardised, less what the first components say of it; and its mean."""
    own, level = np.zeros((len(columns), len(tasks))), np.full(len(tasks), np.nan)
    for j, task in enumerate(tasks):
        column = columns[:, labels.index(task)] if task in labels else np.full(len(columns), np.nan)
        known = np.isfinite(column)
        if not known.any():
            continue
        level[j] = column[known].mean()
        basis = np.column_stack([np.ones(known.sum()), scores[known, :SMOOTH_COMPONENTS]])
        spread = column[known].std()
        if spread > 1e-9 and known.sum() > 2 * basis.shape[1]:
            x = (column[known] - level[j]) / spread
            own[known, j] = x - basis @ np.linalg.lstsq(basis, x, rcond=None)[0]
    return own, level


def _curve(inputs: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Second-degree kernel (x·x′/p)² of the inputs; unknown inputs add to the diagonal alone."""
    linear = sum(np.outer(x, x) for x, _ in inputs) / len(inputs)
    unsure = sum(v for _, v in inputs) / len(inputs)
    return np.asarray(linear**2 + np.diag(2.0 * np.diag(linear) * unsure + unsure**2))


def _smooth(inputs: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Gaussian kernel of the inputs; what is unknown of a model weakens its correlation with every other."""
    apart = sum((x[:, None] - x) ** 2 for x, _ in inputs)
    damp = np.exp(-sum(v for _, v in inputs) / (2.0 * SMOOTH_LENGTH**2))
    kernel = np.exp(-0.5 * apart / SMOOTH_LENGTH**2) * np.outer(damp, damp)
    np.fill_diagonal(kernel, 1.0)
    return np.asarray(kernel)


def _same(labels: Sequence[str]) -> Floats:
    _, codes = np.unique(np.asarray(labels, dtype=str), return_inverse=True)
    return np.asarray(codes[:, None] == codes, dtype=np.float64)


def _standard(values: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Standardised values and their variance: 0 and 1 where unknown, 0 throughout where all are alike."""
    x = np.asarray(values, dtype=np.float64)
    known = np.isfinite(x)
    if known.sum() < 2 or np.ptp(x[known]) < 1e-12:
        return np.zeros(len(x)), np.zeros(len(x))
    return np.where(known, (x - x[known].mean()) / x[known].std(), 0.0), np.where(known, 0.0, 1.0)


SHRINK = 0.05
BEYOND = 0.8 * SHRINK  # how far outside [chance, 1] a score may count, as a share of that interval
TYPICAL_SPREAD = (
    0.7  # standard deviation of a task's scores over models on the logit scale, before any is known
)


@dataclass(frozen=True)
class TaskLinks:
    """One link per task: its kind (``logit``, ``log`` or ``plain``), the score of guessing, and the direction."""

    kinds: tuple[str, ...]
    chance: Floats  # (tasks,)
    sign: Floats  # (tasks,): −1 where a plain score is better when lower

    @classmethod
    def choose(
        cls,
        metrics: Mapping[str, Metric],
        known: Floats,
        chances: Mapping[str, float] | None = None,
    ) -> TaskLinks:
        """Choose each task's link from its direction and from the scores that are known, (models, tasks) with NaN."""
        up, there = (
            np.array([metric.higher_is_better for metric in metrics.values()]),
            np.isfinite(known),
        )
        share, positive = (np.abs(known) <= 1.0) | ~there, (known > 0.0) | ~there
        kinds = np.where(
            up & share.all(axis=0), "logit", np.where(~up & positive.all(axis=0), "log", "plain")
        )
        guesses = [
            score_of_guessing(task, chances, metric.name) for task, metric in metrics.items()
        ]
        return cls(tuple(kinds.tolist()), np.array(guesses), np.where(up, 1.0, -1.0))

    def forward(self, values: Floats) -> Floats:
        """Scores on the link scale; (…, tasks), NaN stays NaN."""
        with np.errstate(all="ignore"):
            q = self._share(values)
            return self._by_kind(np.log(q / (1.0 - q)), -np.log(values), values * self.sign)

    def inverse(self, z: Floats) -> Floats:
        """Scores from the link scale; (…, tasks). An accuracy never exceeds one."""
        with np.errstate(all="ignore"):
            share = (1.0 / (1.0 + np.exp(-z)) - SHRINK) / (1.0 - 2.0 * SHRINK)
            accuracy = np.minimum(self.chance + (1.0 - self.chance) * share, 1.0)
            return self._by_kind(accuracy, np.exp(-np.clip(z, -50.0, 50.0)), z * self.sign)

    def slope(self, values: Floats) -> Floats:
        """Steepness |dz/dy| of the link at these scores, by which standard errors are carried over; (…, tasks)."""
        with np.errstate(all="ignore"):
            q = self._share(values)
            logit = (1.0 - 2.0 * SHRINK) / (1.0 - self.chance) / (q * (1.0 - q))
            return self._by_kind(
                logit, 1.0 / np.abs(values), np.ones_like(values, dtype=np.float64)
            )

    def _by_kind(self, logit: Floats, log: Floats, plain: Floats) -> Floats:
        kinds = np.array(self.kinds)
        return np.where(kinds == "logit", logit, np.where(kinds == "log", log, plain))

    def _share(self, y: Floats) -> Floats:
        inside = np.clip((y - self.chance) / (1.0 - self.chance), -BEYOND, 1.0 + BEYOND)
        return np.asarray(SHRINK + (1.0 - 2.0 * SHRINK) * inside)


def score_of_guessing(
    task: str, chances: Mapping[str, float] | None = None, metric: str = ""
) -> float:
    """Return what a guess scores: as given, else by the number of options, and 0 where the metric or task has no such.

    A correlation (mcc) and an exact match score 0 by guessing whatever the number of options.
    """
    if chances and task in chances:
        given = float(chances[task])
        if not 0.0 <= given < 1.0:
            raise InputError(
                f"the chance of {task} is {given:g}", hint="chance is a score from 0 to below 1"
            )
        return given
    known = benchmark(TaskName(task).base)
    usual = known.metric if known is not None else ""
    if (metric or usual).partition("|")[0] in ("mcc", "exact_match", "em", "f1"):
        return 0.0
    try:
        return chance(task)
    except InputError:
        return 0.0


GAIN, CARRY = (
    0.7,
    0.4,
)  # a task's mean after tuning: 0.7 + 0.4 · its mean before, on the logit scale
LEVEL_SPREAD = 0.9  # give or take so much
SLOPE, SLOPE_SPREAD = 0.6, 0.3  # how much a task rises with one standard deviation of ability
NOISE = 0.3  # about the line
PSEUDO_SCORES = 2.0


@dataclass(frozen=True)
class LinkScale:
    """Centre and spread of every task on the link scale, and the link itself."""

    links: TaskLinks
    centre: Floats  # (tasks,)
    spread: Floats  # (tasks,)

    def standardize(self, values: Floats) -> Floats:
        """Scores as standardised link values."""
        return np.asarray((self.links.forward(values) - self.centre) / self.spread)

    def to_scores(self, z: Floats) -> Floats:
        """Undo ``standard`` for any leading tasks."""
        count = z.shape[-1]
        first = TaskLinks(
            self.links.kinds[:count], self.links.chance[:count], self.links.sign[:count]
        )
        return first.inverse(z * self.spread[:count] + self.centre[:count])


def build_problem(
    tuned: ScoreMatrix,
    direct: Sequence[ScoreMatrix],
    history: Sequence[ScoreMatrix],
    table: ModelTable,
    chances: Mapping[str, float] | None,
    scale: LinkScale | None = None,
) -> tuple[FactorProblem, LinkScale, Kinship]:
    """Stack study and history and standardise them; a given ``scale`` is kept."""
    metrics = _metrics([tuned, *history])
    tasks = list(metrics)
    models = [m for matrix in (tuned, *history) for m in matrix.models]
    blocks = [matrix.laid_out(matrix.models, tasks) for matrix in (tuned, *history)]
    values, stderr = (np.vstack([block[k] for block in blocks]) for k in (0, 1))
    stderr = np.where(np.isfinite(values), stderr, np.nan)
    kinship = Kinship.look_up(models, table)
    features, level = describe_models(models, kinship, tasks, direct, table)
    if scale is None:
        links = TaskLinks.choose(metrics, values, chances)
        scale = _scale(links, links.forward(values), level, features["mean"])
    error = (stderr * scale.links.slope(values)) ** 2
    known = np.isfinite(error)
    usual = np.array(
        [np.median(c[k]) if k.any() else 0.0 for c, k in zip(error.T, known.T, strict=True)]
    )
    excess = np.where(known, np.maximum(error - usual, 0.0), 0.0) / scale.spread**2
    variance = (LEVEL_SPREAD / scale.spread) ** 2
    return (
        FactorProblem(
            z=scale.standardize(values), excess=excess, level_variance=variance, **features
        ),
        scale,
        kinship,
    )


def _metrics(matrices: Sequence[ScoreMatrix]) -> dict[str, Metric]:
    """The metric of each task, as the first matrix that has it says; all must agree on its direction."""
    found: dict[str, Metric] = {}
    for task, metric in (cell for m in matrices for cell in zip(m.tasks, m.metrics, strict=True)):
        if found.setdefault(task, metric).higher_is_better != metric.higher_is_better:
            message = f"{task} is better when higher in the study and when lower in its history, or the reverse"
            raise InputError(
                message, hint="leave the task out of the history, or name the two metrics apart"
            )
    return found


def _scale(links: TaskLinks, z: Floats, level: Floats, ability: Floats) -> LinkScale:
    """Level at the average model and spread over models of each task, by regression on the expected ability.

    Known scores may be those of small models alone, whose mean and spread say little about the others; a line with
    expectations for its level, its slope and its noise (Bayesian linear regression) does.
    """
    known = np.isfinite(z)
    unit, sure = (ability - ability.mean()), ability.std() > 1e-9
    unit = unit / ability.std() if sure else np.zeros(len(ability))
    centre, spread = np.empty(z.shape[1]), np.empty(z.shape[1])
    for t, kind in enumerate(links.kinds):
        y, x = z[known[:, t], t], unit[known[:, t]]
        start, size = 0.0, 1.0
        if kind == "logit":
            start = GAIN + CARRY * (level[t] if np.isfinite(level[t]) else -1.0)
        elif len(y):  # a scale of its own: its known scores are all that says how wide it is
            start, size = (
                float(y.mean()),
                (float(y.std()) if y.std() > 1e-9 else 1.0) / TYPICAL_SPREAD,
            )
        design = np.column_stack([np.ones(len(x)), x])
        prior = np.diag([1.0 / LEVEL_SPREAD**2, 1.0 / SLOPE_SPREAD**2])
        expected = np.array([0.0, SLOPE if sure else 0.0])
        off = (y - start) / size
        line = np.linalg.solve(
            prior + design.T @ design / NOISE**2, prior @ expected + design.T @ off / NOISE**2
        )
        left = float(((off - design @ line) ** 2).sum())
        noise = NOISE**2 if sure else TYPICAL_SPREAD**2
        rest = (left + PSEUDO_SCORES * noise) / (len(y) + PSEUDO_SCORES)
        centre[t] = start + size * line[0]
        spread[t] = size * np.sqrt(max(line[1], 0.25 * SLOPE if sure else 0.0) ** 2 + rest)
    return LinkScale(links, centre, spread)
