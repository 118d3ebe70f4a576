"""How far predictions were off where it can be checked: intervals that cover as often as they say.

The factor model gives every unseen cell a mean and a standard deviation; how often the truth lies within so many of
these is learned from the known scores. Rows that are nearly whole are hidden, fold by fold, down to the cells that
the study's unfinished rows have, and predicted from the others; folds keep a lineage together where the study asks
about models without known relatives, or a whole family where it asks about a family that nobody has measured. The
distances in standard deviations replace the normal quantiles. A few distances say little, so they are pooled with
those of a normal distribution.

Families differ in how well they are predicted, and a new one may be the worst so far. Where a family is new, its scale
is drawn as well: the scales of the known families (root mean square distances) are taken for a normal sample on the
log scale, a new one follows its predictive distribution (a Student t, with a weak belief about the spread), and the
distances of all families, each divided by its own scale and each family counting alike, are multiplied with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import t as student

from potentia.analysis.planning.factors import MOST_ROWS, Problem, Solved, learn, predict, solve
from potentia.values.scores import Floats

Rows = npt.NDArray[np.intp]
Labels = npt.NDArray[np.str_]
FOLDS = 5
PSEUDO = 150  # distances of a normal distribution in the pool
LEAST_CELLS = 40  # known cells of a study that tell something of its unknown ones
PSEUDO_ROWS, PSEUDO_CELLS = 10, 30  # that were off as far as expected
SCALE_SPREAD, SCALE_WEIGHT = 0.3, 2.0  # families' scales differ by so much on the log scale; a belief worth two of them
KNOWN_SHARE = 0.3  # of a family's rows that are whole, from which on the family is known
LIKE = 3  # a hidden row takes the gaps of one of so many unfinished rows of like ability
_LEVELS = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995])


@dataclass(frozen=True)
class Calibration:
    """The distance, in standard deviations of the model, within which the truth lies with each of ``_LEVELS``."""

    distances: Floats  # (levels,)
    checked: int  # known cells that were hidden and predicted
    wider: float  # by which the standard deviation of a row's sum has to be multiplied
    freedom: int  # of that estimate

    def distance(self, level: float) -> float:
        """Half-width of the interval of this level, in standard deviations of the model."""
        grid, normal = ndtri(0.5 + _LEVELS / 2.0), float(ndtri(0.5 + level / 2.0))
        beyond = normal * float(self.distances[-1] / grid[-1])
        return beyond if normal > grid[-1] else float(np.interp(normal, grid, self.distances))


def pooled(distances: Floats, rows: Floats) -> Calibration:
    """Make the calibration from observed distances |truth − mean| / sd of cells and of whole rows' sums.

    A ranking hangs on sums. Rows show errors of the abilities, which move all cells of a row, and cells the others,
    so both count alike; how well the scale is known goes by the rows, which are fewer.
    """
    wider = np.sqrt((_mean_square(distances, PSEUDO_CELLS) + _mean_square(rows, PSEUDO_ROWS)) / 2.0)
    return Calibration(_quantiles(distances), len(distances), float(wider), len(rows) + PSEUDO_ROWS)


def _mean_square(distances: Floats, pseudo: int) -> float:
    return (float((distances**2).sum()) + pseudo) / (len(distances) + pseudo)


def _quantiles(distances: Floats) -> Floats:
    found = np.quantile(np.concatenate([np.abs(distances), _typical(PSEUDO)]), _LEVELS)
    found[0] = 0.0
    return np.asarray(found)


def for_new_family(distances: Sequence[Floats]) -> Floats:
    """Return the distances at ``_LEVELS`` for a family not seen yet from those of each known one."""
    known = [np.abs(d) for d in distances if len(d)]
    typical = _typical(PSEUDO // 10)
    scales = np.array([np.sqrt(np.mean(np.concatenate([d, typical]) ** 2)) for d in known])
    middle, count = float(np.log(scales).mean()), len(scales)
    squares = float(((np.log(scales) - middle) ** 2).sum())
    freedom = count - 1 + SCALE_WEIGHT
    spread = np.sqrt((squares + SCALE_WEIGHT * SCALE_SPREAD**2) / freedom * (1.0 + 1.0 / count))
    drawn = np.exp(middle + spread * student.ppf(_shares(60), freedom))
    shapes = [np.quantile(d / scale, _shares(200)) for d, scale in zip(known, scales, strict=True)]
    quantiles = np.quantile(np.multiply.outer(np.concatenate([*shapes, _typical(200)]), drawn), _LEVELS)
    quantiles[0] = 0.0
    return np.asarray(quantiles)


def _typical(count: int) -> Floats:
    """Distances of a normal distribution, evenly over its quantiles."""
    return np.asarray(ndtri(0.5 + _shares(count) / 2.0))


def _shares(count: int) -> Floats:
    return (np.arange(count) + 0.5) / count


def calibrate(
    problem: Problem, solved: Solved, study: Rows, *, lineage: Sequence[str], family: Sequence[str]
) -> Calibration:
    """Hide known scores as the study's are hidden and see how far the predictions are off.

    Whole rows take the gaps of unfinished ones. Where too few are whole, each row has half of its known cells hidden;
    that check may widen a cell's interval, not narrow it.
    """
    known, rng = problem.known, np.random.default_rng(0)
    open_rows = study[~known[study].all(axis=1)]
    share = known.mean(axis=1)
    whole = np.flatnonzero(share >= np.clip(share[open_rows].max(initial=0.0), 0.6, 0.9))
    whole = whole[~np.isin(whole, open_rows)]
    families = np.asarray(family)
    new = len(open_rows) > 0 and _met(families, open_rows, whole) < KNOWN_SHARE
    labels = families if new else _groups(np.asarray(lineage), open_rows, whole, rng)
    enough = len(open_rows) > 0 and len(np.unique(labels[whole])) >= (3 if new else 4)
    if enough:
        rows, hidden = whole, known[whole] & ~known[_alike(solved.mean[0], whole, open_rows, rng)]
    else:
        rows = study[known[study].sum(axis=1) > 1]
        hidden = np.array([_half(row, rng) for row in known[rows]]).reshape(len(rows), known.shape[1])
        labels = np.arange(len(known)).astype(str)
    if hidden.sum() < (1 if enough else LEAST_CELLS):
        return pooled(np.zeros(0), np.zeros(0))
    if len(rows) > MOST_ROWS:  # enough of them tell
        few = np.sort(rng.permutation(len(rows))[:MOST_ROWS])
        rows, hidden = rows[few], hidden[few]
    if len(known) > MOST_ROWS:
        problem, labels, rows = problem.take(rows), labels[rows], np.arange(len(rows))
    found = _by_rows(problem, rows, hidden, labels[rows], rng, new=bool(new and enough))
    return found if enough else replace(found, distances=np.maximum(found.distances, _quantiles(np.zeros(0))))


def _alike(ability: Floats, whole: Rows, open_rows: Rows, rng: np.random.Generator) -> Rows:
    """Return an unfinished row of like ability for every whole one."""
    apart = np.abs(ability[whole][:, None] - ability[open_rows])
    near = np.argsort(apart, axis=1, kind="stable")[:, :LIKE]
    return open_rows[near[np.arange(len(whole)), rng.integers(near.shape[1], size=len(whole))]]


def _half(known: npt.NDArray[np.bool_], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Choose half of the known cells of a row."""
    cells = np.flatnonzero(known)
    return np.isin(np.arange(len(known)), rng.permutation(cells)[: len(cells) // 2])


def _met(families: Labels, open_rows: Rows, whole: Rows) -> float:
    """How much of its family an open row can lean on: the share of the family's rows that are whole, on average."""
    there = np.array([(families[whole] == f).sum() for f in families[open_rows]], dtype=np.float64)
    missing = np.array([(families[open_rows] == f).sum() for f in families[open_rows]])
    return float((there / (there + missing)).mean())


def _groups(lineage: Labels, open_rows: Rows, whole: Rows, rng: np.random.Generator) -> Labels:
    """Lineages, as many of them taken apart row by row as open rows have a relative that is known.

    A base model helps to predict its instruct version where it is known, and the check must lean on it as often.
    """
    share = float(np.isin(lineage[open_rows], lineage[whole]).mean()) if len(open_rows) else 0.0
    names = np.unique(lineage)
    apart = np.isin(lineage, names[rng.random(len(names)) < share])
    return np.where(apart, np.array([f"row {i}" for i in range(len(lineage))]), lineage)


def _by_rows(
    problem: Problem, rows: Rows, hide: npt.NDArray[np.bool_], labels: Labels, rng: np.random.Generator, *, new: bool
) -> Calibration:
    """Hide these cells of the rows, a fold of groups at a time, learn everything anew, and predict them."""
    groups, tasks = rng.permutation(np.unique(labels)), np.arange(problem.z.shape[1])
    off: dict[str, list[Floats]] = {}  # by family, or all together
    sums = [np.zeros(0)]
    for fold in range(min(FOLDS, len(groups))):
        inside = np.isin(labels, groups[fold::FOLDS]) & hide.any(axis=1)
        some, gone = rows[inside], hide[inside]
        if not len(some):
            continue
        hidden = np.zeros_like(problem.known)
        hidden[some] = gone
        less = problem.hide(hidden)
        posterior = predict(less, solve(less, learn(less)), some, tasks)
        error = np.where(gone, problem.z[some] - posterior.mean, 0.0)
        distance = error / np.sqrt(np.maximum(posterior.variance, 1e-12))
        for label, row, cells in zip(labels[inside].tolist(), distance, gone, strict=True):
            off.setdefault(label if new else "", []).append(row[cells])
        total, _ = posterior.covariance_with(gone.astype(np.float64))
        sums.append(error.sum(axis=1) / np.sqrt(np.maximum(np.diag(total), 1e-12)))
    families = [np.concatenate(one) for one in off.values()]
    found = pooled(np.concatenate([np.zeros(0), *families]), np.concatenate(sums))
    return replace(found, distances=for_new_family(families)) if len(families) > 1 else found
