"""The built-in study: zoo models × zoo tasks, direct and train-before-test, on a CPU in minutes; what it shows."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np

from potentia import zoo
from potentia.analysis.rankings import Rankings, find_rankings
from potentia.analysis.stats import kendall_matrix
from potentia.errors import PotentiaError
from potentia.evidence import read
from potentia.study import Study, make_study
from potentia.values.findings import Finding, Interval, Table, ValuedText
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol


def zoo_tuning(
    learning_rates: Sequence[float] = (3e-3,), *, epochs: int = 5, alpha: int = 16
) -> dict[str, object]:
    """Return the tuning that suits zoo models: adapters on all layers, loss on the answer alone.

    Tiny models need larger steps than the paper's: rates, batch and epochs are fitted to them. The demo takes one rate
    for all, so that it ends soon. What that costs is in docs/zoo.md.
    """
    shape = {"rank": 8, "alpha": alpha, "dropout": 0.0, "targets": ["all-linear"]}
    return shape | {
        "epochs": epochs,
        "learning_rates": list(learning_rates),
        "batch": 8,
        "loss": "completion",
        "race": False,
    }


@dataclass(frozen=True)
class DemoSize:
    """How large a demo is: the sizes of its models (as their names carry them), its tasks and its data."""

    name: str
    model_sizes: tuple[str, ...]
    tasks: tuple[str, ...]
    caps: dict[str, int]
    tuning: dict[str, object]


FULL_DEMO = DemoSize(
    name="demo-full",
    model_sizes=("71k", "159k", "237k"),
    tasks=tuple(benchmark.name for benchmark in zoo.BENCHMARKS if not benchmark.control),
    caps={"train": 320, "validation": 100, "test": 400},
    tuning=zoo_tuning(epochs=4, alpha=32),
)
# What newcomers get: it shows as much as the full one, in a quarter of the time.
SMALL_DEMO = DemoSize(
    name="demo",
    model_sizes=("71k", "159k"),
    tasks=("ask", "record", "table", "beside", "fix", "claim"),
    caps={"train": 240, "validation": 80, "test": 300},
    tuning=zoo_tuning(epochs=3, alpha=32),
)


DEMO_NOTE = (
    "The models are toys, and the effect is planted: each family of these models saw some test forms in pretraining "
    "and not others. It shows the mechanism at work; it is no evidence about real models."
)


def model_spec(model: zoo.ZooModel, path: Path | None = None) -> dict[str, object]:
    """Return a model as a study names it."""
    settings: dict[str, object] = {
        "name": model.name,
        "path": str(path or f"models/{model.name}"),
        "kind": "instruct" if model.kind == "instruct" else "base",
        "family": model.family,
        "parameters": model.parameters,
        "tokens": model.tokens,
        "date": model.date,
    }
    if model.base_model:
        settings["base_model"] = model.base_model
    return settings


def _size_of(model: zoo.ZooModel) -> str:
    """Return the size that a model's name ends in, as ``71k``."""
    return model.name.rpartition("-")[2]


def demo_study(folder: Path, *, full: bool = False) -> Study:
    """Lay out the zoo's models and tasks below ``folder`` and return the study over them.

    The zoo's control task, which no model can do, is left out.
    """
    demo_size = FULL_DEMO if full else SMALL_DEMO
    models = [model for model in zoo.models("base") if _size_of(model) in demo_size.model_sizes]
    model_folders = zoo.write_model_folders(folder / "models", [model.name for model in models])
    task_files = zoo.write_task_files(folder / "tasks")
    task_specs = []
    for task_name in demo_size.tasks:
        task_specs.append({"name": task_name, "file": str(task_files[task_name])})
    return make_study(
        {
            "name": demo_size.name,
            "models": [model_spec(model, model_folders[model.name]) for model in models],
            "tasks": task_specs,
            "protocols": ["direct", "train_before_test"],
            "caps": demo_size.caps,
            "tuning": demo_size.tuning,
            "device": "cpu",
            "store": str(folder / "potentia.db"),
            "note": DEMO_NOTE,
        }
    )


COMPARED_PROTOCOLS = (DIRECT, TRAIN_BEFORE_TEST)


@dataclass(frozen=True)
class DemoFinding(Finding):
    """The numbers of the demo; ``knowledge`` is measured in the words of the corpus, which no benchmark uses."""

    models: tuple[str, ...]
    method: str  # that ranks over all tasks
    reason: str
    tau: dict[Protocol, float]  # mean pairwise Kendall's tau, per protocol
    tau_gain: Interval  # over families
    is_gain_open: bool  # whether another interval of it, or one without test noise, has zero in it
    pc1: dict[Protocol, Interval]
    knowledge: tuple[float, ...]  # share of facts that each model recalls
    knowledge_tau: dict[Protocol, float]  # of the overall ranking with the ranking by knowledge
    ranks: dict[str, tuple[int, ...]]  # by knowledge, direct, train_before_test

    def tables(self) -> Sequence[Table]:
        """Return the summary and the rank changes."""
        return (self._tabulate_summary(), self._tabulate_ranks())

    def _tabulate_summary(self) -> Table:
        tau_gain = self.tau_gain
        change = f"{tau_gain.value:+.2f} ({tau_gain.low:.2f} to {tau_gain.high:.2f})"
        note = (
            "τ: Kendall's τ between rankings, 1 where they agree. First component: the share of the variance "
            "that one number per model explains. In brackets: 95 % intervals over families."
        )
        if self.is_gain_open:
            change += ", open"
            note += (
                " Open: whether the tasks agree more, since not every interval of the change "
                "(over families, models, tasks and test noise) leaves zero out."
            )
        taus = [f"{self.tau[protocol]:.2f}" for protocol in COMPARED_PROTOCOLS]
        knowledge_taus = [f"{self.knowledge_tau[protocol]:.2f}" for protocol in COMPARED_PROTOCOLS]
        shares = [_format_share(self.pc1[protocol]) for protocol in COMPARED_PROTOCOLS]
        return Table(
            title="What the same fine-tuning changes",
            columns=("", DIRECT.label, TRAIN_BEFORE_TEST.label, "change (95 %)"),
            rows=(
                ("mean τ between tasks", *taus, change),
                ("first component", *shares, ""),
                ("τ with knowledge", *knowledge_taus, ""),
            ),
            note=note,
        )

    def _tabulate_ranks(self) -> Table:
        tuned_ranks = self.ranks["train_before_test"]
        direct_ranks = self.ranks["direct"]
        rows = []
        for position, model in enumerate(self.models):
            tuned_rank = tuned_ranks[position]
            direct_rank = direct_ranks[position]
            moved = _format_move(direct_rank - tuned_rank)
            knowledge = self.knowledge[position]
            knows = ValuedText(f"{100 * knowledge:.0f} %", value=knowledge)
            knowledge_rank = self.ranks["knowledge"][position]
            rows.append((model, tuned_rank, direct_rank, moved, knows, knowledge_rank))
        return Table(
            title=f"Ranks over all tasks (by {self.method})",
            columns=(
                "model",
                TRAIN_BEFORE_TEST.label,
                DIRECT.label,
                "moved",
                "knows",
                "rank by knowledge",
            ),
            rows=tuple(sorted(rows, key=itemgetter(1))),
            note=f"By {self.method}: {self.reason}. “knows”: the share of facts that a model recalls in the words "
            "of its corpus, which no benchmark uses.",
        )


def demo_findings(
    study: Study, rankings: Rankings | None = None, *, study_key: str | None = None
) -> DemoFinding:
    """Take the demo's numbers from the findings that the report and ``analyze rankings`` show."""
    if rankings is None:
        rankings = find_rankings(read(study.store, study=study_key or study.name))
    if COMPARED_PROTOCOLS not in rankings.changes:
        raise PotentiaError(
            "too many results failed: there is nothing to compare",
            where=study.store,
            hint=f"potentia status {shlex.quote(study.store)} says why; run the demo again to try them once more",
        )
    change = rankings.changes[COMPARED_PROTOCOLS]
    direct = rankings.overall[DIRECT]
    tuned = rankings.overall[TRAIN_BEFORE_TEST]
    models = tuple(sorted(set(direct.models) & set(tuned.models)))
    knowledge = [zoo.find_model(model_name).knowledge for model_name in models]
    ranks = {"knowledge": tuple(_rank_values(knowledge))}
    knowledge_tau = {}
    for protocol in COMPARED_PROTOCOLS:
        ranking = rankings.overall[protocol]
        scores = [float(ranking.scores[ranking.models.index(model)]) for model in models]
        tau_matrix = kendall_matrix(np.column_stack([scores, knowledge]))
        knowledge_tau[protocol] = float(tau_matrix[0, 1])
        ranks[str(protocol)] = tuple(_rank_values(scores))
    first_components = {}
    for protocol in COMPARED_PROTOCOLS:
        first_components[protocol] = rankings.components[protocol].explained[0]
    return DemoFinding(
        models=models,
        method=direct.method,
        reason=direct.reason,
        tau={DIRECT: change.mean_before, TRAIN_BEFORE_TEST: change.mean_after},
        tau_gain=change.interval,
        is_gain_open=change.direction == 0,
        pc1=first_components,
        knowledge=tuple(knowledge),
        knowledge_tau=knowledge_tau,
        ranks=ranks,
    )


def _rank_values(values: Sequence[float]) -> list[int]:
    """Return the rank of every value, 1 for the largest; equal values share a rank."""
    ranks = []
    for value in values:
        ranks.append(1 + sum(larger > value for larger in values))
    return ranks


def _format_share(share: Interval) -> str:
    text = f"{100 * share.value:.0f} %"
    if not math.isfinite(share.low):
        return text
    return f"{text} ({100 * share.low:.0f}–{100 * share.high:.0f})"


def _format_move(places: int) -> str:
    if places > 0:
        return f"▲ {places}"
    return f"▼ {-places}" if places < 0 else ""
