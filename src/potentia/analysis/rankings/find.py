"""Every ranking finding that a set of scores can give, in one call: what ``potentia analyze rankings`` prints."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from threadpoolctl import threadpool_limits

from potentia.analysis.rankings.aggregate import Aggregate, aggregate_ranks
from potentia.analysis.rankings.agreement import (
    NAMES,
    SIGNIFICANT,
    Agreement,
    AgreementChange,
    compare_agreement,
    measure_agreement,
)
from potentia.analysis.rankings.alignment import Alignment, align
from potentia.analysis.rankings.components import Components, find_components, without_gaps
from potentia.analysis.rankings.compute import ComputeFit, fit_compute
from potentia.analysis.rankings.decide import Ranking, Unseen, decide
from potentia.analysis.rankings.fewer import FewerTasks, measure_fewer
from potentia.analysis.rankings.groups import (
    GroupAgreement,
    agreement_by_models,
    agreement_by_tasks,
    bin_order,
    items_per_task,
    size_bins,
)
from potentia.analysis.rankings.kept import Kept, always_tuned
from potentia.analysis.rankings.perplexity import PerplexityAgreement, compare_perplexity
from potentia.analysis.rankings.ranks import RankIntervals, rank_intervals
from potentia.analysis.rankings.same import SameForAll, find_same
from potentia.analysis.rankings.scoreboard import Scoreboard, make_scoreboard
from potentia.analysis.rankings.screening import Screening, screen
from potentia.analysis.stats.bootstrap import LEVEL, MODELS, RESAMPLES, Units, interval, pair_mean, with_copies
from potentia.analysis.stats.correlation import METHODS
from potentia.analysis.stats.paired import Outcomes, PairedSignificance, compare_all_items, item_tables
from potentia.analysis.stats.significance import Significance, measure_significance
from potentia.errors import InputError
from potentia.facts import Background, chance
from potentia.values.findings import Cell, Chart, Finding, Interval, Table
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol, in_order, main_protocol
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

LARGE_TEST = 2_000  # items (appendix B.5)
SMALLEST_GROUP = 5  # models (appendix B.6)
RESAMPLED = ("families", "lineages", "models")
ORDERS = ("given", "train-size")


@dataclass(frozen=True)
class Measures(Finding):
    """Mean agreement over pairs of tasks by each measure of correlation, one row per protocol."""

    protocols: tuple[Protocol, ...]
    means: dict[str, tuple[Interval, ...]]  # by measure
    over: str = "models"  # what the intervals draw

    def tables(self) -> Sequence[Table]:
        """Return Kendall, Spearman and Pearson side by side."""
        columns = ["protocol"]
        for name in self.means:
            columns += [NAMES[name], "low", "high"]
        rows: list[tuple[Cell, ...]] = [
            (protocol.label, *(x for m in self.means.values() for x in (m[k].value, m[k].low, m[k].high)))
            for k, protocol in enumerate(self.protocols)
        ]
        note = f"Intervals: bootstrap over {self.over}."
        return [Table("Mean agreement over pairs of tasks, by measure", tuple(columns), tuple(rows), note)]


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
    use_items: bool = True
    order: str = "given"  # of tasks in heat maps: as given, or by the size of the train split
    resample: str = "families"  # what intervals draw: families or lineages where they are known, or models

    def sampling(self) -> Sampling:
        """Return the arguments for intervals."""
        return {"resamples": self.resamples, "level": self.level, "seed": self.seed}

    def units(self, background: Background) -> Units:
        """Return what intervals draw, with what is known of the models."""
        known = {"models": MODELS, "families": Units("families", background.families)}
        known["lineages"] = Units("lineages", background.lineages)
        if self.resample not in known:
            raise InputError(f"no unit {self.resample!r} to resample", hint=f"one of: {', '.join(RESAMPLED)}")
        return known[self.resample]


@dataclass(frozen=True)
class Rankings(Finding):
    """Every ranking finding, by what it is about; what the scores have no evidence for is absent."""

    scoreboard: Scoreboard
    overall: dict[Protocol, Ranking]
    screening: Screening
    agreement: dict[Protocol, Agreement] = field(default_factory=dict)
    measures: Measures | None = None
    changes: dict[tuple[Protocol, Protocol], AgreementChange] = field(default_factory=dict)
    tau_b: dict[Protocol, Agreement] = field(default_factory=dict)  # insignificant differences as ties
    tau_b_changes: dict[tuple[Protocol, Protocol], AgreementChange] = field(default_factory=dict)
    groups: dict[str, GroupAgreement] = field(default_factory=dict)  # by size, family, kind, test size
    paired: dict[Protocol, PairedSignificance] = field(default_factory=dict)
    significance: dict[Protocol, Significance] = field(default_factory=dict)
    ranks: dict[Protocol, RankIntervals] = field(default_factory=dict)
    aggregate: dict[Protocol, Aggregate] = field(default_factory=dict)
    components: dict[Protocol, Components] = field(default_factory=dict)
    family_components: dict[Protocol, dict[str, Components]] = field(default_factory=dict)
    compute: dict[Protocol, ComputeFit] = field(default_factory=dict)
    perplexity: dict[Protocol, PerplexityAgreement] = field(default_factory=dict)
    perplexity_by_kind: dict[str, PerplexityAgreement] = field(default_factory=dict)  # direct bits, tuned tasks
    alignment: dict[Protocol, Alignment] = field(default_factory=dict)
    fewer: dict[Protocol, FewerTasks] = field(default_factory=dict)
    kept: dict[Protocol, Kept] = field(default_factory=dict)
    same: dict[Protocol, SameForAll] = field(default_factory=dict)

    def named(self) -> dict[str, Finding]:
        """Return every finding under a name of its own, in reading order."""
        found: dict[str, Finding] = {"scoreboard": self.scoreboard}
        found |= {f"ranking {p}": f for p, f in self.overall.items()}
        found |= {f"kept {p}": f for p, f in self.kept.items()}
        found |= {f"same for all {p}": f for p, f in self.same.items()}
        found["screening"] = self.screening
        found |= {f"agreement {p}": f for p, f in self.agreement.items()}
        if self.measures is not None:
            found["measures"] = self.measures
        found |= {f"change {one} {two}": f for (one, two), f in self.changes.items()}
        found |= {f"tau-b {p}": f for p, f in self.tau_b.items()}
        found |= {f"tau-b change {one} {two}": f for (one, two), f in self.tau_b_changes.items()}
        found |= {f"fewer tasks {p}": f for p, f in self.fewer.items()}
        found |= {f"by {group}": f for group, f in self.groups.items()}
        for protocol in self.overall:
            for name in ("paired", "significance", "ranks"):
                if protocol in (by := getattr(self, name)):
                    found[f"{name} {protocol}"] = by[protocol]
        for protocol in self.overall:
            for name in ("aggregate", "components", "compute"):
                if protocol in (by := getattr(self, name)):
                    found[f"{name} {protocol}"] = by[protocol]
            families = self.family_components.get(protocol, {})
            found |= {f"components {protocol} {family}": f for family, f in families.items()}
        found |= {f"perplexity {p}": f for p, f in self.perplexity.items()}
        found |= {f"perplexity direct, tuned tasks, {kind}": f for kind, f in self.perplexity_by_kind.items()}
        return found | {f"alignment {p}": f for p, f in self.alignment.items()}

    def tables(self) -> Sequence[Table]:
        """Return the tables of all findings."""
        return [table for finding in self.named().values() for table in finding.tables()]

    def charts(self) -> Sequence[Chart]:
        """Return the charts of all findings."""
        return [chart for finding in self.named().values() for chart in finding.charts()]

    def to_dict(self) -> dict[str, Any]:
        """Return every finding by its name."""
        return {name: finding.to_dict() for name, finding in self.named().items()}


def find_rankings(evidence: Evidence, options: Options | None = None) -> Rankings:
    """Run every analysis that the evidence allows: what ``potentia analyze rankings`` prints and the report shows."""
    options = options or Options()
    found = rank_scores(
        evidence.planned,
        evidence.background,
        options,
        evidence.outcomes if options.use_items else None,
        evidence=evidence,
    )
    shown = {p: evidence.planned[p].select(tasks=ranking.tasks) for p, ranking in found.overall.items()}
    return replace(found, kept=_kept(evidence, found, shown, options), same=find_same(evidence, shown))


def _kept(
    evidence: Evidence, found: Rankings, shown: Mapping[Protocol, ScoreMatrix], options: Options
) -> dict[Protocol, Kept]:
    """Say which cells kept the untuned model, and rank the models as if none had."""
    kept = {}
    for protocol, (matrix, counted) in always_tuned(evidence, shown).items():
        with threadpool_limits(1, user_api="blas"):
            other = _overall([matrix], options, {}, {})
        one, two = found.overall[protocol], other[protocol]
        ranks = [dict(zip(r.models, map(float, r.ranks), strict=True)) for r in (one, two)]
        kept[protocol] = replace(counted, ranks=ranks[0], tuned_ranks=ranks[1])
    return kept


def rank_scores(
    scores: Mapping[Protocol, ScoreMatrix],
    background: Background | None = None,
    options: Options | None = None,
    items: Mapping[Protocol, Outcomes] | None = None,
    *,
    evidence: Evidence | None = None,
) -> Rankings:
    """Analyse matrices by protocol.

    Texts to predict (bits per byte) are compared with the tasks; the rest are tasks. ``items`` are stored outcomes by
    protocol; where they are there, they give paired tests and the noise of scores. ``evidence`` is where the scores are
    from, if from a study: it says which cells are still to come.
    """
    with threadpool_limits(1, user_api="blas"):  # many small products: threads that wait for each other cost more
        return _rank_scores(scores, background, options or Options(), items or {}, evidence)


def _rank_scores(
    scores: Mapping[Protocol, ScoreMatrix],
    background: Background | None,
    options: Options,
    items: Mapping[Protocol, Outcomes],
    evidence: Evidence | None,
) -> Rankings:
    matrices = [scores[p].benchmarks() for p in in_order(scores)]
    matrices = [m for m in matrices if m.shape[0] > 1 and m.shape[1] > 0]
    if not matrices:
        raise InputError("there is nothing to rank: no protocol has two models with a score on a task")
    background = background or Background.of(dict.fromkeys(m for matrix in matrices for m in matrix.models))
    background = replace(background, families=with_copies(background.families, matrices[0]))
    matrices = [_ordered(m, background, options) for m in matrices]
    first, tuned = matrices[0], next((m for m in matrices if m.protocol == TRAIN_BEFORE_TEST), None)
    screening = screen(
        first,
        tuned if tuned is not first else None,
        train_examples=background.train_examples,
        chance=_guesses(first, background),
        level=options.level,
    )
    if options.exclude_flagged:
        flagged = set(screening.flagged)
        matrices = [m.select(tasks=[t for t in m.tasks if t not in flagged]) for m in matrices]
        if not all(m.tasks for m in matrices):
            raise InputError("every task is flagged; nothing is left to rank", hint="drop --exclude-flagged")
    units = options.units(background)
    from potentia.analysis.planning.find import unseen_cells  # planning lies above this room

    unseen = {} if evidence is None else unseen_cells(evidence, matrices)
    overall, components = _overall(matrices, options, items, unseen), _components(matrices, options, units)
    agreement = _agreement(matrices, background, options, items)
    tested = [m for m in map(_tested, matrices) if m.tasks]
    return Rankings(
        scoreboard=_scoreboard(matrices, overall, items),
        overall=overall,
        screening=screening,
        agreement=agreement,
        measures=_measures([m for m in matrices if m.protocol in agreement], options, units) if agreement else None,
        changes=_changes(matrices, options, units),
        tau_b=_agreement(tested, background, options, {}, SIGNIFICANT),
        tau_b_changes=_changes(tested, options, units, SIGNIFICANT),
        groups=_groups(matrices, background, options) if agreement else {},
        paired=_paired(matrices, options, items),
        fewer={f.protocol: f for m in matrices if (f := measure_fewer(m, level=options.level, seed=options.seed))},
        significance={m.protocol: measure_significance(m, units=units, **options.sampling()) for m in tested},
        ranks=_ranks(tested, options, items),
        aggregate={m.protocol: aggregate_ranks(m) for m in matrices},
        components=components,
        family_components=_families(matrices, components, background, options),
        compute=_compute(components, background, options),
        perplexity=_perplexity(scores, matrices, options, units),
        perplexity_by_kind=_perplexity_by_kind(scores, matrices, background, options),
        alignment=_alignment(matrices, agreement, background, options),
    )


def _guesses(matrix: ScoreMatrix, background: Background) -> dict[str, float]:
    """Return the score of guessing of every task for which it is known."""
    found = {}
    for task, metric in zip(matrix.tasks, matrix.metrics, strict=True):
        try:
            found[task] = chance(
                task, metric=metric.name, higher_is_better=metric.higher_is_better, known=background.chance
            )
        except InputError:
            continue
    return found


def _ordered(matrix: ScoreMatrix, background: Background, options: Options) -> ScoreMatrix:
    if options.order not in ORDERS:
        raise InputError(f"no order {options.order!r} of tasks", hint=f"one of: {', '.join(ORDERS)}")
    if options.order == "given":
        return matrix
    size = background.train_examples
    return matrix.select(tasks=sorted(matrix.tasks, key=lambda task: -size.get(task, 0.0)))


def find_scoreboard(evidence: Evidence, options: Options | None = None) -> Scoreboard:
    """Return the scoreboard alone, as ``find_rankings`` has it; also of one model, and of texts where there is no task.

    This is what a run ends with: it needs the overall ranking and none of the rest.
    """
    options = options or Options()
    every = [evidence.planned[p] for p in in_order(evidence.planned)]
    matrices = [m for m in (matrix.benchmarks() for matrix in every) if m.models and m.tasks]
    if not matrices:
        texts = [matrix.corpora() for matrix in every]
        matrices = [m.select(models=[n for n, row in zip(m.models, np.isfinite(m.values), strict=True) if row.any()])
                    for m in texts if m.tasks]  # fmt: skip
        matrices = [m for m in matrices if m.models]
    if not matrices:
        raise InputError("there is no score yet")
    several = [m for m in matrices if m.shape[0] > 1]
    with threadpool_limits(1, user_api="blas"):
        stored = evidence.outcomes if options.use_items else {}
        from potentia.analysis.planning.find import unseen_cells

        shown = several or matrices
        return _scoreboard(shown, _overall(shown, options, stored, unseen_cells(evidence, shown)), stored)


def _overall(
    matrices: Sequence[ScoreMatrix],
    options: Options,
    items: Mapping[Protocol, Outcomes],
    unseen: Mapping[Protocol, Unseen],
) -> dict[Protocol, Ranking]:
    return {
        m.protocol: decide(
            m, items.get(m.protocol), unseen=unseen.get(m.protocol), level=options.level, seed=options.seed
        )
        for m in matrices
    }


def _components(matrices: Sequence[ScoreMatrix], options: Options, units: Units) -> dict[Protocol, Components]:
    return {
        m.protocol: find_components(m, gaps=options.gaps, units=units, **options.sampling())
        for m in matrices
        if len(m.tasks) > 1 and without_gaps(m, options.gaps).shape[0] > 2
    }


def _scoreboard(
    matrices: Sequence[ScoreMatrix], overall: Mapping[Protocol, Ranking], items: Mapping[Protocol, Outcomes]
) -> Scoreboard:
    by_protocol = {m.protocol: m for m in matrices}
    main = main_protocol(by_protocol)
    assert main is not None
    return make_scoreboard(by_protocol, overall, main, items)


def _agreement(
    matrices: Sequence[ScoreMatrix],
    background: Background,
    options: Options,
    items: Mapping[Protocol, Outcomes],
    method: str = "kendall",
) -> dict[Protocol, Agreement]:
    return {
        matrix.protocol: measure_agreement(
            matrix,
            method=method,
            categories=background.categories,
            items=item_tables(matrix, items.get(matrix.protocol, {})),
            units=options.units(background),
            **options.sampling(),
        )
        for matrix in matrices
        if len(matrix.tasks) > 1
    }


def _changes(
    matrices: Sequence[ScoreMatrix], options: Options, units: Units, method: str = "kendall"
) -> dict[tuple[Protocol, Protocol], AgreementChange]:
    return {
        (before.protocol, after.protocol): compare_agreement(
            before, after, method=method, units=units, **options.sampling()
        )
        for before, after in itertools.combinations(matrices, 2)
        if len(set(before.tasks) & set(after.tasks)) > 1 and len(set(before.models) & set(after.models)) > 1
    }


def _groups(matrices: Sequence[ScoreMatrix], background: Background, options: Options) -> dict[str, GroupAgreement]:
    """Agreement among models of one size, family or kind, and among tasks with large and small tests."""
    plain, units, found = options.sampling(), options.units(background), {}
    sizes = size_bins(background.billions)
    orders: dict[str, tuple[dict[str, str], list[str] | None]] = {
        "size in billions": (sizes, bin_order(sizes.values())),
        "family": (background.families, None),
        "kind": (background.kinds, None),
    }
    for by, (groups, order) in orders.items():
        grouped = agreement_by_models(
            matrices, groups, by=by, at_least=SMALLEST_GROUP, order=order, units=units, **plain
        )
        if len(grouped.groups) > 2:
            found[by] = grouped
    sizes_of_tests = items_per_task(matrices[0])
    large = [t for t, n in sizes_of_tests.items() if n > LARGE_TEST]
    if 1 < len(large) < len(matrices[0].tasks):
        small = [t for t, n in sizes_of_tests.items() if n <= LARGE_TEST]
        found["test size"] = agreement_by_tasks(
            matrices,
            {f"over {LARGE_TEST:,} items": large, f"up to {LARGE_TEST:,} items": small},
            by="test set size",
            units=units,
            **plain,
        )
    return found


def _measures(matrices: Sequence[ScoreMatrix], options: Options, units: Units) -> Measures:
    means: dict[str, list[Interval]] = {name: [] for name in METHODS}
    for matrix in matrices:
        values = matrix.oriented()
        draws = units.draws(matrix.models, options.resamples, options.seed)
        whole = bool(np.isfinite(values).all())
        for name, correlate in METHODS.items():
            # With gaps, rho and r go pair by pair and resample by resample; a tenth of the resamples will do.
            used = draws if whole or name == "kendall" else draws[: max(20, options.resamples // 10)]
            spread = pair_mean(correlate(values, weights=used))
            means[name].append(interval(float(pair_mean(correlate(values))), spread, level=options.level))
    over = units.over(matrices[0].models)
    return Measures(tuple(m.protocol for m in matrices), {name: tuple(row) for name, row in means.items()}, over)


def _paired(
    matrices: Sequence[ScoreMatrix], options: Options, items: Mapping[Protocol, Outcomes]
) -> dict[Protocol, PairedSignificance]:
    """Paired tests where items are stored."""
    found = {m.protocol: compare_all_items(m, items.get(m.protocol, {}), **options.sampling()) for m in matrices}
    return {protocol: finding for protocol, finding in found.items() if finding is not None}


def _tested(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return the tasks whose every score has a standard error."""
    bare = np.isfinite(matrix.values) & ~np.isfinite(matrix.stderr)
    return matrix.select(tasks=[t for k, t in enumerate(matrix.tasks) if not bare[:, k].any()])


def _ranks(
    tested: Sequence[ScoreMatrix], options: Options, items: Mapping[Protocol, Outcomes]
) -> dict[Protocol, RankIntervals]:
    plain = {"level": options.level, "simultaneous": options.simultaneous, "seed": options.seed}
    return {m.protocol: rank_intervals(m, items.get(m.protocol), **plain) for m in tested}  # type: ignore[arg-type]


def _compute(
    components: Mapping[Protocol, Components], background: Background, options: Options
) -> dict[Protocol, ComputeFit]:
    return {
        protocol: fit_compute(
            whole, background.flops, families=background.families, units=options.units(background), **options.sampling()
        )
        for protocol, whole in components.items()
        if len({background.flops[m] for m in whole.models if m in background.flops}) > 2
    }


def _families(
    matrices: Sequence[ScoreMatrix],
    components: Mapping[Protocol, Components],
    background: Background,
    options: Options,
) -> dict[Protocol, dict[str, Components]]:
    """Components of each family by itself."""
    found: dict[Protocol, dict[str, Components]] = {}
    for matrix in (m for m in matrices if m.protocol in components):
        for family in sorted(set(background.families.values())):
            members = matrix.select(models=[m for m in matrix.models if background.families.get(m) == family])
            if without_gaps(members, options.gaps).shape[0] >= SMALLEST_GROUP:
                found.setdefault(matrix.protocol, {})[family] = find_components(
                    members, group=family, gaps=options.gaps, **options.sampling()
                )
    return found


def _perplexity(
    scores: Mapping[Protocol, ScoreMatrix], matrices: Sequence[ScoreMatrix], options: Options, units: Units
) -> dict[Protocol, PerplexityAgreement]:
    """Perplexity against tasks within each protocol."""
    texts = {m.protocol: scores[m.protocol].corpora() for m in matrices}
    return {
        m.protocol: compare_perplexity(texts[m.protocol], m, units=units, **options.sampling())
        for m in matrices
        if texts[m.protocol].tasks
    }


def _perplexity_by_kind(
    scores: Mapping[Protocol, ScoreMatrix], matrices: Sequence[ScoreMatrix], background: Background, options: Options
) -> dict[str, PerplexityAgreement]:
    """Perplexity before tuning against tasks after it, for base and for instruct models (figure 5)."""
    tuned = next((m for m in matrices if m.protocol == TRAIN_BEFORE_TEST), None)
    bits = scores[DIRECT].corpora() if DIRECT in scores else None
    if tuned is None or bits is None or not bits.tasks:
        return {}
    scored = {m for m, row in zip(bits.models, bits.values, strict=True) if np.isfinite(row).any()}
    found = {}
    for kind in ("base", "instruct"):
        members = {m for m in tuned.models if background.kinds.get(m) == kind and m in scored}
        if len(members) > 2:
            units, plain = options.units(background), options.sampling()
            found[kind] = compare_perplexity(bits, tuned, models=members, group=kind, units=units, **plain)
    return found


def _alignment(
    matrices: Sequence[ScoreMatrix],
    agreement: Mapping[Protocol, Agreement],
    background: Background,
    options: Options,
) -> dict[Protocol, Alignment]:
    """Align the two tasks asked for, or those that agree least under the first protocol."""
    pair = options.align
    if pair is None:
        least = agreement.get(matrices[0].protocol)
        if least is None:
            return {}
        known = np.isfinite(matrices[0].stderr).all(axis=0)
        tau = np.where(np.triu(np.outer(known, known), 1), least.matrix, np.nan)
        if not np.isfinite(tau).any():
            return {}
        i, j = np.unravel_index(np.nanargmin(tau), tau.shape)
        pair = (least.tasks[int(i)], least.tasks[int(j)])
    found = {}
    for matrix in matrices:
        if set(pair) <= set(matrix.tasks):
            found[matrix.protocol] = align(matrix, *pair, level=options.level, families=background.families)
        elif options.align is not None:
            matrix.select(tasks=pair)
    return found
