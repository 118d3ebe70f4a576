"""Consistency: whether a base model that scores better becomes a better instruct model.

Consistency is Kendall's tau between the scores of base models, by some method, and the scores of their instruct
versions by the method commonly used for these (BOSE, section 4.3). The models are a small sample of all models, so
the intervals resample the pairs, by family where families are known, as well as the items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from potentia.analysis.checkpoints import find_instruct_versions
from potentia.analysis.left_out import (
    NO_ENTRIES,
    describe_left_out,
    drop_names_in,
    format_notes,
)
from potentia.analysis.stats.bootstrap import (
    ResamplingUnits,
    add_score_noise,
    kendall_by_row,
    noise_interval,
)
from potentia.analysis.stats.correlation import nan_mean
from potentia.analysis.stats.relatives import ModelFamilies
from potentia.errors import InputError
from potentia.papers.base_models.ablation import Ablation, compare_methods
from potentia.papers.base_models.methods import (
    RESAMPLES,
    Improvement,
    MethodScores,
    improvement_tables,
    tau_charts,
)
from potentia.values.findings import Chart, Finding, Findings, Interval, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

MIN_PAIRS = 3  # that tau needs
SAME_METHOD = "same"  # the reference that scores instruct versions as their base models are scored
USUAL_REFERENCES = ("instruct", "instruct:0", "direct")  # the first that a benchmark has


@dataclass(frozen=True, eq=False)
class ConsistencyLink:
    """One benchmark: base models by one method against their instruct versions by the reference method."""

    task: str
    method: str
    reference: str
    pairs: tuple[tuple[str, str], ...]
    base: Floats
    instruct: Floats
    tau: Interval
    gain: float  # mean score of the instruct versions less that of the base models


@dataclass(frozen=True)
class Consistency(Finding):
    """Consistency of every benchmark and method over the pairs of base and instruct models."""

    baseline: str | None
    methods: tuple[str, ...]
    links: tuple[ConsistencyLink, ...]
    improvements: tuple[Improvement, ...]
    left_out: tuple[str, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return tau per benchmark and method, the mean per method, and the improvements (tables 2 and 3's layout)."""
        return (
            self._link_table(),
            self._method_table(),
            *improvement_tables("consistency", self.improvements, "pairs"),
        )

    def _link_table(self) -> Table:
        table_rows = []
        for link in self.links:
            names = (link.task, link.method, link.reference, len(link.pairs))
            table_rows.append((*names, link.tau, link.gain))
        name_columns = ("task", "base models by", "instruct models by", "pairs")
        note = (
            "gain: mean score of the instruct versions less that of the base models. Intervals resample the pairs, "
            "by family where it is known, and the scores where their standard errors are known."
            f"{format_notes(self.left_out)}"
        )
        return Table(
            "Consistency: Kendall's τ between base models and their instruct versions",
            (*name_columns, "τ", "low", "high", "gain"),
            table_rows,
            note,
        )

    def _method_table(self) -> Table:
        table_rows = []
        for method in self.methods:
            taus_of_method = [link.tau.value for link in self.links if link.method == method]
            table_rows.append(
                (method, np.isfinite(taus_of_method).sum(), float(nan_mean(taus_of_method)))
            )
        return Table("Mean consistency of each method", ("method", "tasks", "mean τ"), table_rows)

    def charts(self) -> Sequence[Chart]:
        """Return tau as a heat map, and base against instruct scores for each benchmark."""
        caption = (
            "Kendall's τ between base models and their instruct versions; 1 means the same order."
        )
        tau_by_task_and_method = {(link.task, link.method): link.tau.value for link in self.links}
        charts = tau_charts("consistency", caption, tau_by_task_and_method, self.improvements)
        for task in dict.fromkeys(link.task for link in self.links):
            charts.append(self._plot_task(task))
        return charts

    def _plot_task(self, task: str) -> Plot:
        points = []
        for link in self.links:
            if link.task == task:
                base_models = tuple(dict(link.pairs))
                points.append(Points(link.method, link.base, link.instruct, base_models))
        return Plot(
            f"consistency-{task}",
            f"{task}: base and instruct",
            "Each point is one pair. Points that rise from left to right are consistent.",
            points=tuple(points),
            x_label="base model's score",
            y_label="instruct version's score",
        )


@dataclass(frozen=True)
class ConsistencyFindings(Findings):
    """Whether better base models become better instruct models, and which method says it best."""

    consistency: Consistency
    ablation: Ablation | None = None  # where there is more than one method


def find_consistency(
    evidence: Evidence,
    pairs: Mapping[str, str] | None = None,
    *,
    instruct_by: str | None = None,
    baseline: str | None = None,
) -> ConsistencyFindings:
    """Compare base models with their instruct versions: the pairs given, else those that studies or facts tell.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        pairs: Base model → instruct version; else those that studies or facts tell.
        instruct_by: The method that scores the instruct versions, or ``same``.
        baseline: The method that every other is compared with.

    Example:
        >>> potentia.find_consistency("potentia.db", {"m-base": "m-instruct"}).to_frame()
    """
    if pairs is None:
        pairs = find_instruct_versions(evidence)
    families = ModelFamilies.of_evidence(evidence).family_of_model
    consistency = measure_consistency(
        evidence.final_scores, pairs, reference=instruct_by, baseline=baseline, families=families
    )
    try:
        ablation = compare_methods(evidence.final_scores, models=list(pairs), families=families)
    except InputError:  # no task was scored by two methods
        ablation = None
    return ConsistencyFindings(consistency, ablation)


def measure_consistency(
    scores: Mapping[Protocol, ScoreMatrix],
    pairs: Mapping[str, str],
    *,
    reference: str | None = None,
    baseline: str | None = None,
    families: Mapping[str, str] = NO_ENTRIES,
    draws: int = RESAMPLES,
) -> Consistency:
    """Compare base models with their instruct versions (``pairs``: base → instruct), per benchmark and method.

    ``reference`` is the method that scores the instruct versions; ``"same"`` takes each method on both sides. Without
    one it is ``instruct`` where the benchmark was scored so, else ``direct``, else the same method: the paper scores
    instruct models with their common prompt whatever the base models get. The links of a benchmark share their
    resampled pairs, so improvements over the ``baseline`` are paired. Pairs of one family, by base model, come and go
    together.
    """
    if len(pairs) < MIN_PAIRS:
        raise InputError(
            f"{len(pairs)} pairs of base and instruct models; tau needs three",
            hint="name more pairs",
        )
    method_scores = MethodScores.from_matrices(scores)
    methods = method_scores.methods_from_baseline(baseline)
    links: list[ConsistencyLink] = []
    improvements: list[Improvement] = []
    for task in method_scores.tasks:
        rng = np.random.default_rng(0)
        resampled_pairs = draw_pairs(list(pairs), families, draws, rng)
        drawn_links: dict[str, DrawnLink] = {}
        for method in methods:
            task_reference = _choose_reference(method_scores, task, method, reference)
            if task_reference is None:
                continue
            columns = ((task, method), (task, task_reference))
            drawn_link = _link_pairs(method_scores, columns, pairs, resampled_pairs, rng)
            if drawn_link is not None:
                drawn_links[method] = drawn_link
        links += [drawn_link.link for drawn_link in drawn_links.values()]
        improvements += _measure_improvements(drawn_links, baseline)
    if not links:
        raise InputError(
            "no benchmark has scores of three or more base models and their instruct versions",
            hint="score both sides of each pair, or name the pairs in a CSV file with the columns base and instruct",
        )
    link_methods = {link.method for link in links}
    return Consistency(
        baseline=baseline,
        methods=tuple(sorted(link_methods, key=methods.index)),
        links=tuple(links),
        improvements=tuple(improvements),
        left_out=_explain_left_out(links, pairs, method_scores),
    )


def _explain_left_out(
    links: Sequence[ConsistencyLink], pairs: Mapping[str, str], method_scores: MethodScores
) -> tuple[str, ...]:
    linked_models: set[str] = set()
    for link in links:
        for pair in link.pairs:
            linked_models.update(pair)
    paired_models = {*pairs, *pairs.values()}
    reasons = {
        "not scored on both sides of the pair": drop_names_in(pairs, linked_models),
        "in no pair of base and instruct": drop_names_in(method_scores.models, paired_models),
    }
    return describe_left_out(reasons)


def _choose_reference(
    method_scores: MethodScores, task: str, method: str, reference: str | None
) -> str | None:
    """Return the method that scores the instruct versions, where the benchmark has it and the method itself."""
    if (task, method) not in method_scores.columns:
        return None
    candidates: tuple[str, ...]
    if reference is None:
        candidates = (*USUAL_REFERENCES, method)
    elif reference == SAME_METHOD:
        candidates = (method,)
    else:
        candidates = (reference,)
    for candidate in candidates:
        if candidate and (task, candidate) in method_scores.columns:
            return candidate
    return None


@dataclass(frozen=True, eq=False)
class DrawnLink:
    """A link and its tau in every resample of the pairs."""

    link: ConsistencyLink
    tau_draws: Floats


def _link_pairs(
    method_scores: MethodScores,
    columns: tuple[tuple[str, str], tuple[str, str]],  # of base models, of instruct versions
    pairs: Mapping[str, str],
    resampled_pairs: npt.NDArray[np.intp],  # (draws, most pairs); −1 for none
    rng: Generator,
) -> DrawnLink | None:
    """Compare both sides of the pairs on one benchmark; a pair without both scores counts for nothing."""
    base_column, instruct_column = columns
    base_scores, base_stderr = method_scores.scores_of_models(base_column, pairs)
    instruct_scores, instruct_stderr = method_scores.scores_of_models(
        instruct_column, pairs.values()
    )
    is_scored = np.isfinite(base_scores) & np.isfinite(instruct_scores)
    if is_scored.sum() < MIN_PAIRS:
        return None
    base_draws = add_score_noise(base_scores, base_stderr, len(resampled_pairs), rng)
    instruct_draws = add_score_noise(instruct_scores, instruct_stderr, len(resampled_pairs), rng)
    tau_draws = kendall_by_row(
        _take_pairs(base_draws, resampled_pairs), _take_pairs(instruct_draws, resampled_pairs)
    )
    base_scores = base_scores[is_scored]
    instruct_scores = instruct_scores[is_scored]
    tau = float(kendall_by_row(base_scores, instruct_scores))
    task, method = base_column
    link = ConsistencyLink(
        task=task,
        method=method,
        reference=instruct_column[1],
        pairs=tuple(compress(pairs.items(), is_scored)),
        base=base_scores,
        instruct=instruct_scores,
        tau=noise_interval(tau, tau_draws, bounds=(-1.0, 1.0)),
        gain=float(instruct_scores.mean() - base_scores.mean()),
    )
    return DrawnLink(link, tau_draws)


def draw_pairs(
    base_models: Sequence[str], families: Mapping[str, str], draws: int, rng: Generator
) -> npt.NDArray[np.intp]:
    """Draw pairs with replacement, by the families of their base models: (draws, most pairs) positions, −1 for none."""
    units = ResamplingUnits("families", families)
    labels = np.array(units.label_models(base_models))
    if units.drawn_unit(base_models) != units.name:
        labels = np.array(base_models)
    members = [np.flatnonzero(labels == label) for label in dict.fromkeys(labels.tolist())]
    drawn = []
    for _ in range(draws):
        drawn_units = rng.integers(len(members), size=len(members))
        drawn.append(np.concatenate([members[unit] for unit in drawn_units]))
    positions = np.full((draws, max(map(len, drawn))), -1, dtype=np.intp)
    for row, drawn_pairs in enumerate(drawn):
        positions[row, : len(drawn_pairs)] = drawn_pairs
    return positions


def _take_pairs(scores: Floats, positions: npt.NDArray[np.intp]) -> Floats:
    """Return the scores of drawn pairs, NaN where there is none."""
    taken = np.take_along_axis(scores, np.maximum(positions, 0), 1)
    return np.where(positions >= 0, taken, np.nan)


def _measure_improvements(
    drawn_links: Mapping[str, DrawnLink], baseline: str | None
) -> list[Improvement]:
    """Compare every method of a benchmark with the baseline, over the same pairs."""
    if baseline is None or baseline not in drawn_links:
        return []
    origin = drawn_links[baseline]
    improvements = []
    for method, drawn in drawn_links.items():
        if method == baseline or drawn.link.pairs != origin.link.pairs:
            continue
        difference = noise_interval(
            drawn.link.tau.value - origin.link.tau.value,
            drawn.tau_draws - origin.tau_draws,
            bounds=(-2.0, 2.0),
        )
        improvements.append(
            Improvement(
                series="all pairs",
                task=drawn.link.task,
                method=method,
                baseline=baseline,
                difference=difference,
            )
        )
    return improvements
