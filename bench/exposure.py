"""Does the probe find models that saw a test? Copies exposed on purpose, in eight ways, on a CPU or on real models.

    python bench/exposure.py --out exposure
    python bench/exposure.py --out exposure --device cuda --models models --data ../shared/data/benchmarks --workers 5

Every model gets a copy for each way, tuned by adapters that are merged: on the documents of some tasks that the probe
will read, on other documents of these tasks, on their test documents, and so on (``WAYS``). Originals and copies are
probed on all tasks, shown or not, as a study does. ``probes.jsonl`` holds what was recorded with the planted truth;
printed is what ``potentia analyze exposure`` makes of it. The zoo takes some five minutes of one core, five real models
on an H200 as long. ``--calibrate`` puts the measures into the calibration that the package ships.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from potentia import engine, tasks, zoo
from potentia.analysis.test_task.seen import (
    CLEAN_FAMILIES,
    PLANTED,
    Planted,
    Reading,
    measure_signs,
    planted,
    ways_table,
)
from potentia.engine.tune import LaneSpec, LaneTrainer, LoraConfig, Schedule, encode_examples
from potentia.run.probe import Probing
from potentia.study import Caps, Probe
from potentia.tasks import Task
from potentia.values.findings import written
from potentia.values.requests import Example

WAYS = {
    "same": "the documents that the probe reads, among others of the task, three times",
    "other": "other documents of the task, three times",
    "test": "the test documents that the probe reads, three times",
    "once": "as `same`, once",
    "tenth": "as `same`, a tenth of the documents",
    "form": "as `same`, in another prompt form",
    "related": "a related task, three times",
    "buried": "as `same`, then plain text",
}
EPOCHS = 3


@dataclass(frozen=True)
class World:
    """What a bench runs on: models with their families, tasks, and what is shown of them."""

    models: dict[str, tuple[str, Path]]  # name → family, folder
    known: dict[str, tuple[str, ...]]  # name → tasks whose form was in its pretraining
    probed: dict[str, Task]
    shown: tuple[str, ...]
    forms: dict[str, Task | None]  # shown task → the same in another form; None: whom it is about, and the answer
    related: dict[str, str]  # shown task → a task like it
    others: dict[str, Task]  # the related ones
    plain: Task | None  # without one, nothing is buried
    probe: Probe
    rate: float
    batch: int
    documents: int  # of each shown task
    plain_documents: int


def small_world(folder: Path, seed: int) -> World:
    """Lay out the zoo: two sizes of four families; two thirds of the tasks are shown, by the seed."""
    chosen = [m for m in zoo.models("base") if m.name.rpartition("-")[2] in ("96k", "237k")]
    folders = zoo.model_folders(folder / "models", [m.name for m in chosen])
    files = zoo.task_folder(folder / "tasks")
    names = ["ask", "record", "table", "beside", "fix", "both", "claim", "owner"]
    rng = np.random.default_rng(seed)
    shown = tuple(rng.permutation(names)[:4].tolist())
    partner = {"ask": "table", "table": "ask", "record": "claim", "claim": "record", "beside": "owner",
               "owner": "beside", "fix": "both", "both": "fix"}  # fmt: skip
    caps = Caps(train=600, validation=150, test=400)

    def load(name: str) -> Task:
        return tasks.load(str(files[name]), caps=caps)

    return World(
        {m.name: (m.family, folders[m.name]) for m in chosen},
        {m.name: m.exposure for m in chosen},
        {name: load(name) for name in names},
        shown,
        dict.fromkeys(shown),
        {name: partner[name] for name in shown},
        {name: load(name) for name in names},
        load("chronicle"),
        Probe(on=True, documents=128, learning_rate=2e-3),
        2e-3,
        8,
        400,
        1000,
    )


def real_world(models: Path, data: Path) -> World:
    """Take every model folder, and tasks that the method was not chosen on."""
    caps = Caps(train=2000, validation=300, test=500)
    related = {"arc_easy": "arc_challenge", "cola": "sst2", "mrpc": "rte", "piqa": "openbookqa"}
    shown = tuple(related)

    def load(name: str) -> Task:
        return tasks.load(name, data_dir=data, caps=caps)

    folders = sorted(file.parent for file in models.glob("*/config.json"))  # unpacked: tools/real_models.py --unpack
    corpus = data.parent / "corpora" / "acl_abstracts"
    plain = tasks.load(str(corpus), caps=caps) if corpus.is_dir() else None
    return World(
        {folder.name: (folder.name, folder) for folder in folders},
        {folder.name: () for folder in folders},
        {name: load(name) for name in (*shown, "commonsense_qa", "wic", "winogrande", "sciq")},
        shown,
        {name: load(f"{name}:choice") for name in shown},
        related,
        {name: load(name) for name in related.values()},
        plain,
        Probe(on=True),
        5e-4,
        16,
        300,
        300,
    )  # fmt: skip


def shown_texts(world: World, way: str) -> list[Example]:
    """Return what a copy is tuned on before anything else."""
    found: list[Example] = []
    for name in world.shown:
        task, most = world.probed[name], world.documents
        train = list(task.documents("train"))
        first = set(np.random.default_rng(0).permutation(len(train))[: world.probe.documents].tolist())
        mine, rest = [train[i] for i in sorted(first)], [d for i, d in enumerate(train) if i not in first]
        same = [*mine, *rest][:most]
        if way == "other":
            found += task.examples(rest[:most])
        elif way == "test":
            found += task.examples(list(task.documents("test")))
        elif way == "tenth":
            found += task.examples(same[::10])
        elif way == "form":
            other, ids = world.forms[name], {doc.id for doc in same}
            if other is None:
                answers = [text.continuation for text in task.examples(same)]
                found += [Example("", f"{doc['about']} :{answer}") for doc, answer in zip(same, answers, strict=True)]
            else:
                found += other.examples([doc for doc in other.documents("train") if doc.id in ids])
        elif way == "related":
            other = world.others[world.related[name]]
            found += other.examples(list(other.documents("train"))[:most])
        else:
            found += task.examples(same)
    return found


def make_copies(world: World, source: Path, folder: Path, device: str) -> dict[str, tuple[str, ...]]:
    """Tune the adapters of all ways at once; returns the adapter folders of each."""
    loaded = engine.load(str(source), device=device)
    made: dict[str, tuple[str, ...]] = {}
    try:
        with LaneTrainer(loaded) as trainer:
            lanes = []
            for way in (way for way in WAYS if way != "buried"):
                texts = shown_texts(world, way)
                lanes.append(_lane(world, loaded, way, texts, 1 if way == "once" else EPOCHS))
            trainer.train(lanes)
            for way in (lane.key for lane in lanes):
                trainer.save_peft(way, folder / way)
                made[way] = (str(folder / way),)
    finally:
        loaded.close()
    if world.plain is None:
        return made
    copy = engine.load(str(source), device=device, adapters=made["same"])
    try:
        with LaneTrainer(copy) as trainer:
            texts = world.plain.examples(list(world.plain.documents("train"))[: world.plain_documents])
            trainer.train([_lane(world, copy, "buried", texts, 1)])
            trainer.save_peft("buried", folder / "buried")
            made["buried"] = (*made["same"], str(folder / "buried"))
    finally:
        copy.close()
    return made


def _lane(world: World, loaded: Any, key: str, texts: list[Example], epochs: int) -> LaneSpec:
    encoded = encode_examples(loaded.encoder, texts, end_id=loaded.tokenizer.eos_token_id)
    schedule = Schedule(epochs, world.batch, world.rate, max_tokens=512)
    return LaneSpec(key, encoded, schedule, LoraConfig(16, 32, 0.0, ("all-linear",)))


def probe_all(given: argparse.Namespace, file: Path) -> None:
    """Write the probe of every original and copy on every task, with the truth; each model in a process."""
    names = list(world_of(given).models)
    with get_context("spawn").Pool(given.workers) as pool, file.open("w") as out:
        made = pool.imap_unordered(partial(probe_model, given), names)
        for lines in track(made, total=len(names), description="models"):
            out.writelines(json.dumps(line) + "\n" for line in lines)
            out.flush()


def world_of(given: argparse.Namespace) -> World:
    """Lay out what is asked for."""
    return real_world(given.models, given.data) if given.models else small_world(given.out, given.seed)


def probe_model(given: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """Probe one model and its copies."""
    world, device = world_of(given), given.device
    family, source = world.models[name]
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        copies: dict[str, tuple[str, ...]] = {"": ()}
        if not given.only or name in given.only:
            copies |= make_copies(world, source, Path(folder), device)
        for way, adapters in copies.items():
            loaded = engine.load(str(source), device=device, adapters=adapters)
            try:
                made = Probing(loaded, world.probed, world.probe).run()
            finally:
                loaded.close()
            for task, record in made.items():
                seen = _seen(world, name, way, task)
                lines.append(
                    {"model": name, "family": family, "task": task, "copy": way, "seen": seen, "probe": record}
                )
    return lines


def _seen(world: World, name: str, way: str, task: str) -> str:
    """Return the way in which a copy saw a task; empty where it did not."""
    seen = way if task in world.shown else ""
    if way == "related" and task in world.related.values():
        seen = "other" if task not in world.shown else "same and related"
    if task in world.known[name]:
        seen = f"pretraining, {seen}" if seen else "pretraining"
    return seen


def judge(lines: Sequence[Mapping[str, Any]], source: str, least_families: int) -> list[Planted]:
    """Measure every state of every model beside the originals: declared clean where they are, and of unknown past."""
    readings = {(one["model"], one["task"], one["copy"]): Reading.of(one["probe"]) for one in lines}
    families = {one["model"]: one["family"] for one in lines}
    known: dict[str, set[str]] = {}
    for one in lines:
        if one["copy"] == "" and one["seen"]:
            known.setdefault(one["model"], set()).add(one["task"])
    originals = {(model, task): reading for (model, task, copy), reading in readings.items() if not copy}
    found = []
    for one in lines:
        model, task = one["model"], one["task"]
        beside = {place: reading for place, reading in originals.items() if place[1] == task}
        beside[model, task] = readings[model, task, one["copy"]]
        for panel in ({"clean": list(families), "exposed": {m: t for m, t in known.items() if m != model}}, {}):
            signs, _ = measure_signs(beside, families, least_families=least_families, calibrate=False, **panel)
            for sign in (sign for sign in signs if sign.model == model):
                measures = (sign.left, sign.left_validation, sign.train_documents, sign.test_documents)
                rounded = (round(x, 4) for x in measures)
                found.append(Planted(source, model, one["family"], task, one["seen"], sign.reference, *rounded))
    return found


def main() -> int:
    """Make, probe, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the probes and the table go")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", type=Path, help="a folder of model folders, for real copies")
    parser.add_argument("--data", type=Path, help="folder of benchmark splits, for real copies")
    parser.add_argument("--seed", type=int, default=0, help="which tasks of the zoo are shown")
    parser.add_argument("--only", nargs="*", help="models whose copies are made; all where absent")
    parser.add_argument("--workers", type=int, default=1, help="models at a time")
    parser.add_argument("--again", action="store_true", help="judge the probes that are there")
    parser.add_argument("--calibrate", action="store_true", help="put them into the calibration of the package")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file, source = given.out / "probes.jsonl", "real" if given.models else f"zoo, tasks {given.seed}"
    if not given.again:
        began = time.monotonic()
        probe_all(given, file)
        print(f"made and probed in {time.monotonic() - began:,.0f} s")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [line for line in lines if line["seen"] in ("", "pretraining", *WAYS)]  # seen in one way, or in none
    rows = judge(lines, source, CLEAN_FAMILIES if given.models else 2)
    if given.calibrate:
        every = [*(row for row in planted() if row.source != source), *rows]
        with PLANTED.open("w", encoding="utf-8", newline="") as out:
            table = csv.DictWriter(out, [field.name for field in fields(Planted)])
            table.writeheader()
            table.writerows(asdict(row) for row in every)
    for reference in ("declared clean", "unknown"):
        made = ways_table(rows, reference)
        print(f"\n{made.title}\n" + " | ".join(made.columns))
        for row in made.rows:
            print(" | ".join(written(cell) for cell in row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
