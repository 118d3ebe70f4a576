"""What the demo shows: agreement and structure both ways, and both rankings beside the planted truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potentia import zoo
from potentia.analysis.rankings.aggregate import aggregate_ranks
from potentia.analysis.rankings.agreement import compare_agreement
from potentia.analysis.rankings.components import Components, find_components
from potentia.analysis.stats.kendall import kendall_matrix
from potentia.findings import Finding, Interval, Table
from potentia.scores import ScoreMatrix
from potentia.study import Study


@dataclass(frozen=True)
class DemoFinding(Finding):
    """The numbers of the demo; ``truth`` is each model's measured knowledge, which no benchmark form enters."""

    models: tuple[str, ...]
    tau: dict[str, float]  # mean pairwise Kendall's tau, per protocol
    tau_gain: Interval  # over models
    pc1: dict[str, Interval]
    truth: tuple[float, ...]
    truth_tau: dict[str, float]  # of the first component's ranking with the truth, per protocol
    ranks: dict[str, tuple[int, ...]]  # truth, direct, train_before_test

    def tables(self) -> Sequence[Table]:
        """Return the summary and the rank changes."""
        ways = ("direct", "train_before_test")
        summary = Table(
            title="What train-before-test changes",
            columns=("", "direct", "train-before-test", "change (95 %)"),
            rows=(
                (
                    "mean τ between tasks",
                    *(f"{self.tau[w]:.2f}" for w in ways),
                    f"{self.tau_gain.value:+.2f} ({self.tau_gain.low:.2f} to {self.tau_gain.high:.2f})",
                ),
                (
                    "first component",
                    *(f"{p.value:.0%} ({100 * p.low:.0f}–{100 * p.high:.0f})" for p in (self.pc1[w] for w in ways)),
                    "",
                ),
                ("τ with planted truth", *(f"{self.truth_tau[w]:.2f}" for w in ways), ""),
            ),
            note="τ: Kendall's. First component: its share of the variance. In brackets: 95 % over models.",
        )
        order = sorted(range(len(self.models)), key=lambda k: self.ranks["train_before_test"][k])
        ranking = Table(
            title="Ranks over all tasks (first component)",
            columns=("model", "train-before-test", "direct", "moved", "knows", "truth rank"),
            rows=tuple(
                (
                    self.models[k],
                    self.ranks["train_before_test"][k],
                    self.ranks["direct"][k],
                    _arrow(self.ranks["direct"][k] - self.ranks["train_before_test"][k]),
                    f"{self.truth[k]:.0%}",
                    self.ranks["truth"][k],
                )
                for k in order
            ),
            note="“knows”: the share of facts a model recalls in its corpus's own words; no benchmark form enters it.",
        )
        return (summary, ranking)


def demo_findings(study: Study) -> DemoFinding:
    """Compute the demo's findings from its store."""
    from potentia.store import Store

    with Store.open(study.store, readonly=True) as store:
        direct = _downstream(store.matrix("direct", study=study.name))
        tuned = _downstream(store.matrix("train_before_test", study=study.name))
    change = compare_agreement(direct, tuned)
    ranked = {str(m.protocol): _overall(m) for m in (direct, tuned)}
    models = tuple(sorted(set(ranked["direct"]) & set(ranked["train_before_test"])))
    truth = [zoo.model(name).knowledge for name in models]
    ranks = {way: tuple(_rank([worth[m] for m in models])) for way, worth in ranked.items()}
    return DemoFinding(
        models=models,
        tau={"direct": change.mean_before, "train_before_test": change.mean_after},
        tau_gain=change.difference["models"],
        pc1={m.protocol: _first(find_components(m)) for m in (direct, tuned)},
        truth=tuple(truth),
        truth_tau={way: _tau([worth[m] for m in models], truth) for way, worth in ranked.items()},
        ranks={"truth": tuple(_rank(truth)), **ranks},
    )


def _downstream(matrix: ScoreMatrix) -> ScoreMatrix:
    """Leave out the corpora, as the rankings and the report do: their agreement is a finding of its own."""
    return matrix.select(tasks=[t for t, up in zip(matrix.tasks, matrix.higher_is_better, strict=True) if up])


def _overall(matrix: ScoreMatrix) -> dict[str, float]:
    found = aggregate_ranks(matrix)
    column = found.methods.index("PC1")
    return {m: float(found.scores[k, column]) for k, m in enumerate(found.models)}


def _first(found: Components) -> Interval:
    return found.explained[0]


def _rank(values: Sequence[float]) -> list[int]:
    return [1 + sum(other > value for other in values) for value in values]


def _tau(one: Sequence[float], other: Sequence[float]) -> float:
    import numpy as np

    return float(kendall_matrix(np.column_stack([one, other]))[0, 1])


def _arrow(places: int) -> str:
    return f"▲ {places}" if places > 0 else f"▼ {-places}" if places < 0 else ""
