"""Who may be first: what draws of scores with their noise say, and who stays in a race.

Candidates race on validation: everyone who may still be the best stays (P ≥ 5 %, shared out over the rounds, paired
where all answered the same documents, passage by passage where documents share one), and the better half in any case,
so that a lucky draw drops nobody.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student_t

from potentia.values.clusters import Clusters, clustered_covariance, degrees_of_freedom
from potentia.values.scores import Floats

CLAIM_PROBABILITY = 0.975  # from which on something is claimed
ENOUGH_MODELS = 5  # below, scores are compared rather than z scores, and agreement is not spoken of
ENOUGH_TASKS = 5  # below, nothing is said of other tasks
SURVIVAL_CHANCE = 0.05  # a candidate at least so likely to be the best stays in the race
DRAWS = 4_000


def first_place_shares(draws: Floats) -> Floats:
    """Return how often each column of (draws, models) is the largest; ties share."""
    is_best = draws >= draws.max(axis=1, keepdims=True) - 1e-12
    return np.asarray((is_best / is_best.sum(axis=1, keepdims=True)).mean(axis=0))


def shrink_draws(draws: Floats, rng: np.random.Generator) -> Floats:
    """Draw the models together as far as their differences may be noise: a hierarchical model of their true scores.

    True scores are normal about a common mean with a standard deviation ω that is not known: half-Cauchy, as wide as
    the noise, before the scores are seen. Each draw takes an ω of its posterior, so little evidence shrinks neither to
    nothing nor not at all.
    """
    models = draws.shape[1]
    centred = draws - draws.mean(axis=1, keepdims=True)
    mean = centred.mean(axis=0)
    noise = float(((centred - mean) ** 2).mean()) * models / max(models - 1, 1)
    if noise < 1e-18 or models < 2:
        return draws
    omega = np.geomspace(0.03, 100.0, 60) * math.sqrt(noise)
    total = omega**2 + noise
    log_likelihood = -0.5 * (models - 1) * np.log(total) - 0.5 * float((mean**2).sum()) / total
    # The prior on the logarithmic grid of ω.
    log_likelihood += np.log(omega) - np.log1p(omega**2 / noise)
    posterior = np.exp(log_likelihood - log_likelihood.max())
    drawn_omega = rng.choice(len(omega), size=len(draws), p=posterior / posterior.sum())
    share = (omega**2 / total)[drawn_omega][:, None]
    return np.asarray(share * mean + np.sqrt(share) * (centred - mean))


def covariance_root(covariance: Floats) -> Floats:
    """Return a square root of a covariance that may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def paired_noise_covariance(
    errors: Floats, outcomes: Floats, clusters: Clusters | None = None
) -> Floats:
    """Return the covariance of the noise of scores with these errors that are means of (models, documents).

    With clusters of documents that share a passage, the errors are at least what the clusters make them; of few
    clusters they are themselves uncertain, and wider by as much as Student's t is.
    """
    if clusters is None or clusters.are_independent:
        of_means = np.cov(outcomes) / outcomes.shape[1]
    else:
        widening = student_widening(degrees_of_freedom(clusters))
        of_means = widening**2 * clustered_covariance(outcomes, clusters)
        errors = np.maximum(errors, np.sqrt(np.diag(of_means)))
    deviations = np.sqrt(np.maximum(np.diag(of_means), 1e-300))
    kept_share = np.minimum(1.0, errors / deviations)
    covariance = np.asarray(of_means * np.outer(kept_share, kept_share))
    np.fill_diagonal(covariance, errors**2)  # seeds, and the document more, are each model's own
    return covariance


def student_widening(freedom: float) -> float:
    """Return how much wider the 95 % interval of Student's t is than that of a normal."""
    quantile = student_t.ppf(CLAIM_PROBABILITY, max(freedom, 1.0))
    return float(quantile / norm.ppf(CLAIM_PROBABILITY))


def select_survivors(
    values: Mapping[str, float],
    stderr: Mapping[str, float],
    correct: Mapping[str, str] | None = None,
    *,
    higher_is_better: bool,
    looks: int = 1,
    seed: int = 0,
) -> tuple[list[str], dict[str, float]]:
    """Return who stays in the race, best first, and every candidate's chance to be the best; ``looks`` in all."""
    sign = 1.0 if higher_is_better else -1.0
    worth = {}
    for model_name, value in values.items():
        worth[model_name] = sign * value if math.isfinite(value) else -math.inf
    chances = estimate_win_chances(
        values, stderr, correct, higher_is_better=higher_is_better, seed=seed
    )
    order = sorted(values, key=lambda model_name: (-worth[model_name], model_name))
    better_half = order[: math.ceil(len(order) / 2)]
    survivors = []
    for model_name in order:
        may_win = model_name in better_half or chances[model_name] >= SURVIVAL_CHANCE / looks
        if may_win and math.isfinite(worth[model_name]):
            survivors.append(model_name)
    return survivors, chances


def estimate_win_chances(
    values: Mapping[str, float],
    stderr: Mapping[str, float],
    correct: Mapping[str, str] | None = None,
    *,
    higher_is_better: bool,
    seed: int = 0,
) -> dict[str, float]:
    """Return every candidate's chance to be the best, from values with standard errors; without a value it has none.

    ``correct`` (``pack_correct``) says which documents each got right: on the same documents, candidates that fail
    together differ more surely than their errors say.
    """
    names = list(values)
    sign = 1.0 if higher_is_better else -1.0
    scores = np.array([values[model_name] for model_name in names]) * sign
    errors = np.nan_to_num(np.array([stderr[model_name] for model_name in names]), nan=0.0)
    scored = np.isfinite(scores)
    if not scored.any():
        return dict.fromkeys(names, 1.0 / len(names))
    rng = np.random.default_rng(seed)
    normals = rng.standard_normal((DRAWS, int(scored.sum())))
    packed = []
    for model_name, has_score in zip(names, scored, strict=True):
        if has_score:
            packed.append((correct or {}).get(model_name, ""))
    race = unpack_correct(packed)
    if race is None:
        noise = errors[scored] * normals
    else:
        covariance = paired_noise_covariance(errors[scored], race.outcomes, race.clusters)
        noise = normals @ covariance_root(covariance).T
    chances = np.zeros(len(names))
    chances[scored] = first_place_shares(shrink_draws(scores[scored] + noise, rng))
    return dict(zip(names, chances.tolist(), strict=True))


@dataclass(frozen=True)
class RaceOutcomes:
    """Which documents each candidate of a race got right."""

    outcomes: Floats  # (candidates, documents)
    clusters: Clusters  # of documents that share a passage


def pack_correct(outcomes: Sequence[float], passages: Sequence[str] = ()) -> str:
    """Write which documents were got right in a few characters; nothing where an outcome is neither 0 nor 1.

    ``passages`` name the passage of each document, empty where it has none; they are written where documents share one.
    """
    if len(outcomes) < 2 or not set(outcomes) <= {0.0, 1.0}:
        return ""
    packed_bits = np.packbits(np.asarray(outcomes, dtype=bool)).tobytes()
    packed = f"{len(outcomes)}:{base64.b85encode(packed_bits).decode()}"
    clusters = Clusters.of_examples(range(len(outcomes)), dict(enumerate(passages)))
    if clusters.are_independent:
        return packed
    numbers = zlib.compress(clusters.numbers.astype("<u4").tobytes())
    return f"{packed}:{base64.b85encode(numbers).decode()}"


def unpack_correct(packed: Sequence[str]) -> RaceOutcomes | None:
    """Return the outcomes of several ``pack_correct``; None where they are not of as many documents each."""
    sizes = {text.partition(":")[0] for text in packed}
    if len(packed) < 2 or len(sizes) > 1 or "" in sizes:
        return None
    documents = int(sizes.pop())
    clusters = Clusters.singletons(documents)
    rows = []
    for text in packed:
        _, encoded, *encoded_clusters = text.split(":")
        rows.append(np.frombuffer(base64.b85decode(encoded), dtype=np.uint8))
        if encoded_clusters:
            numbers = zlib.decompress(base64.b85decode(encoded_clusters[0]))
            clusters = Clusters(np.frombuffer(numbers, dtype="<u4").astype(np.intp))
    unpacked_bits = np.unpackbits(np.stack(rows), axis=1, count=documents)
    return RaceOutcomes(unpacked_bits.astype(np.float64), clusters)
