"""Every ranking finding that scores can give: in one call, by name, as tables and charts, and in a screenful."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from potentia.analysis.completion import predict_missing_cells
from potentia.analysis.left_out import drop_names_in
from potentia.analysis.rankings import aggregate
from potentia.analysis.rankings import agreement as agreeing
from potentia.analysis.rankings import components as pca
from potentia.analysis.rankings import groups as grouped
from potentia.analysis.rankings.aggregate import Aggregate, RankIntervals, TaskCurve
from potentia.analysis.rankings.agreement import SIGNIFICANT, Agreement, AgreementChange
from potentia.analysis.rankings.components import Components, ComputeFit
from potentia.analysis.rankings.decide import Ranking, decide_ranking
from potentia.analysis.rankings.groups import (
    Alignment,
    GroupAgreement,
    PerplexityAgreement,
    align_rankings,
)
from potentia.analysis.rankings.scoreboard import Scoreboard, scoreboard_from_rankings
from potentia.analysis.rankings.screening import Screening, screen_tasks
from potentia.analysis.rankings.tuning import TuningComparison, compare_tuning
from potentia.analysis.stats import significance
from potentia.analysis.stats.bootstrap import (
    LEVEL,
    MODELS,
    RESAMPLES,
    How,
    ResamplingUnits,
    join_copies_to_families,
)
from potentia.analysis.stats.first_place import ENOUGH_MODELS
from potentia.analysis.stats.significance import Outcomes, Significance
from potentia.errors import InputError
from potentia.facts import Background, known_chance
from potentia.values.findings import Finding, Findings, Interval, Table
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol, in_order
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

LARGE_TEST = 2_000  # items (appendix B.5)
SMALLEST_GROUP = 5  # models (appendix B.6)
MANY_CELLS, MANY_RESAMPLES = 20_000, 200  # of a protocol: so many resamples, whatever is asked for
MANY_MODELS = 100  # of which the curve of few tasks is made


@dataclass(frozen=True)
class RankingOptions:
    """How to analyse: resamples, confidence level, seed, and what to do about missing cells."""

    resamples: int = RESAMPLES
    level: float = LEVEL
    seed: int = 0
    gaps: str = "models"
    simultaneous: bool = False
    exclude_flagged: bool = False
    align: tuple[str, str] | None = None
    use_items: bool = True
    resample: str = (
        "families"  # what intervals draw: families or lineages where they are known, or models
    )

    def how(self, background: Background) -> How:
        """Return how intervals are made: what they draw, with what is known of the models."""
        known = {
            "families": ResamplingUnits("families", background.families),
            "lineages": ResamplingUnits("lineages", background.lineages),
        }
        known["models"] = MODELS
        if self.resample not in known:
            raise InputError(
                f"no unit {self.resample!r} to resample", hint=f"one of: {', '.join(known)}"
            )
        return How(
            units=known[self.resample], resamples=self.resamples, level=self.level, seed=self.seed
        )


Changes = dict[tuple[Protocol, Protocol], AgreementChange]


LABELS = {  # what findings are called where not by their field
    "overall": "ranking",
    "tuning": "same for all",
    "changes": "change",
    "tau_b": "tau-b",
    "tau_b_changes": "tau-b change",
    "task_curves": "fewer tasks",
    "groups": "by",
    "family_components": "components",
    "perplexity_by_kind": "perplexity direct, tuned tasks,",
}


@dataclass(frozen=True, kw_only=True)
class Rankings(Findings):
    """Every ranking finding in reading order, by what it is about; what the scores have no evidence for is absent."""

    scoreboard: Scoreboard
    overall: dict[Protocol, Ranking]
    tuning: dict[Protocol, TuningComparison] = field(default_factory=dict)
    screening: Screening
    agreement: dict[Protocol, Agreement] = field(default_factory=dict)
    measures: GroupAgreement | None = None
    changes: Changes = field(default_factory=dict)
    tau_b: dict[Protocol, Agreement] = field(
        default_factory=dict
    )  # insignificant differences as ties
    tau_b_changes: Changes = field(default_factory=dict)
    task_curves: dict[Protocol, TaskCurve] = field(default_factory=dict)
    groups: dict[str, GroupAgreement] = field(default_factory=dict)  # size, family, kind, test size
    significance: dict[Protocol, Significance] = field(default_factory=dict)
    ranks: dict[Protocol, RankIntervals] = field(default_factory=dict)
    aggregate: dict[Protocol, Aggregate] = field(default_factory=dict)
    components: dict[Protocol, Components] = field(default_factory=dict)
    family_components: dict[Protocol, dict[str, Components]] = field(default_factory=dict)
    compute: dict[Protocol, ComputeFit] = field(default_factory=dict)
    perplexity: dict[Protocol, PerplexityAgreement] = field(default_factory=dict)
    perplexity_by_kind: dict[str, PerplexityAgreement] = field(default_factory=dict)
    alignment: dict[Protocol, Alignment] = field(default_factory=dict)

    def named(self) -> dict[str, Finding]:
        """Return every finding under a name of its own, in reading order."""
        found: dict[str, Finding] = {}
        for about in fields(self):
            label, part = LABELS.get(about.name, about.name), getattr(self, about.name)
            found |= (
                {label: part}
                if isinstance(part, Finding)
                else {f"{label} {k}": v for k, v in _flat(part or {})}
            )
        return found


def find_rankings(evidence: Evidence, options: RankingOptions | None = None) -> Rankings:
    """Run every analysis that the evidence allows: what ``potentia analyze rankings`` prints and the report shows."""
    options = options or RankingOptions()
    items = evidence.outcomes if options.use_items else None
    found = analyze_scores(evidence.planned, evidence.background, options, items, evidence=evidence)
    shown = {
        p: evidence.planned[p].select(tasks=ranking.tasks) for p, ranking in found.overall.items()
    }
    with threadpool_limits(1, user_api="blas"):
        return replace(found, tuning=compare_tuning(evidence, shown))


def build_scoreboard(evidence: Evidence) -> Scoreboard:
    """Return the scoreboard alone, as ``find_rankings`` has it; also of one model, and of texts where there is no task.

    This is what a run ends with: it needs the overall ranking and none of the rest.
    """
    every = [evidence.planned[p] for p in in_order(evidence.planned)]
    matrices = [m for m in (matrix.benchmarks() for matrix in every) if m.models and m.tasks]
    matrices = matrices or [m for m in map(_texts, every) if m.models and m.tasks]
    if not matrices:
        raise InputError("there is no score yet")
    shown = [m for m in matrices if m.shape[0] > 1] or matrices
    with threadpool_limits(1, user_api="blas"):
        return scoreboard_from_rankings(
            shown, _overall(shown, RankingOptions(), evidence.outcomes, evidence), evidence.outcomes
        )


def _texts(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return the texts to predict of the models that have a score on any."""
    texts = matrix.corpora()
    return texts.select(models=np.isfinite(texts.values).any(axis=1))


def analyze_scores(
    scores: Mapping[Protocol, ScoreMatrix],
    background: Background | None = None,
    options: RankingOptions | None = None,
    items: Mapping[Protocol, Outcomes] | None = None,
    *,
    evidence: Evidence | None = None,
) -> Rankings:
    """Analyse matrices by protocol.

    Texts to predict (bits per byte) are compared with the tasks; the rest are tasks. ``items`` are stored outcomes by
    protocol; where they are there, they give paired tests and the noise of scores. ``evidence`` is where the scores are
    from, if from a study: it says which cells are still to come.
    """
    options, items = options or RankingOptions(), items or {}
    matrices = [scores[p].benchmarks() for p in in_order(scores)]
    matrices = [m for m in matrices if m.shape[0] > 1 and m.shape[1] > 0]
    if not matrices:
        raise InputError(
            "there is nothing to rank: no protocol has two models with a score on a task"
        )
    background = background or Background.of(
        dict.fromkeys(m for matrix in matrices for m in matrix.models)
    )
    background = replace(
        background, families=join_copies_to_families(background.families, matrices[0])
    )
    if max(m.values.size for m in matrices) > MANY_CELLS:
        options = replace(options, resamples=min(options.resamples, MANY_RESAMPLES))
    with threadpool_limits(
        1, user_api="blas"
    ):  # many small products: threads that wait for each other cost more
        matrices, screening = _screened(matrices, background, options)
        overall = _overall(matrices, options, items, evidence)
        analysis = _Analysis(scores, matrices, background, options, items, options.how(background))
        board = scoreboard_from_rankings(matrices, overall, items)
        return Rankings(
            scoreboard=board, overall=overall, screening=screening, **analysis.findings()
        )


def _screened(
    matrices: list[ScoreMatrix], background: Background, options: RankingOptions
) -> tuple[list[ScoreMatrix], Screening]:
    """Screen the tasks; leave the flagged ones out where that is asked for."""
    first, tuned = (
        matrices[0],
        next((m for m in matrices[1:] if m.protocol == TRAIN_BEFORE_TEST), None),
    )
    metrics = zip(first.tasks, first.metrics, strict=True)
    guesses = {task: known_chance(task, metric, background.chance) for task, metric in metrics}
    known = {task: guess for task, guess in guesses.items() if guess is not None}
    screening = screen_tasks(
        first, tuned, train_examples=background.train_examples, chance=known, level=options.level
    )
    if options.exclude_flagged:
        matrices = [
            m.select(tasks=drop_names_in(m.tasks, screening.flagged_tasks)) for m in matrices
        ]
        if not all(m.tasks for m in matrices):
            raise InputError(
                "every task is flagged; nothing is left to rank", hint="drop --exclude-flagged"
            )
    return matrices, screening


def _overall(
    matrices: Sequence[ScoreMatrix],
    options: RankingOptions,
    items: Mapping[Protocol, Outcomes],
    evidence: Evidence | None,
) -> dict[Protocol, Ranking]:
    unseen = {} if evidence is None else predict_missing_cells(evidence, matrices)
    found = {}
    for matrix in matrices:
        p = matrix.protocol
        found[p] = decide_ranking(
            matrix, items.get(p), cell_sampler=unseen.get(p), level=options.level, seed=options.seed
        )
    return found


@dataclass(frozen=True)
class _Analysis:
    """Some matrices of tasks, and all that is known beside them."""

    scores: Mapping[Protocol, ScoreMatrix]  # with the texts to predict
    matrices: Sequence[ScoreMatrix]
    background: Background
    options: RankingOptions
    items: Mapping[Protocol, Outcomes]
    how: How

    def findings(self) -> dict[str, Any]:
        """Everything but the overall ranking, by the names of ``Rankings``."""
        level, matrices = self.options.level, self.matrices
        ranked: dict[str, Any] = {
            "simultaneous": self.options.simultaneous,
            "level": level,
            "seed": self.options.seed,
        }
        bare = [
            np.isfinite(m.values) & ~np.isfinite(m.stderr) for m in matrices
        ]  # scores without a standard error
        every = [m.select(tasks=~gaps.any(axis=0)) for m, gaps in zip(matrices, bare, strict=True)]
        tested = [m for m in every if m.tasks]
        items = {m.protocol: (m, self.items.get(m.protocol)) for m in tested}
        agreement, components = self.agreement(matrices), self.components()
        several = [m for m in matrices if m.protocol in agreement]
        return {
            "agreement": agreement,
            "measures": grouped.agreement_by_measure(several, **self.how) if several else None,
            "changes": self.changes(matrices),
            "tau_b": self.agreement(tested, SIGNIFICANT),
            "tau_b_changes": self.changes(tested, SIGNIFICANT),
            "groups": self.groups() if agreement else {},
            "task_curves": self.fewer(),
            "significance": {
                p: significance.measure_significance(*one, level=level) for p, one in items.items()
            },
            "ranks": {p: aggregate.rank_intervals(*one, **ranked) for p, one in items.items()},
            "aggregate": {m.protocol: aggregate.aggregate_ranks(m) for m in matrices},
            "components": components,
            "family_components": self.families(components),
            "compute": self.compute(components),
            "perplexity": self.perplexity(),
            "perplexity_by_kind": self.perplexity_by_kind(),
            "alignment": self.alignment(agreement),
        }

    def agreement(
        self, matrices: Sequence[ScoreMatrix], method: str = "kendall"
    ) -> dict[Protocol, Agreement]:
        found: dict[Protocol, Agreement] = {}
        how: dict[str, Any] = {"method": method, "categories": self.background.categories}
        for matrix in (m for m in matrices if len(m.tasks) > 1):
            stored = {} if method == SIGNIFICANT else self.items.get(matrix.protocol, {})
            items = significance.outcome_tables(matrix, stored)
            found[matrix.protocol] = agreeing.measure_agreement(
                matrix, items=items, **how, **self.how
            )
        return found

    def changes(self, matrices: Sequence[ScoreMatrix], method: str = "kendall") -> Changes:
        return {
            (before.protocol, after.protocol): agreeing.compare_agreement(
                before, after, method=method, **self.how
            )
            for before, after in itertools.combinations(matrices, 2)
            if len(set(before.tasks) & set(after.tasks)) > 1
            and len(set(before.models) & set(after.models)) > 1
        }

    def groups(self) -> dict[str, grouped.GroupAgreement]:
        """Agreement among models of one size, family or kind, and among tasks with large and small tests."""
        known, found = self.background, {}
        sizes = grouped.name_size_bins(known.billions)
        orders: dict[str, tuple[dict[str, str], list[str] | None]] = {
            "size in billions": (sizes, grouped.sort_size_bins(sizes.values())),
            "family": (known.families, None),
            "kind": (known.kinds, None),
        }
        for by, (groups, order) in orders.items():
            one = grouped.agreement_by_models(self.matrices, groups, by=by, order=order, **self.how)
            if len(one.groups) > 2:
                found[by] = one
        tests = significance.estimate_test_sizes(self.matrices[0])
        sets = {
            f"over {LARGE_TEST:,} items": [t for t, n in tests.items() if n > LARGE_TEST],
            f"up to {LARGE_TEST:,} items": [t for t, n in tests.items() if n <= LARGE_TEST],
        }
        if 1 < len(next(iter(sets.values()))) < len(self.matrices[0].tasks):
            found["test size"] = grouped.agreement_by_tasks(
                self.matrices, sets, by="test set size", **self.how
            )
        return found

    def fewer(self) -> dict[Protocol, TaskCurve]:
        """How few tasks suffice, where enough models have all of them."""
        found, known, rng = {}, self.background.lineages, np.random.default_rng(self.options.seed)
        for whole in filter(
            aggregate.has_enough_for_curve, (matrix.complete() for matrix in self.matrices)
        ):
            some = np.sort(
                rng.permutation(len(whole.models))[:MANY_MODELS]
            )  # of many models, some tell
            part = whole.select(models=some)
            found[whole.protocol] = aggregate.measure_task_curve(
                part, lineages=known, seed=self.options.seed
            )
        return found

    def components(self) -> dict[Protocol, pca.Components]:
        gaps = self.options.gaps
        several = [
            m for m in self.matrices if len(m.tasks) > 1 and pca.remove_gaps(m, gaps).shape[0] > 2
        ]
        return {m.protocol: pca.compute_components(m, gaps=gaps, **self.how) for m in several}

    def families(
        self, components: Mapping[Protocol, pca.Components]
    ) -> dict[Protocol, dict[str, pca.Components]]:
        """Components of each family by itself."""
        gaps, families, how = (
            self.options.gaps,
            self.background.families,
            self.how | {"units": MODELS},
        )
        found: dict[Protocol, dict[str, pca.Components]] = {}
        for matrix in (m for m in self.matrices if m.protocol in components):
            for family in sorted(set(families.values())):
                members = matrix.select(
                    models=[m for m in matrix.models if families.get(m) == family]
                )
                if pca.remove_gaps(members, gaps).shape[0] >= SMALLEST_GROUP:
                    one = pca.compute_components(members, group=family, gaps=gaps, **how)
                    found.setdefault(matrix.protocol, {})[family] = one
        return found

    def compute(
        self, components: Mapping[Protocol, pca.Components]
    ) -> dict[Protocol, pca.ComputeFit]:
        flops, families = self.background.flops, self.background.families
        known = {
            p: whole
            for p, whole in components.items()
            if len({*map(flops.get, whole.models)} - {None}) > 2
        }
        return {
            p: pca.fit_compute(whole, flops, families=families, **self.how)
            for p, whole in known.items()
        }

    def perplexity(self) -> dict[Protocol, grouped.PerplexityAgreement]:
        """Perplexity against tasks within each protocol."""
        texts = [(self.scores[m.protocol].corpora(), m) for m in self.matrices]
        return {
            m.protocol: grouped.compare_perplexity(bits, m, **self.how)
            for bits, m in texts
            if bits.tasks
        }

    def perplexity_by_kind(self) -> dict[str, grouped.PerplexityAgreement]:
        """Perplexity before tuning against tasks after it, for base and for instruct models (figure 5)."""
        tuned = next((m for m in self.matrices if m.protocol == TRAIN_BEFORE_TEST), None)
        bits = _texts(self.scores[DIRECT]) if DIRECT in self.scores else None
        if tuned is None or bits is None or not bits.tasks:
            return {}
        found = {}
        for kind in ("base", "instruct"):
            members = {
                m for m in tuned.models if self.background.kinds.get(m) == kind and m in bits.models
            }
            if len(members) > 2:
                found[kind] = grouped.compare_perplexity(
                    bits, tuned, models=members, group=kind, **self.how
                )
        return found

    def alignment(self, agreement: Mapping[Protocol, Agreement]) -> dict[Protocol, Alignment]:
        """Align the two tasks asked for, or those that agree least under the first protocol."""
        pair = self.options.align or _least_alike(self.matrices[0], agreement)
        if pair is None:
            return {}
        if self.options.align is not None:
            for matrix in self.matrices:
                matrix.select(tasks=pair)  # says which task there is not
        level, families = self.options.level, self.background.families
        having = [m for m in self.matrices if set(pair) <= set(m.tasks)]
        return {
            m.protocol: align_rankings(m, *pair, level=level, families=families) for m in having
        }


def _least_alike(
    matrix: ScoreMatrix, agreement: Mapping[Protocol, Agreement]
) -> tuple[str, str] | None:
    """Return the two tasks with standard errors that agree least."""
    if matrix.protocol not in agreement:
        return None
    known = np.isfinite(matrix.stderr).all(axis=0)
    tau = np.where(np.triu(np.outer(known, known), 1), agreement[matrix.protocol].matrix, np.nan)
    if not np.isfinite(tau).any():
        return None
    i, j = np.unravel_index(np.nanargmin(tau), tau.shape)
    return matrix.tasks[int(i)], matrix.tasks[int(j)]


def _flat(part: Mapping[Any, Any]) -> Iterator[tuple[str, Finding]]:
    """Yield findings of one kind, of each family apart where they are so."""
    for key, one in part.items():
        if isinstance(one, Finding):
            yield " ".join(key) if isinstance(key, tuple) else key, one
        else:
            yield from ((f"{key} {name}", finding) for name, finding in one.items())


def summarize_rankings(found: Rankings) -> Sequence[Table]:
    """Return how far the tasks agree and tell models apart under each protocol, and which tasks to distrust."""
    tables = [
        *_together(found),
        *(table for same in found.tuning.values() for table in same.tables()),
    ]
    if found.screening.flags:
        flags = [(flag.task, flag.reason, flag.evidence) for flag in found.screening.flags]
        tables.append(Table("Tasks to distrust", ("task", "reason", "evidence"), flags))
    return tables


def _together(found: Rankings) -> list[Table]:
    """Return the table of what the tasks say together; none where there is nothing to say."""
    protocols = list(found.overall)
    some = {
        p for p, ranking in found.overall.items() if len(ranking.models) >= ENOUGH_MODELS
    }  # fewer say nothing of it
    means: dict[str, dict[Protocol, tuple[Interval, str]]] = {
        "agreement between tasks (mean Kendall's τ)": {
            p: (a.interval, a.over) for p, a in found.agreement.items()
        },
        "variance on one component (PC1)": {
            p: (c.explained[0], c.over) for p, c in found.components.items()
        },
        "agreement of perplexity with tasks (mean τ)": {
            p: (t.mean, t.over) for p, t in found.perplexity.items()
        },
    }
    rows: list[Sequence[str | None]] = []
    drawn: dict[str, None] = {}
    for name, by_protocol in means.items():
        shown = {
            p: mean for p, mean in by_protocol.items() if p in some and np.isfinite(mean[0].value)
        }
        drawn |= dict.fromkeys(over for _, over in shown.values())
        if shown:
            rows.append(
                (
                    name,
                    *(
                        _span(shown[p][0], percent="PC1" in name) if p in shown else None
                        for p in protocols
                    ),
                )
            )
    if found.significance:
        told = {p: (sum(s.significant), sum(s.pairs)) for p, s in found.significance.items()}
        rows.append(
            (
                "pairs of models told apart on a task",
                *(_share(*told.get(p, (0, 0))) for p in protocols),
            )
        )
    note = (
        f"In brackets: 95 % intervals over {' or '.join(drawn)}. 1 is perfect agreement, 0 is none."
        if drawn
        else ""
    )
    title = "What the tasks say together"
    return [Table(title, ("", *(p.label for p in protocols)), rows, note)] if rows else []


def _span(interval: Interval, *, percent: bool) -> str:
    value, low, high = (
        f"{x:.0%}" if percent else f"{x:.2f}" for x in (interval.value, interval.low, interval.high)
    )
    return f"{value} ({low} to {high})" if np.isfinite(interval.low) else value


def _share(part: int, whole: int) -> str | None:
    return f"{part / whole:.0%}" if whole else None
