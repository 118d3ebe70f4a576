"""Every ranking finding that a set of scores can give, in one call: what ``potentia analyze rankings`` prints."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from potentia.analysis.rankings.aggregate import aggregate_ranks
from potentia.analysis.rankings.agreement import NAMES, Agreement, compare_agreement, measure_agreement
from potentia.analysis.rankings.alignment import align
from potentia.analysis.rankings.background import Background
from potentia.analysis.rankings.components import find_components, without_gaps
from potentia.analysis.rankings.compute import fit_compute
from potentia.analysis.rankings.groups import (
    agreement_by_models,
    agreement_by_tasks,
    bin_order,
    items_per_task,
    size_bins,
)
from potentia.analysis.rankings.perplexity import compare_perplexity
from potentia.analysis.rankings.ranks import rank_intervals
from potentia.analysis.rankings.screening import screen
from potentia.analysis.stats.bootstrap import LEVEL, RESAMPLES, interval, pair_mean, row_draws
from potentia.analysis.stats.correlation import METHODS
from potentia.analysis.stats.paired import Outcomes, compare_all_items, item_tables
from potentia.analysis.stats.significance import measure_significance
from potentia.errors import InputError
from potentia.findings import Cell, Finding, Interval, Table
from potentia.protocol import TRAIN_BEFORE_TEST
from potentia.scores import ScoreMatrix

ORDER = ("direct", "few_shot", "train_before_test")
LARGE_TEST = 2_000  # items (appendix B.5)
SMALLEST_GROUP = 5  # models (appendix B.6)


@dataclass(frozen=True)
class Measures(Finding):
    """Mean agreement over pairs of tasks by each measure of correlation, one row per protocol."""

    protocols: tuple[str, ...]
    means: dict[str, tuple[Interval, ...]]  # by measure, over models

    def tables(self) -> Sequence[Table]:
        """Return Kendall, Spearman and Pearson side by side."""
        columns = ["protocol"]
        for name in self.means:
            columns += [NAMES[name], "low", "high"]
        rows: list[tuple[Cell, ...]] = [
            (protocol, *(x for m in self.means.values() for x in (m[k].value, m[k].low, m[k].high)))
            for k, protocol in enumerate(self.protocols)
        ]
        return [Table("Mean agreement over pairs of tasks, by measure", tuple(columns), tuple(rows))]


class Sampling(TypedDict):
    """What every analysis with intervals takes."""

    resamples: int
    level: float
    seed: int


@dataclass(frozen=True)
class Options:
    """How to analyse: resamples, confidence level, seed, and what to do about missing cells."""

    resamples: int = RESAMPLES
    level: float = LEVEL
    seed: int = 0
    gaps: str = "models"
    simultaneous: bool = False
    exclude_flagged: bool = False
    align: tuple[str, str] | None = None

    def sampling(self) -> Sampling:
        """Return the arguments for intervals."""
        return {"resamples": self.resamples, "level": self.level, "seed": self.seed}


def analyze_rankings(
    scores: Mapping[str, ScoreMatrix],
    background: Background | None = None,
    options: Options | None = None,
    items: Mapping[str, Outcomes] | None = None,
) -> dict[str, Finding]:
    """Run every analysis that the scores have evidence for; findings by name, in reading order.

    Lower-is-better columns are taken for corpora (bits per byte) and compared with the tasks; the rest are tasks.
    ``items`` are stored outcomes by protocol; where they are there, they give paired tests and the noise of scores.
    """
    items = items or {}
    options = options or Options()
    matrices = [_tasks(scores[p]) for p in in_order(scores)]
    matrices = [m for m in matrices if m.shape[0] > 1 and m.shape[1] > 0]
    if not matrices:
        raise InputError("there is nothing to rank: no protocol has two models with a score on a task")
    background = background or Background.of(dict.fromkeys(m for matrix in matrices for m in matrix.models))
    by = {m.protocol: m for m in matrices}
    found: dict[str, Finding] = {}
    first, tuned = matrices[0], by.get(TRAIN_BEFORE_TEST)
    screening = screen(
        first,
        tuned if tuned is not first else None,
        train_examples=background.train_examples,
        level=options.level,
    )
    found["screening"] = screening
    if options.exclude_flagged:
        flagged = set(screening.flagged)
        matrices = [m.select(tasks=[t for t in m.tasks if t not in flagged]) for m in matrices]
        if not all(m.tasks for m in matrices):
            raise InputError("every task is flagged; nothing is left to rank", hint="drop --exclude-flagged")
    if any(len(m.tasks) > 1 for m in matrices):
        _agreements(found, matrices, background, options, items)
    for matrix in matrices:
        _significance(found, matrix, options, items.get(matrix.protocol, {}))
    _structure(found, matrices, background, options)
    _perplexity(found, scores, matrices, background, options)
    _alignment(found, matrices, background, options)
    return found


def in_order(protocols: Iterable[str]) -> list[str]:
    """Protocols from the least to the most preparation, others after."""
    kinds = {kind: place for place, kind in enumerate(ORDER)}
    return sorted(protocols, key=lambda name: kinds.get(name.partition(":")[0], len(ORDER)))


def merge_scores(sources: Sequence[Mapping[str, ScoreMatrix]]) -> dict[str, ScoreMatrix]:
    """Join the scores of several sources, protocol by protocol; a cell that two of them have is refused."""
    merged: dict[str, ScoreMatrix] = {}
    for source in sources:
        for protocol, matrix in source.items():
            merged[protocol] = _union(merged[protocol], matrix) if protocol in merged else matrix
    return merged


def merge_items(sources: Sequence[Mapping[str, Outcomes]]) -> dict[str, Outcomes]:
    """Join the stored outcomes of several sources."""
    merged: dict[str, dict[str, dict[str, Mapping[int, float]]]] = {}
    for source in sources:
        for protocol, tasks in source.items():
            for task, models in tasks.items():
                merged.setdefault(protocol, {}).setdefault(task, {}).update(models)
    return dict(merged)


def _union(one: ScoreMatrix, two: ScoreMatrix) -> ScoreMatrix:
    models, tasks = tuple(dict.fromkeys(one.models + two.models)), tuple(dict.fromkeys(one.tasks + two.tasks))
    up: dict[str, bool] = dict(zip(one.tasks, one.higher_is_better, strict=True))
    for task, direction in zip(two.tasks, two.higher_is_better, strict=True):
        if up.setdefault(task, direction) != direction:
            raise InputError(f"{task} is higher-is-better in one source and lower-is-better in another")
    tables = []
    row, column = {m: i for i, m in enumerate(models)}, {t: j for j, t in enumerate(tasks)}
    for name in ("values", "stderr", "n"):
        table = np.full((len(models), len(tasks)), np.nan)
        for part in (one, two):
            grid = np.ix_([row[m] for m in part.models], [column[t] for t in part.tasks])
            new = getattr(part, name)
            if name == "values" and (twice := np.argwhere(np.isfinite(table[grid]) & np.isfinite(new))).size:
                i, j = twice[0]
                raise InputError(
                    f"two sources have a {one.protocol} score of {part.models[i]} on {part.tasks[j]}",
                    hint="leave one of the sources out",
                )
            table[grid] = np.where(np.isfinite(new), new, table[grid])
        tables.append(table)
    return ScoreMatrix(one.protocol, models, tasks, tables[0], tables[1], tables[2], tuple(up[t] for t in tasks))


def _tasks(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return the tasks that anyone has a score of, without the corpora, and the models that have any of them."""
    known = np.isfinite(matrix.values)
    columns = [k for k, up in enumerate(matrix.higher_is_better) if up and known[:, k].any()]
    rows = [m for m, row in zip(matrix.models, known, strict=True) if row[columns].any()]
    return matrix.select(models=rows, tasks=[matrix.tasks[k] for k in columns])


def _agreements(
    found: dict[str, Finding],
    matrices: Sequence[ScoreMatrix],
    background: Background,
    options: Options,
    items: Mapping[str, Outcomes],
) -> None:
    plain = options.sampling()
    for matrix in matrices:
        if len(matrix.tasks) > 1:
            found[f"agreement {matrix.protocol}"] = measure_agreement(
                matrix,
                categories=background.categories,
                items=item_tables(matrix, items.get(matrix.protocol, {})),
                **plain,
            )
    found["measures"] = _measures([m for m in matrices if len(m.tasks) > 1], options)
    for before, after in itertools.combinations(matrices, 2):
        if len(set(before.tasks) & set(after.tasks)) > 1 and len(set(before.models) & set(after.models)) > 1:
            found[f"change {before.protocol} {after.protocol}"] = compare_agreement(before, after, **plain)
    sizes = size_bins(background.billions)
    orders: dict[str, tuple[dict[str, str], list[str] | None]] = {
        "size in billions": (sizes, bin_order(sizes.values())),
        "family": (background.families, None),
        "kind": (background.kinds, None),
    }
    for by, (groups, order) in orders.items():
        grouped = agreement_by_models(matrices, groups, by=by, at_least=SMALLEST_GROUP, order=order, **plain)
        if len(grouped.groups) > 2:
            found[f"by {by}"] = grouped
    sizes_of_tests = items_per_task(matrices[0])
    large = [t for t, n in sizes_of_tests.items() if n > LARGE_TEST]
    if 1 < len(large) < len(matrices[0].tasks):
        small = [t for t, n in sizes_of_tests.items() if n <= LARGE_TEST]
        found["by test size"] = agreement_by_tasks(
            matrices,
            {f"over {LARGE_TEST:,} items": large, f"up to {LARGE_TEST:,} items": small},
            by="test set size",
            **plain,
        )


def _measures(matrices: Sequence[ScoreMatrix], options: Options) -> Measures:
    means: dict[str, list[Interval]] = {name: [] for name in METHODS}
    for matrix in matrices:
        values = matrix.oriented()
        draws = row_draws(len(values), options.resamples, np.random.default_rng(options.seed))
        whole = bool(np.isfinite(values).all())
        for name, correlate in METHODS.items():
            # With gaps, rho and r go pair by pair and resample by resample; a tenth of the resamples will do.
            used = draws if whole or name == "kendall" else draws[: max(20, options.resamples // 10)]
            spread = pair_mean(correlate(values, weights=used))
            means[name].append(interval(float(pair_mean(correlate(values))), spread, level=options.level))
    return Measures(tuple(m.protocol for m in matrices), {name: tuple(row) for name, row in means.items()})


def _significance(found: dict[str, Finding], matrix: ScoreMatrix, options: Options, outcomes: Outcomes) -> None:
    """Paired tests where items are stored; significance and ranks on tasks whose every score has a standard error."""
    paired = compare_all_items(matrix, outcomes, **options.sampling())
    if paired is not None:
        found[f"paired {matrix.protocol}"] = paired
    known = np.isfinite(matrix.values)
    errors = np.isfinite(matrix.stderr)
    tasks = [t for k, t in enumerate(matrix.tasks) if not (known[:, k] & ~errors[:, k]).any()]
    if not tasks:
        return
    tested = matrix.select(tasks=tasks)
    found[f"significance {matrix.protocol}"] = measure_significance(tested, **options.sampling())
    found[f"ranks {matrix.protocol}"] = rank_intervals(
        tested, level=options.level, simultaneous=options.simultaneous, seed=options.seed
    )


def _structure(
    found: dict[str, Finding], matrices: Sequence[ScoreMatrix], background: Background, options: Options
) -> None:
    """Components of all models and of each family, compute, and aggregate rankings."""
    for matrix in matrices:
        protocol = matrix.protocol
        found[f"aggregate {protocol}"] = aggregate_ranks(
            matrix, resamples=min(options.resamples, 200), level=options.level, seed=options.seed
        )
        if len(matrix.tasks) < 2 or without_gaps(matrix, options.gaps).shape[0] < 3:
            continue
        whole = find_components(matrix, gaps=options.gaps, **options.sampling())
        found[f"components {protocol}"] = whole
        if len({background.flops[m] for m in whole.models if m in background.flops}) > 2:
            found[f"compute {protocol}"] = fit_compute(
                whole,
                background.flops,
                families=background.families,
                **options.sampling(),
            )
        for family in sorted(set(background.families.values())):
            members = matrix.select(models=[m for m in matrix.models if background.families.get(m) == family])
            if without_gaps(members, options.gaps).shape[0] >= SMALLEST_GROUP:
                found[f"components {protocol} {family}"] = find_components(
                    members,
                    group=family,
                    gaps=options.gaps,
                    **options.sampling(),
                )


def _perplexity(
    found: dict[str, Finding],
    scores: Mapping[str, ScoreMatrix],
    matrices: Sequence[ScoreMatrix],
    background: Background,
    options: Options,
) -> None:
    """Perplexity against tasks within each protocol, and direct perplexity against tuned tasks by kind of model."""
    bits = {}
    for protocol, matrix in scores.items():
        corpora = [t for t, up in zip(matrix.tasks, matrix.higher_is_better, strict=True) if not up]
        if corpora:
            bits[protocol] = matrix.select(tasks=corpora)
    plain = options.sampling()
    for matrix in matrices:
        if matrix.protocol in bits:
            found[f"perplexity {matrix.protocol}"] = compare_perplexity(bits[matrix.protocol], matrix, **plain)
    tuned = next((m for m in matrices if m.protocol == "train_before_test"), None)
    if tuned is None or "direct" not in bits:
        return
    scored = {m for m, row in zip(bits["direct"].models, bits["direct"].values, strict=True) if np.isfinite(row).any()}
    for kind in ("base", "instruct"):
        members = {m for m in tuned.models if background.kinds.get(m) == kind and m in scored}
        if len(members) > 2:
            found[f"perplexity direct, tuned tasks, {kind}"] = compare_perplexity(
                bits["direct"], tuned, models=members, group=kind, **plain
            )


def _alignment(
    found: dict[str, Finding], matrices: Sequence[ScoreMatrix], background: Background, options: Options
) -> None:
    """Align the two tasks asked for, or those that agree least under the first protocol."""
    pair = options.align
    if pair is None:
        least = found.get(f"agreement {matrices[0].protocol}")
        if not isinstance(least, Agreement):
            return
        known = np.isfinite(matrices[0].stderr).all(axis=0)
        tau = np.where(np.triu(np.outer(known, known), 1), least.matrix, np.nan)
        if not np.isfinite(tau).any():
            return
        i, j = np.unravel_index(np.nanargmin(tau), tau.shape)
        pair = (least.tasks[int(i)], least.tasks[int(j)])
    for matrix in matrices:
        if set(pair) <= set(matrix.tasks):
            aligned = align(matrix, *pair, level=options.level, families=background.families)
            found[f"alignment {matrix.protocol}"] = aligned
        elif options.align is not None:
            matrix.select(tasks=pair)
