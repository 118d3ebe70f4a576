"""The embedded study: zoo models × zoo tasks, direct and train-before-test, on a CPU in minutes; what it shows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from potentia import zoo
from potentia.analysis.rankings import Rankings, find_rankings
from potentia.analysis.stats import kendall_matrix
from potentia.errors import PotentiaError
from potentia.evidence import read
from potentia.study import Study, make_study
from potentia.values.findings import Finding, Interval, Table
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol


def recipe(
    learning_rates: Sequence[float] = (3e-3,), *, epochs: int = 5, alpha: int = 16
) -> dict[str, Any]:
    """Return the tuning that suits zoo models: adapters on all layers, loss on the answer alone.

    Tiny models need larger steps than the paper's: rates, batch and caps are fitted to them. The demo takes one rate
    for all, so that it ends in two minutes. What that costs is in docs/zoo.md.
    """
    shape = {"rank": 8, "alpha": alpha, "dropout": 0.0, "targets": ["all-linear"]}
    return shape | {
        "epochs": epochs,
        "learning_rates": list(learning_rates),
        "batch": 8,
        "race": False,
    }


WHOLE: dict[str, Any] = {
    "name": "demo",
    "sizes": ("71k", "159k", "237k"),
    "tasks": [benchmark.name for benchmark in zoo.BENCHMARKS if not benchmark.control],
    "caps": {"train": 320, "validation": 100, "test": 400},
    "tuning": recipe(epochs=4, alpha=32),
}
QUICK: dict[str, Any] = {
    "name": "demo-quick",
    "sizes": ("71k", "159k"),
    "tasks": ("ask", "record", "table", "beside", "fix", "claim"),
    "caps": {"train": 240, "validation": 80, "test": 300},
    "tuning": recipe(epochs=3, alpha=32),
}


def model_spec(model: zoo.ZooModel, path: Path | None = None) -> dict[str, Any]:
    """Return a model as a study names it."""
    facts = {name: getattr(model, name) for name in ("family", "parameters", "tokens", "date")}
    kind = "instruct" if model.kind == "instruct" else "base"
    spec = {"name": model.name, "path": str(path or f"models/{model.name}"), "kind": kind, **facts}
    return spec | ({"base_model": model.base_model} if model.base_model else {})


def demo_study(folder: Path, *, quick: bool = False) -> Study:
    """Lay out the zoo's models and tasks below ``folder`` and return the study over them.

    The zoo's control task, which no model can do, is left out.
    """
    asked = QUICK if quick else WHOLE
    chosen = [
        model for model in zoo.models("base") if model.name.rpartition("-")[2] in asked["sizes"]
    ]
    models = zoo.model_folders(folder / "models", [model.name for model in chosen])
    tasks = zoo.task_folder(folder / "tasks")
    return make_study(
        {
            "name": asked["name"],
            "models": [model_spec(model, models[model.name]) for model in chosen],
            "tasks": [{"name": name, "file": str(tasks[name])} for name in asked["tasks"]],
            "protocols": ["direct", "train_before_test"],
            "caps": asked["caps"],
            "tuning": asked["tuning"],
            "device": "cpu",
            "store": str(folder / "potentia.db"),
        }
    )


WAYS = (DIRECT, TRAIN_BEFORE_TEST)


@dataclass(frozen=True)
class DemoFinding(Finding):
    """The numbers of the demo; ``truth`` is each model's measured knowledge, which no benchmark form enters."""

    models: tuple[str, ...]
    method: str  # that ranks over all tasks
    reason: str
    tau: dict[Protocol, float]  # mean pairwise Kendall's tau, per protocol
    tau_gain: Interval  # over families
    pc1: dict[Protocol, Interval]
    truth: tuple[float, ...]
    truth_tau: dict[Protocol, float]  # of the overall ranking with the truth
    ranks: dict[str, tuple[int, ...]]  # truth, direct, train_before_test

    def tables(self) -> Sequence[Table]:
        """Return the summary and the rank changes."""
        gain = self.tau_gain
        shares = [
            f"{p.value:.0%} ({100 * p.low:.0f}–{100 * p.high:.0f})"
            for p in (self.pc1[w] for w in WAYS)
        ]
        change = f"{gain.value:+.2f} ({gain.low:.2f} to {gain.high:.2f})"
        summary = Table(
            title="What train-before-test changes",
            columns=("", "direct", "train-before-test", "change (95 %)"),
            rows=(
                ("mean τ between tasks", *(f"{self.tau[w]:.2f}" for w in WAYS), change),
                ("first component", *shares, ""),
                ("τ with planted truth", *(f"{self.truth_tau[w]:.2f}" for w in WAYS), ""),
            ),
            note="τ: Kendall's. First component: its share of the variance. In brackets: 95 % over families.",
        )
        tuned, direct, truth = (self.ranks[way] for way in ("train_before_test", "direct", "truth"))
        moved = [_arrow(before - after) for before, after in zip(direct, tuned, strict=True)]
        knows = [f"{share:.0%}" for share in self.truth]
        ranking = Table(
            title=f"Ranks over all tasks (by {self.method})",
            columns=("model", "train-before-test", "direct", "moved", "knows", "truth rank"),
            rows=tuple(
                sorted(
                    zip(self.models, tuned, direct, moved, knows, truth, strict=True),
                    key=itemgetter(1),
                )
            ),
            note=f"By {self.method}: {self.reason}. “knows”: the share of facts a model recalls in its corpus's own "
            "words; no benchmark form enters it.",
        )
        return (summary, ranking)


def demo_findings(study: Study, found: Rankings | None = None) -> DemoFinding:
    """Take the demo's numbers from the findings that the report and ``analyze rankings`` show."""
    found = found or find_rankings(read(study.store, study=study.name))
    if WAYS not in found.changes:
        raise PotentiaError(
            "too many cells failed: there is nothing to compare",
            where=study.store,
            hint=f"potentia status {shlex.quote(study.store)} says why; run the demo again to try them once more",
        )
    change = found.changes[WAYS]
    ranked = {way: found.overall[way] for way in WAYS}
    models = tuple(sorted(set(ranked[DIRECT].models) & set(ranked[TRAIN_BEFORE_TEST].models)))
    truth = [zoo.model(name).knowledge for name in models]
    worth = {way: [float(r.scores[r.models.index(m)]) for m in models] for way, r in ranked.items()}
    return DemoFinding(
        models=models,
        method=ranked[DIRECT].method,
        reason=ranked[DIRECT].reason,
        tau={DIRECT: change.mean_before, TRAIN_BEFORE_TEST: change.mean_after},
        tau_gain=change.interval,
        pc1={way: found.components[way].explained[0] for way in WAYS},
        truth=tuple(truth),
        truth_tau={
            way: float(kendall_matrix(np.column_stack([worth[way], truth]))[0, 1]) for way in WAYS
        },
        ranks={"truth": tuple(_rank(truth))} | {str(way): tuple(_rank(worth[way])) for way in WAYS},
    )


def _rank(values: Sequence[float]) -> list[int]:
    return [1 + sum(other > value for other in values) for value in values]


def _arrow(places: int) -> str:
    return f"▲ {places}" if places > 0 else f"▼ {-places}" if places < 0 else ""
