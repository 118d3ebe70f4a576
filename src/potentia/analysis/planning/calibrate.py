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

    def distance(self, level: float) -> float:
        """Half-width of the interval of this level, in standard deviations of the model."""
        grid, normal = ndtri(0.5 + _LEVELS / 2.0), float(ndtri(0.5 + level / 2.0))
        beyond = normal * float(self.distances[-1] / grid[-1])
        return beyond if normal > grid[-1] else float(np.interp(normal, grid, self.distances))


def pooled(distances: Floats, rows: Floats | None = None) -> Calibration:
    """Make the calibration from observed distances |truth − mean| / sd and those of a normal distribution.

    ``rows`` are those of whole rows' sums, where they were checked. They are few, so cells count as much as they.
    """
    quantiles = np.quantile(np.concatenate([np.abs(distances), _typical(PSEUDO)]), _LEVELS)
    quantiles[0] = 0.0
    wider = _mean_square(distances, PSEUDO_CELLS)
    if rows is not None:
        wider = (wider + _mean_square(rows, PSEUDO_ROWS)) / 2.0
    return Calibration(quantiles, len(distances), float(np.sqrt(wider)))


def _mean_square(distances: Floats, pseudo: int) -> float:
    return (float((distances**2).sum()) + pseudo) / (len(distances) + pseudo)


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
    problem: Problem,
    solved: Solved,
    study: npt.NDArray[np.intp],
    *,
    lineage: Sequence[str],
    family: Sequence[str],
    seed: int = 0,
) -> Calibration:
    """Hide known scores as the study's are hidden and see how far the predictions are off."""
    known = problem.known
    open_rows = study[~known[study].all(axis=1)]
    share = known.mean(axis=1)
    most = share[open_rows].max(initial=0.0)
    whole = np.flatnonzero(share >= max(0.6, min(0.9, most)))
    whole = whole[~np.isin(whole, open_rows)] if len(whole) else whole
    families = np.asarray(family)
    new = len(open_rows) > 0 and _met(families, open_rows, whole) < KNOWN_SHARE
    rng = np.random.default_rng(seed)
    labels = families if new else _groups(np.asarray(lineage), open_rows, whole, rng)
    groups = np.unique(labels[whole]) if len(whole) else np.array([], dtype=str)
    if len(groups) >= (3 if new else 4) and len(open_rows):
        ability = solved.mean[0]
        apart = np.abs(ability[whole][:, None] - ability[open_rows])
        near = np.argsort(apart, axis=1, kind="stable")[:, : min(LIKE, len(open_rows))]
        pick = open_rows[near[np.arange(len(whole)), rng.integers(near.shape[1], size=len(whole))]]
        hidden = known[whole] & ~known[pick]
        if len(whole) > MOST_ROWS:  # enough of them tell
            few = np.sort(rng.permutation(len(whole))[:MOST_ROWS])
            whole, hidden = whole[few], hidden[few]
        if len(known) > MOST_ROWS:
            problem, labels, whole = problem.take(whole), labels[whole], np.arange(len(whole))
            groups = np.unique(labels)
        return _by_rows(problem, whole, hidden, labels[whole], rng.permutation(groups), new=new)
    if len(study) > MOST_ROWS:
        few = np.sort(rng.permutation(study)[:MOST_ROWS])
        problem, study = problem.take(few), np.arange(len(few))
    return _by_cells(problem, study, rng)


def _met(families: npt.NDArray[np.str_], open_rows: npt.NDArray[np.intp], whole: npt.NDArray[np.intp]) -> float:
    """How much of its family an open row can lean on: the share of the family's rows that are whole, on average."""
    there = np.array([(families[whole] == f).sum() for f in families[open_rows]], dtype=np.float64)
    missing = np.array([(families[open_rows] == f).sum() for f in families[open_rows]])
    return float((there / (there + missing)).mean())


def _groups(
    lineage: npt.NDArray[np.str_],
    open_rows: npt.NDArray[np.intp],
    whole: npt.NDArray[np.intp],
    rng: np.random.Generator,
) -> npt.NDArray[np.str_]:
    """Lineages, as many of them taken apart row by row as open rows have a relative that is known.

    A base model helps to predict its instruct version where it is known, and the check must lean on it as often.
    """
    met = np.isin(lineage[open_rows], lineage[whole])
    share = float(met.mean()) if len(met) else 0.0
    names = np.unique(lineage)
    apart = np.isin(lineage, names[rng.random(len(names)) < share])
    return np.where(apart, np.array([f"row {i}" for i in range(len(lineage))]), lineage)


def _by_rows(
    problem: Problem,
    whole: npt.NDArray[np.intp],
    hide: npt.NDArray[np.bool_],
    labels: npt.NDArray[np.str_],
    groups: npt.NDArray[np.str_],
    *,
    new: bool,
) -> Calibration:
    """Hide these cells of the whole rows, a fold of groups at a time, learn everything anew, and predict them."""
    tasks = np.arange(problem.z.shape[1])
    off: list[Floats] = []
    of: list[npt.NDArray[np.str_]] = []  # whose distances these are
    sums = [np.zeros(0)]
    for fold in range(min(FOLDS, len(groups))):
        inside = np.isin(labels, groups[fold::FOLDS])
        rows, gone = whole[inside], hide[inside]
        if not gone.any():
            continue
        hidden = np.zeros_like(problem.known)
        hidden[rows] = gone
        less = problem.hide(hidden)
        posterior = predict(less, solve(less, learn(less)), rows, tasks)
        error = np.where(gone, problem.z[rows] - posterior.mean, 0.0)
        off.append((error / np.sqrt(np.maximum(posterior.variance, 1e-12)))[gone])
        of.append(np.repeat(labels[inside][:, None], gone.shape[1], axis=1)[gone])
        total, _ = posterior.covariance_with(gone.astype(np.float64))
        some = gone.any(axis=1)
        sums.append((error.sum(axis=1) / np.sqrt(np.maximum(np.diag(total), 1e-12)))[some])
    distances = np.concatenate([np.zeros(0), *off])
    found = pooled(distances, np.concatenate(sums))
    if new and len(off) > 1:
        whose = np.concatenate(of)
        found = replace(found, distances=for_new_family([distances[whose == f] for f in np.unique(whose)]))
    return found


def _by_cells(problem: Problem, study: npt.NDArray[np.intp], rng: np.random.Generator) -> Calibration:
    """Without whole rows: hide the known cells, a fold at a time; the check may widen a cell's interval, not narrow."""
    cells = np.argwhere(problem.known & np.isin(np.arange(len(problem.z)), study)[:, None])
    if len(cells) < LEAST_CELLS:
        return pooled(np.zeros(0))
    order = rng.permutation(len(cells))
    rows, tasks = np.arange(len(problem.z)), np.arange(problem.z.shape[1])
    off = []
    for fold in range(FOLDS):
        hidden = np.zeros_like(problem.known)
        hidden[tuple(cells[order[fold::FOLDS]].T)] = True
        less = problem.hide(hidden)
        posterior = predict(less, solve(less, learn(less)), rows, tasks)
        off.append(((problem.z - posterior.mean) / np.sqrt(np.maximum(posterior.variance, 1e-12)))[hidden])
    checked = pooled(np.concatenate(off))
    return replace(checked, distances=np.maximum(checked.distances, pooled(np.zeros(0)).distances))
