"""Who may be first: what draws of scores with their noise say, and who stays in a race.

Candidates race on validation: everyone who may still be the best stays (P ≥ 5 %, shared out over the rounds, paired
where all answered the same documents), and the better half in any case, so that a lucky draw drops nobody.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence

import numpy as np

from potentia.values.scores import Floats

CLAIM_PROBABILITY = 0.975  # the probability from which on something is claimed
ENOUGH_MODELS = 5  # below, scores are compared rather than z scores, and agreement is not spoken of
ENOUGH_TASKS = 5  # below, nothing is said of other tasks
SURVIVAL_CHANCE = 0.05  # a candidate at least so likely to be the best stays in the race
DRAWS = 4_000


def first_place_shares(drawn: Floats) -> Floats:
    """How often each column is the largest; equals share."""
    best = drawn >= drawn.max(axis=1, keepdims=True) - 1e-12
    return np.asarray((best / best.sum(axis=1, keepdims=True)).mean(axis=0))


def shrink_draws(drawn: Floats, rng: np.random.Generator) -> Floats:
    """Draw the models together as far as their differences may be noise: a hierarchical model of their true scores.

    True scores are normal about a common mean with a standard deviation ω that is not known: half-Cauchy, as wide as
    the noise, before the scores are seen. Each draw takes an ω of its posterior, so little evidence shrinks neither to
    nothing nor not at all.
    """
    centred = drawn - drawn.mean(axis=1, keepdims=True)
    mean = centred.mean(axis=0)
    noise = float(((centred - mean) ** 2).mean()) * drawn.shape[1] / max(drawn.shape[1] - 1, 1)
    if noise < 1e-18 or drawn.shape[1] < 2:
        return drawn
    omega = np.geomspace(0.03, 100.0, 60) * math.sqrt(noise)
    total = omega**2 + noise
    weight = -0.5 * (drawn.shape[1] - 1) * np.log(total) - 0.5 * float((mean**2).sum()) / total
    weight += np.log(omega) - np.log1p(omega**2 / noise)  # on a log grid
    chance = np.exp(weight - weight.max())
    taken = rng.choice(len(omega), size=len(drawn), p=chance / chance.sum())
    share = (omega**2 / total)[taken][:, None]
    return np.asarray(share * mean + np.sqrt(share) * (centred - mean))


def covariance_root(covariance: Floats) -> Floats:
    """Return a square root of a covariance that may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def paired_noise_covariance(error: Floats, values: Floats) -> Floats:
    """Covariance of the noise of scores with these standard errors that are means of (models, documents)."""
    together = np.cov(values) / values.shape[1]
    apart = np.sqrt(np.maximum(np.diag(together), 1e-300))
    keep = np.minimum(1.0, error / apart)
    block = np.asarray(together * np.outer(keep, keep))
    np.fill_diagonal(block, error**2)  # seeds, and the document more, are each model's own
    return block


def select_survivors(
    values: Mapping[str, float],
    stderr: Mapping[str, float],
    right: Mapping[str, str] | None = None,
    *,
    higher_is_better: bool,
    looks: int = 1,
    seed: int = 0,
) -> tuple[list[str], dict[str, float]]:
    """Return who stays in the race, best first, and every candidate's chance to be the best; ``looks`` in all."""
    sign = 1.0 if higher_is_better else -1.0
    worth = {n: sign * v if math.isfinite(v) else -math.inf for n, v in values.items()}
    chance = estimate_win_chances(
        values, stderr, right, higher_is_better=higher_is_better, seed=seed
    )
    order = sorted(values, key=lambda n: (-worth[n], n))
    half = math.ceil(len(order) / 2)
    staying = [
        n
        for k, n in enumerate(order)
        if math.isfinite(worth[n]) and (k < half or chance[n] >= SURVIVAL_CHANCE / looks)
    ]
    return staying, chance


def estimate_win_chances(
    values: Mapping[str, float],
    stderr: Mapping[str, float],
    right: Mapping[str, str] | None = None,
    *,
    higher_is_better: bool,
    seed: int = 0,
) -> dict[str, float]:
    """Return every candidate's chance to be the best, from values with standard errors; without a value it has none.

    ``right`` (``pack_right``) says which documents each got right: on the same documents, candidates that fail together
    differ more surely than their errors say.
    """
    names = list(values)
    x = np.array([values[n] for n in names]) * (1.0 if higher_is_better else -1.0)
    error = np.nan_to_num(np.array([stderr[n] for n in names]), nan=0.0)
    known = np.isfinite(x)
    if not known.any():
        return dict.fromkeys(names, 1.0 / len(names))
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((DRAWS, int(known.sum())))
    paired = unpack_correct(
        [(right or {}).get(n, "") for n, there in zip(names, known, strict=True) if there]
    )
    drawn = x[known] + (
        error[known] * noise
        if paired is None
        else noise @ covariance_root(paired_noise_covariance(error[known], paired)).T
    )
    chance = np.zeros(len(names))
    chance[known] = first_place_shares(shrink_draws(drawn, rng))
    return dict(zip(names, chance.tolist(), strict=True))


def pack_correct(outcomes: Sequence[float]) -> str:
    """Write which documents were got right in a few characters; nothing where an outcome is neither 0 nor 1."""
    if len(outcomes) < 2 or not set(outcomes) <= {0.0, 1.0}:
        return ""
    bits = np.packbits(np.asarray(outcomes, dtype=bool)).tobytes()
    return f"{len(outcomes)}:{base64.b85encode(bits).decode()}"


def unpack_correct(packed: Sequence[str]) -> Floats | None:
    """Return (candidates, documents) of several ``pack_right``; None where they are not of as many documents each."""
    sizes = {text.partition(":")[0] for text in packed}
    if len(packed) < 2 or len(sizes) > 1 or "" in sizes:
        return None
    rows = [
        np.frombuffer(base64.b85decode(text.partition(":")[2]), dtype=np.uint8) for text in packed
    ]
    return np.unpackbits(np.stack(rows), axis=1, count=int(sizes.pop())).astype(np.float64)
