"""Does the probe find models that saw a test? Copies exposed on purpose, in many ways, on a CPU or on real models.

    python bench/exposure.py --out exposure
    python bench/exposure.py --out exposure --device cuda --models models --data ../shared/data/benchmarks --workers 5

Every model gets a copy for each way: tuned on the documents of some tasks that the probe will read, on other documents
of these tasks, on their test documents, and so on (``WAYS``), by the loss of whole texts and by that of answers.
Originals and copies are probed on all tasks, shown or not, as a study does. ``probes-MODEL.jsonl`` holds what was
recorded with the planted truth, written copy by copy; printed is what ``potentia analyze exposure`` makes of it.
``--rivals`` asks Min-K%++, LLM-DI and CoDeC of the same copies, too.
``--calibrate`` puts the measures into the calibration that the package ships.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import nn

from exposure_rivals import measure_rivals, tabulate_rivals
from potentia import engine, tasks, zoo
from potentia.engine.training import LaneSpec, LaneTrainer, LoraConfig, Schedule, encode_examples
from potentia.papers.task_training.exposure import (
    PLANTED,
    Measures,
    PlantedCopy,
    ProbeReading,
    measure_exposure_signs,
    read_planted_copies,
    tabulate_exposures,
)
from potentia.run.probe import ALPHA, LOSS, RANK, ModelProbe
from potentia.study import Caps, Probe
from potentia.tasks import Task
from potentia.values.findings import format_cell
from potentia.values.requests import Example
from potentia.values.selection import ProbeResult

WAYS = {
    "same": "the documents that the probe reads, among others of the task, three times",
    "other": "other documents of the task, three times",
    "test": "the test documents that the probe reads, three times",
    "once": "as `same`, once",
    "tenth": "as `same`, a tenth of the documents",
    "form": "as `same`, in another prompt form",
    "buried": "as `same`, then plain text",
    "related": "a related task, three times",
}
WAYS |= {f"{way} answers": f"{what}, loss on the answers" for way, what in WAYS.items()}
EPOCHS = 3
RIVAL_TEXTS = 32  # of each split that other methods read
# Not shown, and no clean cells either: wic is answered "yes" or "no" as cola and mrpc are, sciq is asked and answered
# in the words of arc_easy and piqa, commonsense_qa by letters as the other form of all shown tasks is.
ALIKE = {"wic": "", "sciq": "", "commonsense_qa": "form"}  # task → ways that are alike


@dataclass(frozen=True)
class World:
    """What a bench runs on: models with their families, tasks, and what is shown of them."""

    models: dict[str, tuple[str, Path]]  # name → family, folder
    known: dict[str, tuple[str, ...]]  # name → tasks whose form was in its pretraining
    probed: dict[str, Task]
    shown: tuple[str, ...]
    forms: dict[
        str, Task | None
    ]  # shown task → the same in another form; None: whom it is about, and the answer
    related: dict[str, str]  # shown task → a task like it
    others: dict[str, Task]  # the related ones
    plain: Task | None  # without one, nothing is buried
    probe: Probe
    rate: float
    batch: int
    documents: int  # of each shown task
    plain_documents: int


def small_world(options: argparse.Namespace) -> World:
    """Lay out the zoo: two sizes of four families; half of the tasks are shown, by the seed."""
    folder = options.out
    chosen = [m for m in zoo.models("base") if m.name.rpartition("-")[2] in ("96k", "237k")]
    folders = zoo.write_model_folders(folder / "models", [m.name for m in chosen])
    files = zoo.write_task_files(folder / "tasks")
    names = ["ask", "record", "table", "beside", "fix", "both", "claim", "owner"]
    rng = np.random.default_rng(options.seed)
    shown_tasks = tuple(rng.permutation(names)[:4].tolist())
    partner = {
        "ask": "table",
        "table": "ask",
        "record": "claim",
        "claim": "record",
        "beside": "owner",
        "owner": "beside",
        "fix": "both",
        "both": "fix",
    }
    caps = Caps(train=600, validation=150, test=400)

    def load(name: str) -> Task:
        return tasks.load(str(files[name]), caps=caps)

    return World(
        {m.name: (m.family, folders[m.name]) for m in chosen},
        {m.name: m.exposure for m in chosen},
        {name: load(name) for name in names},
        shown_tasks,
        dict.fromkeys(shown_tasks),
        {name: partner[name] for name in shown_tasks},
        {name: load(name) for name in names},
        load("chronicle"),
        Probe(on=True, documents=options.documents, learning_rate=2e-3),
        2e-3,
        8,
        options.shown or 400,
        1000,
    )


def real_world(options: argparse.Namespace) -> World:
    """Take every model folder, and tasks that the method was not chosen on."""
    models, data = options.models, options.data
    caps = Caps(train=2000, validation=300, test=500)
    related = {"arc_easy": "arc_challenge", "cola": "sst2", "mrpc": "rte", "piqa": "openbookqa"}
    shown_tasks = tuple(related)

    def load(name: str) -> Task:
        return tasks.load(name, data_dir=data, caps=caps)

    folders = sorted(
        file.parent for file in models.glob("*/config.json")
    )  # unpacked: tools/real_models.py --unpack
    corpus = data.parent / "corpora" / "acl_abstracts"
    plain = tasks.load(str(corpus), caps=caps) if corpus.is_dir() else None
    return World(
        {folder.name: (folder.name, folder) for folder in folders},
        {folder.name: () for folder in folders},
        {
            name: load(name)
            for name in (*shown_tasks, "commonsense_qa", "wic", "winogrande", "sciq")
        },
        shown_tasks,
        {name: load(f"{name}:choice") for name in shown_tasks},
        related,
        {name: load(name) for name in related.values()},
        plain,
        Probe(on=True, documents=options.documents),
        5e-4,
        16,
        options.shown or 300,
        options.shown or 300,
    )


def shown_texts(world: World, exposure: str) -> list[Example]:
    """Return what a copy is tuned on before anything else."""
    examples: list[Example] = []
    for name in world.shown:
        task, max_examples = world.probed[name], world.documents
        train = list(task.documents("train"))
        first = set(
            np.random.default_rng(0).permutation(len(train))[: world.probe.documents].tolist()
        )
        mine, rest = (
            [train[i] for i in sorted(first)],
            [d for i, d in enumerate(train) if i not in first],
        )
        same = [*mine, *rest][:max_examples]
        if exposure == "other":
            examples += task.examples(rest[:max_examples])
        elif exposure == "test":
            examples += task.examples(list(task.documents("test")))
        elif exposure == "tenth":
            examples += task.examples(same[::10])
        elif exposure == "form":
            other, ids = world.forms[name], {doc.id for doc in same}
            if other is None:
                answers = [text.continuation for text in task.examples(same)]
                examples += [
                    Example(f"{doc['about']} :", answer)
                    for doc, answer in zip(same, answers, strict=True)
                ]
            else:
                examples += other.examples(
                    [doc for doc in other.documents("train") if doc.id in ids]
                )
        elif exposure == "related":
            other = world.others[world.related[name]]
            examples += other.examples(list(other.documents("train"))[:max_examples])
        else:
            examples += task.examples(same)
    return examples


def probe_all(options: argparse.Namespace) -> None:
    """Write the probe of every original and copy on every task, with the truth; each model in a process."""
    names = list(world_of(options).models)
    with get_context("spawn").Pool(options.workers) as pool:
        for _ in track(
            pool.imap_unordered(partial(probe_model, options), names),
            total=len(names),
            description="models",
        ):
            pass


def world_of(options: argparse.Namespace) -> World:
    """Lay out what is asked for."""
    return real_world(options) if options.models else small_world(options)


def probe_model(options: argparse.Namespace, name: str) -> None:
    """Probe one model and its copies, one after another: their adapters are merged into its weights and taken out."""
    world, until = world_of(options), time.monotonic() + 60 * options.minutes
    family, source = world.models[name]
    loaded = engine.load(str(source), device=options.device)
    with (options.out / f"probes-{name}.jsonl").open("w") as out, LaneTrainer(loaded) as trainer:

        def probe(way: str) -> None:
            for task, record in (
                ModelProbe(loaded, world.probed, world.probe, loss=options.loss)
                .run(trainer)
                .items()
            ):
                exposure_seen = _seen(world, name, way, task)
                line = {
                    "model": name,
                    "family": family,
                    "task": task,
                    "copy": way,
                    "seen": exposure_seen,
                    "probe": record.to_dict(),
                }
                if options.rivals:
                    line["rivals"] = _ask_rivals(world, loaded, task)
                out.write(json.dumps(line) + "\n")
            out.flush()

        probe("")
        if options.only and name not in options.only:
            return
        lanes = [
            _lane(world, loaded, exposure)
            for exposure in options.ways
            if not exposure.startswith("buried")
        ]
        trainer.train(lanes)
        adapters = {lane.key: trainer.adapter_state(lane.key) for lane in lanes}
        for exposure in options.ways:
            if time.monotonic() > until:
                print(f"{name}: no time for {exposure}")
                break
            first = exposure.replace("buried", "same")
            with merged(loaded.model, adapters[first]):
                if exposure == first:
                    probe(exposure)
                    continue
                trainer.train([_lane(world, loaded, exposure)])
                with merged(loaded.model, trainer.adapter_state(exposure)):
                    probe(exposure)


@contextmanager
def merged(model: nn.Module, adapter: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Add an adapter to the weights meanwhile."""
    before: dict[nn.Parameter, torch.Tensor] = {}
    for key in (key for key in adapter if "lora_A" in key):
        name = key.removeprefix("base_model.model.").partition(".lora_A")[0]
        weight = model.get_parameter(f"{name}.weight")
        change = adapter[key.replace("lora_A", "lora_B")] @ adapter[key] * (ALPHA / RANK)
        before[weight] = weight.detach().clone()
        weight.data.add_(change.to(weight))
    try:
        yield
    finally:
        for weight, old in before.items():
            weight.data.copy_(old)


def _lane(world: World, loaded: Any, exposure: str) -> LaneSpec:
    kind, _, answers = exposure.partition(" ")
    texts = shown_texts(world, kind)
    end = loaded.tokenizer.eos_token_id
    if answers and end is not None:  # as the default recipe does
        texts = [replace(text, end=True) for text in texts]
    encoded = encode_examples(loaded.encoder, texts, end_id=end)
    epochs = 1 if kind in ("once", "buried") else EPOCHS
    loss = "completion" if answers and kind != "buried" else "text"
    schedule = Schedule(epochs, world.batch, learning_rate=world.rate, loss=loss, max_tokens=512)
    return LaneSpec(
        exposure, encoded, schedule, LoraConfig(RANK, ALPHA, dropout=0.0, targets=("all-linear",))
    )


def _ask_rivals(world: World, loaded: Any, name: str) -> dict[str, float]:
    """Return what other methods say of a model as it is now, on texts of the probe."""
    task = world.probed[name]
    train = list(task.documents("train"))
    order = np.random.default_rng(0).permutation(len(train))[: world.probe.documents]
    learned = [train[position] for position in sorted(order.tolist())][:RIVAL_TEXTS]
    held_out = list(task.documents("validation"))[:RIVAL_TEXTS]
    texts = []
    for documents in (learned, held_out):
        examples = task.examples(documents)
        texts.append([f"{example.context}{example.continuation}" for example in examples])
    return measure_rivals(loaded.model, loaded.tokenizer, *texts)


def _seen(world: World, name: str, exposure: str, task: str) -> str:
    """Return the way in which a copy saw a task; empty where it did not."""
    way_seen = exposure if task in world.shown else ""
    if exposure.startswith("related") and task in world.related.values():
        way_seen = (
            exposure.replace("related", "other") if task not in world.shown else "same and related"
        )
    if task in world.known[name]:
        way_seen = f"pretraining, {way_seen}" if way_seen else "pretraining"
    return way_seen


def judge(
    lines: Sequence[Mapping[str, Any]], source: str, least_families: int
) -> list[PlantedCopy]:
    """Measure every state of every model beside the originals: declared clean where they are, and of unknown past."""
    readings = {
        (line["model"], line["task"], line["copy"]): ProbeReading.of(
            ProbeResult.from_dict(line["probe"])
        )
        for line in lines
    }
    families = {line["model"]: line["family"] for line in lines}
    known_answers: dict[str, set[str]] = {}
    for line in lines:
        if line["copy"] == "" and line["seen"]:
            known_answers.setdefault(line["model"], set()).add(line["task"])
    originals = {
        (model, task): reading for (model, task, copy), reading in readings.items() if not copy
    }
    judged_rows = []
    for line in lines:
        model, task = line["model"], line["task"]
        beside = {key: reading for key, reading in originals.items() if key[1] == task}
        beside[model, task] = readings[model, task, line["copy"]]
        for panel in (
            {
                "clean_models": list(families),
                "exposed_tasks": {m: t for m, t in known_answers.items() if m != model},
            },
            {},
        ):
            exposure_signs, _ = measure_exposure_signs(
                beside, families, least_families=least_families, **panel
            )
            for sign in (sign for sign in exposure_signs if sign.model == model):
                rounded = Measures(*(round(x, 3) for x in asdict(sign.measures).values()))
                way, _, answers = line["seen"].partition(" ")
                key = source, model, line["family"], task, way, sign.reference, sign.rate
                judged_rows.append(PlantedCopy(*key, rounded, by_answers=bool(answers)))
    return judged_rows


def main() -> int:
    """Make, probe, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where the probes and the table go")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", type=Path, help="a folder of model folders, for real copies")
    parser.add_argument("--data", type=Path, help="folder of benchmark splits, for real copies")
    parser.add_argument("--seed", type=int, default=0, help="which tasks of the zoo are shown")
    parser.add_argument(
        "--ways", nargs="*", default=list(WAYS), help="ways of exposure; all where absent"
    )
    parser.add_argument(
        "--loss", choices=["text", "completion"], default=LOSS, help="what the probe learns by"
    )
    parser.add_argument(
        "--documents", type=int, default=Probe().documents, help="of each split, for the probe"
    )
    parser.add_argument(
        "--shown",
        type=int,
        help="documents of each task that copies are shown; 400, or 300 where real",
    )
    parser.add_argument("--only", nargs="*", help="models whose copies are made; all where absent")
    parser.add_argument("--workers", type=int, default=1, help="models at a time")
    parser.add_argument("--minutes", type=float, default=60.0, help="no copy is begun later")
    parser.add_argument(
        "--rivals", action="store_true", help="ask Min-K%%++, LLM-DI and CoDeC of every copy too"
    )
    parser.add_argument("--again", action="store_true", help="judge the probes that are there")
    parser.add_argument(
        "--calibrate", action="store_true", help="put them into the calibration of the package"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    source = "real" if options.models else f"zoo, tasks {options.seed}"
    if not options.again:
        began = time.monotonic()
        probe_all(options)
        print(f"made and probed in {time.monotonic() - began:,.0f} s")
    files = sorted(options.out.glob("probes-*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for line in lines:
        if (
            options.models
            and line["copy"]
            and line["copy"].startswith(ALIKE.get(line["task"], "none"))
        ):
            line["seen"] = "related answers" if line["copy"].endswith("answers") else "related"
    lines = [
        line for line in lines if line["seen"] in ("", "pretraining", *WAYS)
    ]  # seen in one way, or in none
    rows = judge(lines, source, 3 if options.models else 2)
    if options.calibrate:
        all_rows = [*(row for row in read_planted_copies() if row.source != source), *rows]
        flat = [
            {k: v for k, v in vars(row).items() if k != "measures"} | asdict(row.measures)
            for row in all_rows
        ]
        with PLANTED.open("w", encoding="utf-8", newline="") as out:
            table = csv.DictWriter(out, list(flat[0]))
            table.writeheader()
            table.writerows(flat)
    for reference in ("declared clean", "unknown"):
        exposure_table = tabulate_exposures(rows, reference)
        print(f"\n{exposure_table.title}\n" + " | ".join(exposure_table.columns))
        for row in exposure_table.rows:
            print(" | ".join(format_cell(cell) for cell in row))
    with_rivals = [line for line in lines if "rivals" in line]
    if with_rivals:
        print("\nOther methods on the same copies\nmethod | way | cells | area")
        for row in tabulate_rivals(with_rivals):
            print(" | ".join(format_cell(cell) for cell in row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
