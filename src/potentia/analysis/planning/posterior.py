"""What the factor model says of cells: their joint normal distribution given the known ones.

Given the abilities, the rest of a task is predicted from the rests of the measured models of the same lineage (and
through the task's mean from all of them): z_t = A_t·(Λf)_t + G_t·y_t + e_t with gain G_t = R_t·(R_t + excess)⁻¹,
A_t = I − G_t and e_t ~ N(0, A_t·R_t). So the covariance of any two cells is a product of small matrices, and a matrix
of 500 × 40 cells needs no 20,000 × 20,000 one. ``Posterior`` answers for the rows of the study alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.analysis.planning.factors import Problem, Solved
from potentia.values.scores import Floats

CHUNK = 100  # draws at a time


@dataclass(frozen=True)
class Posterior:
    """Means, variances and the parts of the covariance of the cells of some rows and tasks, on the standard scale."""

    mean: Floats  # (rows, tasks)
    variance: Floats  # (rows, tasks)
    common: Floats  # (tasks,): of the variance, what all rows share: how hard the task is
    through: Floats  # (tasks, rows, models): A_t
    rest: Floats  # (tasks, rows, rows): covariance of e_t
    loadings: Floats  # (tasks, factors)
    base: Floats  # (rows, tasks): mean at abilities zero, G_t·y_t
    abilities: Floats  # (factors, models)
    cov: Floats  # (factors, models, factors, models)

    def covariance_with(self, weights: Floats) -> tuple[Floats, Floats]:
        """Of the sums a = Σ_t weights·z of each row: their covariance, and that of each with every cell.

        ``weights`` is (rows, tasks); returns (rows, rows) and (rows, rows, tasks): [i, m, t] = cov(a_i, z(m, t)).
        """
        rows, tasks = self.mean.shape
        factors, models = self.abilities.shape
        sums = np.einsum(
            "it,tij,ta->iaj", weights, self.through, self.loadings, optimize=True
        )  # (rows, factors, models)
        flat = sums.reshape(rows, factors * models)
        spread = flat @ self.cov.reshape(factors * models, factors * models)
        total = spread @ flat.T
        cells = np.empty((rows, rows, tasks))
        spread = spread.reshape(rows, factors, models)
        for t in range(tasks):
            along = np.einsum("iaj,a->ij", spread, self.loadings[t])
            cells[:, :, t] = along @ self.through[t].T + weights[:, t][:, None] * self.rest[t]
            total = total + weights[:, t][:, None] * self.rest[t] * weights[:, t]
        return 0.5 * (total + total.T), cells

    def covariance_of(self, row: int, task: int) -> Floats:
        """Covariance of one cell with all: (rows, tasks)."""
        factors, models = self.abilities.shape
        one = np.multiply.outer(self.loadings[task], self.through[task, row]).ravel()
        spread = (self.cov.reshape(factors * models, factors * models) @ one).reshape(factors, models)
        result = np.einsum("tij,tj->it", self.through, self.loadings @ spread)
        result[:, task] += self.rest[task, row]
        return np.asarray(result)

    def draws(self, count: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Joint draws of all cells in chunks of (≤ CHUNK, rows, tasks)."""
        rows, tasks = self.mean.shape
        factors, models = self.abilities.shape
        half = _root(self.cov.reshape(factors * models, factors * models))
        rests = [_root(self.rest[t]) for t in range(tasks)]
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            f = self.abilities.ravel() + rng.standard_normal((size, factors * models)) @ half.T
            f = f.reshape(size, factors, models)
            chunk = np.empty((size, rows, tasks))
            for t in range(tasks):
                ability = np.einsum("saj,a->sj", f, self.loadings[t])
                noise = rng.standard_normal((size, rows)) @ rests[t].T
                chunk[:, :, t] = self.base[:, t] + ability @ self.through[t].T + noise
            yield chunk


def predict(problem: Problem, solved: Solved, rows: npt.NDArray[np.intp], tasks: npt.NDArray[np.intp]) -> Posterior:
    """Return the distribution of the cells of ``rows`` × ``tasks``; a known cell is what it is."""
    factors, models = solved.mean.shape
    known, y = problem.known, np.nan_to_num(problem.z)
    cov = solved.cov.reshape(factors, models, factors, models)
    blocks = np.ascontiguousarray(cov.transpose(0, 2, 1, 3)).reshape(factors**2, -1)  # (factors², models²)
    loadings = solved.weights.loadings[tasks]
    through = np.empty((len(tasks), len(rows), models))
    rest = np.empty((len(tasks), len(rows), len(rows)))
    base, mean, variance = (np.empty((len(rows), len(tasks))) for _ in range(3))
    common = np.empty(len(tasks))
    for c, t in enumerate(tasks):
        gain = solved.rest[t][rows] @ solved.inverse[t]  # (rows, models); zero where unknown
        through[c] = -gain
        through[c, np.arange(len(rows)), rows] += 1.0
        rest[c] = solved.rest[t][np.ix_(rows, rows)] - gain @ solved.rest[t][:, rows]
        base[:, c] = gain @ y[:, t]
        mean[:, c] = base[:, c] + through[c] @ (loadings[c] @ solved.mean)
        spread = (np.multiply.outer(loadings[c], loadings[c]).ravel() @ blocks).reshape(models, models)
        variance[:, c] = ((through[c] @ spread) * through[c]).sum(axis=1) + np.diag(rest[c])
        middle = through[c].mean(axis=0)
        common[c] = float(middle @ spread @ middle + rest[c].mean())
    seen = known[np.ix_(rows, tasks)]
    mean = np.where(seen, y[np.ix_(rows, tasks)], mean)
    variance = np.where(seen, 0.0, np.maximum(variance, 1e-12))
    return Posterior(mean, variance, common, through, rest, loadings, base, solved.mean, cov)


def _root(matrix: Floats) -> Floats:
    """A square root of a covariance that may be singular: measured cells have no variance."""
    return np.asarray(np.linalg.cholesky(matrix + 1e-9 * np.eye(len(matrix))))
