"""How far predictions were off where it can be checked: intervals that cover as often as they say.

The factor model gives every unseen cell a mean and a standard deviation; how often the truth lies within so many of
these is learned from the known scores. Rows that are nearly complete are hidden, fold by fold, down to the cells that
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
from scipy.stats import t as student_t

from potentia.analysis.completion.factors import (
    MOST_ROWS,
    FactorProblem,
    FactorSolution,
    fit_weights,
    predict_cells,
    solve_abilities,
)
from potentia.values.scores import Floats

Rows = npt.NDArray[np.intp]
Labels = npt.NDArray[np.str_]
Mask = npt.NDArray[np.bool_]
FOLDS = 5
PSEUDO_DISTANCES = 150  # distances of a normal distribution in the pool
LEAST_CELLS = 40  # known cells of a study that tell something of its unknown ones
# Rows and cells that were off as far as expected, beside the observed ones.
PSEUDO_ROWS = 10
PSEUDO_CELLS = 30
SCALE_SPREAD = 0.3  # families' scales differ by so much on the log scale
SCALE_WEIGHT = 2.0  # a belief worth two families
KNOWN_SHARE = 0.3  # of a family's rows that are complete, from which on the family is known
LIKE_ROWS = 3  # a hidden row takes the gaps of one of so many unfinished rows of like ability
LEAST_GROUPS = 4  # of rows that are hidden together
LEAST_FAMILIES = 3
_LEVELS = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995])


@dataclass(frozen=True)
class IntervalCalibration:
    """The distance, in standard deviations of the model, within which the truth lies with each of ``_LEVELS``."""

    distances: Floats  # (levels,)
    checked: int  # known cells that were hidden and predicted
    wider: float  # by which the standard deviation of a row's sum has to be multiplied
    freedom: int  # of that estimate

    @classmethod
    def normal(cls) -> IntervalCalibration:
        """Return the calibration of a normal distribution, where nothing was checked."""
        return pool_distances(np.zeros(0), np.zeros(0))

    def distance(self, level: float) -> float:
        """Return the half-width of the interval of this level, in standard deviations of the model."""
        normal_distances = ndtri(0.5 + _LEVELS / 2.0)
        normal_distance = float(ndtri(0.5 + level / 2.0))
        if normal_distance > normal_distances[-1]:
            return normal_distance * float(self.distances[-1] / normal_distances[-1])
        return float(np.interp(normal_distance, normal_distances, self.distances))


def pool_distances(distances: Floats, row_distances: Floats) -> IntervalCalibration:
    """Make the calibration from observed distances |truth − mean| / sd of cells and of whole rows' sums.

    A ranking hangs on sums. Rows show errors of the abilities, which move all cells of a row, and cells the others,
    so both count alike; how well the scale is known goes by the rows, which are fewer.
    """
    cell_mean_square = _pooled_mean_square(distances, PSEUDO_CELLS)
    row_mean_square = _pooled_mean_square(row_distances, PSEUDO_ROWS)
    return IntervalCalibration(
        distances=_pooled_quantiles(distances),
        checked=len(distances),
        wider=float(np.sqrt((cell_mean_square + row_mean_square) / 2.0)),
        freedom=len(row_distances) + PSEUDO_ROWS,
    )


def _pooled_mean_square(distances: Floats, pseudo_count: int) -> float:
    """Return the mean square of distances, pooled with so many that were off as far as expected."""
    total = float((distances**2).sum()) + pseudo_count
    return total / (len(distances) + pseudo_count)


def _pooled_quantiles(distances: Floats) -> Floats:
    """Return the distances at ``_LEVELS``, pooled with those of a normal distribution."""
    pooled_distances = np.concatenate([np.abs(distances), _normal_distances(PSEUDO_DISTANCES)])
    quantiles = np.quantile(pooled_distances, _LEVELS)
    quantiles[0] = 0.0
    return np.asarray(quantiles)


def distances_for_new_family(distances_by_family: Sequence[Floats]) -> Floats:
    """Return the distances at ``_LEVELS`` for a family not seen yet from those of each known one."""
    families = [np.abs(distances) for distances in distances_by_family if len(distances)]
    pseudo_distances = _normal_distances(PSEUDO_DISTANCES // 10)
    scales = []
    for distances in families:
        pooled_distances = np.concatenate([distances, pseudo_distances])
        scales.append(np.sqrt(np.mean(pooled_distances**2)))
    drawn_scales = _predict_scales(np.log(np.array(scales)))
    shapes = []
    for distances, scale in zip(families, scales, strict=True):
        shapes.append(np.quantile(distances / scale, _even_shares(200)))
    shapes.append(_normal_distances(200))
    drawn_distances = np.multiply.outer(np.concatenate(shapes), drawn_scales)
    quantiles = np.quantile(drawn_distances, _LEVELS)
    quantiles[0] = 0.0
    return np.asarray(quantiles)


def _predict_scales(log_scales: Floats) -> Floats:
    """Return the scales that a new family may have, evenly over their predictive distribution."""
    family_count = len(log_scales)
    mean = float(log_scales.mean())
    sum_of_squares = float(((log_scales - mean) ** 2).sum())
    degrees_of_freedom = family_count - 1 + SCALE_WEIGHT
    variance = (sum_of_squares + SCALE_WEIGHT * SCALE_SPREAD**2) / degrees_of_freedom
    spread = np.sqrt(variance * (1.0 + 1.0 / family_count))
    return np.asarray(np.exp(mean + spread * student_t.ppf(_even_shares(60), degrees_of_freedom)))


def _normal_distances(count: int) -> Floats:
    """Return distances of a normal distribution, evenly over its quantiles."""
    return np.asarray(ndtri(0.5 + _even_shares(count) / 2.0))


def _even_shares(count: int) -> Floats:
    """Return so many shares, evenly between 0 and 1."""
    return (np.arange(count) + 0.5) / count


@dataclass(frozen=True)
class _HiddenCells:
    """Known cells to hide and to predict, in groups that are hidden together."""

    rows: Rows
    cells: Mask  # (rows, tasks)
    labels: Labels  # (rows,): the group of each row

    def sample_rows(self, count: int, rng: np.random.Generator) -> _HiddenCells:
        """Return so many of the rows, chosen at random."""
        chosen = np.sort(rng.permutation(len(self.rows))[:count])
        return _HiddenCells(self.rows[chosen], self.cells[chosen], self.labels[chosen])


def calibrate_intervals(
    problem: FactorProblem,
    solution: FactorSolution,
    study_rows: Rows,
    *,
    lineage: Sequence[str],
    family: Sequence[str],
) -> IntervalCalibration:
    """Hide known scores as the study's are hidden and see how far the predictions are off.

    Complete rows take the gaps of unfinished ones. Where too few are complete, each row has half of its known cells
    hidden; that check may widen a cell's interval, not narrow it.
    """
    is_known = problem.is_known
    rng = np.random.default_rng(0)
    unfinished = study_rows[~is_known[study_rows].all(axis=1)]
    complete = _find_complete_rows(is_known, unfinished)
    families = np.asarray(family)
    is_new_family = False
    if len(unfinished):
        complete_share = _mean_complete_share_of_family(families, unfinished, complete)
        is_new_family = complete_share < KNOWN_SHARE
    if is_new_family:
        labels = families
    else:
        labels = _group_by_lineage(np.asarray(lineage), unfinished, complete, rng)
    least_groups = LEAST_FAMILIES if is_new_family else LEAST_GROUPS
    groups = len(np.unique(labels[complete]))
    has_enough_rows = len(unfinished) > 0 and groups >= least_groups
    if has_enough_rows:
        alike = _match_unfinished(solution.abilities[0], complete, unfinished, rng)
        hidden = _HiddenCells(complete, is_known[complete] & ~is_known[alike], labels[complete])
        least_cells = 1
    else:
        hidden = _hide_half(is_known, study_rows, rng)
        least_cells = LEAST_CELLS
    if hidden.cells.sum() < least_cells:
        return IntervalCalibration.normal()
    if len(hidden.rows) > MOST_ROWS:  # enough of them tell
        hidden = hidden.sample_rows(MOST_ROWS, rng)
    if len(is_known) > MOST_ROWS:
        problem = problem.select_rows(hidden.rows)
        hidden = replace(hidden, rows=np.arange(len(hidden.rows)))
    by_family = is_new_family and has_enough_rows
    calibration = _check_predictions(problem, hidden, rng, by_family=by_family)
    if has_enough_rows:
        return calibration
    normal = _pooled_quantiles(np.zeros(0))
    return replace(calibration, distances=np.maximum(calibration.distances, normal))


def _find_complete_rows(is_known: Mask, unfinished: Rows) -> Rows:
    """Return the rows that are nearly complete, more so than any unfinished row of the study."""
    share = is_known.mean(axis=1)
    threshold = np.clip(share[unfinished].max(initial=0.0), 0.6, 0.9)
    complete = np.flatnonzero(share >= threshold)
    return complete[~np.isin(complete, unfinished)]


def _match_unfinished(
    ability: Floats, complete: Rows, unfinished: Rows, rng: np.random.Generator
) -> Rows:
    """Return an unfinished row of like ability for every complete one."""
    distance = np.abs(ability[complete][:, None] - ability[unfinished])
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :LIKE_ROWS]
    chosen = rng.integers(nearest.shape[1], size=len(complete))
    return unfinished[nearest[np.arange(len(complete)), chosen]]


def _hide_half(is_known: Mask, study_rows: Rows, rng: np.random.Generator) -> _HiddenCells:
    """Choose half of the known cells of each row of the study, every row by itself."""
    rows = study_rows[is_known[study_rows].sum(axis=1) > 1]
    hidden = np.zeros((len(rows), is_known.shape[1]), dtype=bool)
    for position, row in enumerate(rows):
        cells = np.flatnonzero(is_known[row])
        hidden[position, rng.permutation(cells)[: len(cells) // 2]] = True
    return _HiddenCells(rows, hidden, rows.astype(str))


def _mean_complete_share_of_family(
    families: Labels, unfinished_models: Rows, complete_models: Rows
) -> float:
    """Return the share of a model's family that is completely scored, as a mean over unfinished models."""
    shares = []
    for family in families[unfinished_models]:
        complete_count = float((families[complete_models] == family).sum())
        unfinished_count = (families[unfinished_models] == family).sum()
        shares.append(complete_count / (complete_count + unfinished_count))
    return float(np.array(shares).mean())


def _group_by_lineage(
    lineage: Labels, unfinished: Rows, complete: Rows, rng: np.random.Generator
) -> Labels:
    """Return lineages, as many of them taken apart row by row as unfinished rows have a relative that is known.

    A base model helps to predict its instruct version where it is known, and the check must lean on it as often.
    """
    share_with_relative = 0.0
    if len(unfinished):
        share_with_relative = float(np.isin(lineage[unfinished], lineage[complete]).mean())
    names = np.unique(lineage)
    taken_apart = names[rng.random(len(names)) < share_with_relative]
    row_labels = np.array([f"row {row}" for row in range(len(lineage))])
    return np.where(np.isin(lineage, taken_apart), row_labels, lineage)


def _check_predictions(
    problem: FactorProblem, hidden: _HiddenCells, rng: np.random.Generator, *, by_family: bool
) -> IntervalCalibration:
    """Hide cells of the rows, a fold of groups at a time, learn everything anew, and predict them."""
    groups = rng.permutation(np.unique(hidden.labels))
    tasks = np.arange(problem.scores.shape[1])
    distances_by_family: dict[str, list[Floats]] = {}  # or all together, under no name
    row_distances = [np.zeros(0)]
    for fold in range(min(FOLDS, len(groups))):
        in_fold = np.isin(hidden.labels, groups[fold::FOLDS]) & hidden.cells.any(axis=1)
        rows = hidden.rows[in_fold]
        cells = hidden.cells[in_fold]
        if not len(rows):
            continue
        hidden_cells = np.zeros_like(problem.is_known)
        hidden_cells[rows] = cells
        problem_with_hidden = problem.hide_cells(hidden_cells)
        posterior = predict_cells(
            problem_with_hidden,
            solve_abilities(problem_with_hidden, fit_weights(problem_with_hidden)),
            rows,
            tasks,
        )
        errors = np.where(cells, problem.scores[rows] - posterior.mean, 0.0)
        distances = errors / np.sqrt(np.maximum(posterior.variance, 1e-12))
        labels = hidden.labels[in_fold].tolist()
        for label, distances_of_row, cells_of_row in zip(labels, distances, cells, strict=True):
            family = label if by_family else ""
            family_distances = distances_by_family.setdefault(family, [])
            family_distances.append(distances_of_row[cells_of_row])
        covariance, _ = posterior.covariance_with(cells.astype(np.float64))
        deviations = np.sqrt(np.maximum(np.diag(covariance), 1e-12))
        row_distances.append(errors.sum(axis=1) / deviations)
    families = [np.concatenate(distances) for distances in distances_by_family.values()]
    all_distances = np.concatenate([np.zeros(0), *families])
    calibration = pool_distances(all_distances, np.concatenate(row_distances))
    if len(families) > 1:
        return replace(calibration, distances=distances_for_new_family(families))
    return calibration
