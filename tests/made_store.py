"""A small store made by hand: two protocols, items, lanes, a failure, and names that try to be HTML."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from potentia.store import CellRecord, LaneRecord, Store
from potentia.values.fine_tuning import EpochResult
from potentia.values.metric import Metric
from potentia.values.provenance import ModelProvenance, Provenance, TaskProvenance
from potentia.values.scores import ItemOutcome, Score
from potentia.values.selection import Selection
from potentia.values.splits import PlannedSplit, SplitOrigin, SplitOriginKind, SplitPlan

EVIL = "<img src=x onerror=alert(1)>"
DOCUMENT = "</script><script>alert(2)</script> which is it?"
MODELS = ("org/alpha-7b", "org/beta-7b", "org/gamma-1b", EVIL)
TASKS = ("arc_easy", "boolq", "piqa")
STUDY = "0123456789abcdef0123456789abcdef"
N = 60


def make_store(
    path: Path | str,
    *,
    models: tuple[str, ...] = MODELS,
    tasks: tuple[str, ...] = TASKS,
    seed: int = 0,
    untuned: frozenset[tuple[str, str]] = frozenset(),  # (model, task): not tuned yet
) -> Path:
    stream = np.random.default_rng(seed)
    spec = {
        "name": "made",
        "models": [
            {"name": m, "family": "greek" if m != EVIL else None, "parameters": 1e9 * (k + 1)}
            for k, m in enumerate(models)
        ],
        "tasks": list(tasks),
        "protocols": ["direct", "train_before_test"],
    }
    with Store.open(path) as store:
        store.studies.open("made", STUDY, spec)
        for k, model in enumerate(models):
            for j, task in enumerate(tasks):
                if model == EVIL and task == "piqa":
                    store.failures.record(STUDY, model, task, "direct", "it broke: <b>badly</b>")
                    store.events.append(
                        STUDY,
                        "failure",
                        {"row": model, "task": task, "protocol": "direct", "reason": "it broke"},
                    )
                    continue
                for protocol, lift in (("direct", 0.0), ("train_before_test", 0.2)):
                    if protocol != "direct" and (model, task) in untuned:
                        continue
                    skill = min(0.95, 0.3 + 0.1 * k + 0.03 * j + lift)
                    items = [_item(stream, d, bool(stream.random() < skill)) for d in range(N)]
                    _commit(store, model, task, protocol, items)
    return Path(path)


def tune(path: Path | str, model: str, task: str, *, right: int = 40) -> None:
    """Commit a cell that was not tuned yet, as a run would."""
    stream = np.random.default_rng(0)
    with Store.open(path) as store:
        _commit(
            store, model, task, "train_before_test", [_item(stream, d, d < right) for d in range(N)]
        )


def _item(stream: np.random.Generator, document: int, right: bool) -> ItemOutcome:
    choices = ["yes", "no", "<b>maybe</b>"]
    detail = {
        "prompt": f"{DOCUMENT} ({document})",
        "choices": choices,
        "logprobs": stream.normal(-3, 1, 3).tolist(),
    }
    return ItemOutcome(document, float(right), "yes" if right else "no", "yes", detail)


def _commit(store: Store, model: str, task: str, protocol: str, items: list[ItemOutcome]) -> None:
    value = float(np.mean([i.value for i in items]))
    score = Score(value, float(np.sqrt(value * (1 - value) / (N - 1))), N, Metric.of("acc"))
    key = hashlib.sha256(f"{model} {task} {protocol}".encode()).hexdigest()[:32]
    tuned = protocol == "train_before_test"
    tuning = {"rank": 8, "epochs": 2, "learning_rates": [1e-5], "race": False}
    split = PlannedSplit((SplitOrigin(SplitOriginKind.PUBLIC, "train"),), available=N, used=N)
    split_plan = SplitPlan(split, split, split, caps={}, seed=0, carve=0.2)
    provenance = Provenance(
        versions={"python": "3.11", "potentia": "0.1.0"},
        seed=0,
        model=ModelProvenance(source=model, fingerprint="f" * 32, dtype="float32", device="cpu"),
        task=TaskProvenance(fingerprint="e" * 64, splits=split_plan),
        tuning=tuning if tuned else None,
    )
    selection = (
        Selection(tuned=True, learning_rate=1e-5, epoch=2) if tuned else Selection(style="plain")
    )
    store.cells.commit(
        CellRecord(
            key=key,
            study=STUDY,
            model=model,
            task=task,
            protocol=protocol,
            scores={"acc": score},
            metric="acc",
            provenance=provenance,
            seconds=1.5,
            selection=selection,
            direct_value=value - 0.1 if tuned else None,
            gain=0.1 if tuned else None,
        ),
        items=items,
    )
    store.events.append(
        STUDY,
        "cell",
        {"row": model, "task": task, "protocol": protocol, "value": value, "stderr": score.stderr},
    )
    if tuned:
        curve = tuple(
            EpochResult(e, 2.0 - e / 2 if e else None, value - 0.1 + e / 20, 0.05) for e in range(3)
        )
        store.lanes.save(
            LaneRecord(
                f"lane-{key}",
                STUDY,
                model,
                task,
                1e-5,
                "plain",
                0,
                "done",
                key,
                curve,
                selected=True,
            )
        )
