"""How long commands take on stores of 2,000 to 1,000,000 cells, on large plans and on many rows of one's own.

    python bench/scale.py                       # the small stores and 300 models × 40 tasks
    python bench/scale.py --sizes 200k          # minutes, and a gigabyte of disk; 1m takes five times as much
    python bench/scale.py --cells 200           # what a trivial cell costs beside its scoring: plan, commit, events
    python bench/scale.py --plan 10000x100      # a plan of 10,000 models × 100 tasks, whose files are on disk
    python bench/scale.py --rows 100000         # a task of 100,000 rows of one's own: plan, and a run with fine-tuning

Each command runs in a process of its own. Printed: seconds on the clock, seconds of processor time, and the most
memory; a limit is held against the processor time. A busy machine stretches the clock many times, and processor time
by a third or so (shared caches, two threads a core): the load average stands beside every size. A store that
``--folder`` holds from an earlier run is taken as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
POTENTIA = [
    sys.executable,
    "-c",
    "from potentia.cli.app import run_command_line; run_command_line()",
]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
SIZES = {
    "2k": (50, 20),
    "20k": (250, 40),
    "300x40": (300, 40),
    "200k": (1000, 100),
    "1m": (2500, 200),
}
STUDY = "feedfacefeedfacefeedfacefeedface"
# Seconds of processor time, and MB of memory or of the file, by size and step.
LIMITS = {
    ("20k", "status"): (1, None),
    ("300x40", "status"): (1, None),
    ("200k", "status"): (1, None),
    ("300x40", "rankings"): (20, None),
    ("300x40", "report"): (30, 15),
    ("200k", "rankings"): (600, 2_000),
    ("200k", "board, first page"): (2, None),
}
# Seconds of processor time and MB of memory.
PLAN_LIMITS = (600, 4_000)
ROWS_PLAN_LIMITS = (60, 2_000)
ROWS_RUN_LIMITS = (900, 3_000)
CELL_MS, FOUND_MS = (
    5,
    2,
)  # of processor time for a trivial cell beside its scoring, and for finding it again


def make_store(location: Path, models: int, tasks: int, *, lanes: int = 3) -> None:
    """Write a study of two protocols, its scores of one ability and some noise, with lanes and their curves."""
    from potentia.store import CellRecord, LaneRecord, Store, schema
    from potentia.values.fine_tuning import EpochResult
    from potentia.values.metric import Metric
    from potentia.values.provenance import Provenance
    from potentia.values.scores import Score
    from potentia.values.selection import Selection

    stream = np.random.default_rng(0)
    ability, ease = stream.normal(size=models), stream.normal(size=tasks)
    names = [f"family-{k % 20}/model-{k:04d}" for k in range(models)]
    spec = {
        "name": "scale",
        "models": [
            {"name": m, "family": m.split("/")[0], "parameters": 1e8 * (k + 1)}
            for k, m in enumerate(names)
        ],
        "tasks": [f"task_{j:03d}" for j in range(tasks)],
        "protocols": ["direct", "train_before_test"],
    }
    content = {
        "versions": {
            "torch": "2.11.0",
            "transformers": "5.22.0",
            "peft": "0.21.0",
            "lm-eval": "0.4.13",
        },
        "model": {"source": "m", "fingerprint": "f" * 32, "dtype": "float32", "device": "cpu"},
        "task": {"fingerprint": "e" * 64, "metric": "acc"},
        "seed": 0,
    }
    provenance = Provenance.from_dict(content)
    with Store.open(location) as store:
        store.studies.open("scale", STUDY, spec)
        for protocol, noise in (("direct", 1.0), ("train_before_test", 0.3)):
            raw = ability[:, None] + ease[None, :] + noise * stream.normal(size=(models, tasks))
            values = 0.25 + 0.7 / (1 + np.exp(-raw))
            cells, curves = [], []
            for k, model in enumerate(names):
                for j in range(tasks):
                    value, key = (
                        float(values[k, j]),
                        hashlib.sha256(f"{model} {j} {protocol}".encode()).hexdigest()[:32],
                    )
                    score = Score(
                        value, float(np.sqrt(value * (1 - value) / 1000)), 1000, Metric.of("acc")
                    )
                    selection = Selection(learning_rate=2e-5, epoch=3, style="plain")
                    cells.append(
                        CellRecord(
                            key,
                            STUDY,
                            model,
                            f"task_{j:03d}",
                            protocol,
                            {"acc": score},
                            "acc",
                            provenance,
                            seconds=1.5,
                            selection=selection,
                        )
                    )
                    if protocol == "train_before_test":
                        for n in range(lanes):
                            curve = tuple(
                                EpochResult(e, 2.0 - e / 5, value - 0.1 + e / 50, 0.01)
                                for e in range(6)
                            )
                            curves.append(
                                LaneRecord(
                                    f"lane-{n}-{key}",
                                    STUDY,
                                    model,
                                    f"task_{j:03d}",
                                    1e-5 * (n + 1),
                                    "plain",
                                    0,
                                    "done",
                                    key,
                                    curve,
                                    selected=n == 0,
                                )
                            )
            for start in range(0, len(cells), 5000):
                store.cells.commit_many(cells[start : start + 5000])
            with store.database.writing() as connection:  # one by one they would take an hour
                from dataclasses import asdict

                for start in range(0, len(curves), 5000):
                    part = curves[start : start + 5000]
                    rows = [
                        {k: v for k, v in asdict(lane).items() if k != "epochs"} for lane in part
                    ]
                    connection.execute(schema.lanes.insert(), rows)
                    points = [
                        {"lane": lane.key, **asdict(point)}
                        for lane in part
                        for point in lane.epochs
                    ]
                    connection.execute(schema.epochs.insert(), points)


def make_many_models(folder: Path, count: int) -> list[str]:
    """Write models that differ in one weight; return their folders. All other files are links to the first one's."""
    import tiny

    first = tiny.save_model(folder / "model-0", width=16)
    weights = bytearray((first / "model.safetensors").read_bytes())
    other_files = [file for file in first.iterdir() if file.name != "model.safetensors"]
    for number in range(1, count):
        model = folder / f"model-{number}"
        model.mkdir()
        for file in other_files:
            os.link(file, model / file.name)
        weights[-4:] = np.float32(number).tobytes()
        (model / "model.safetensors").write_bytes(weights)
    return [str(folder / f"model-{number}") for number in range(count)]


def measure_plan(models: int, tasks: int, folder: Path) -> bool:
    """Print how long the plan of a large study takes whose models and tasks are files; return whether limits hold."""
    import yaml

    import tiny

    paths = make_many_models(folder, models)
    files = [str(tiny.save_questions(folder / f"q{k}.jsonl", n=60, seed=k)) for k in range(tasks)]
    study = {
        "models": [{"name": Path(path).name, "path": path} for path in paths],
        "tasks": [{"name": Path(file).stem, "file": file} for file in files],
        "store": str(folder / "plan.db"),
        "device": "cpu",
    }
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    print(f"\nplan of {models:,} models × {tasks:,} tasks ({load()})", flush=True)
    return print_command("plan", ["run", str(file), "--dry-run"], folder, PLAN_LIMITS)


def write_own_rows(file: Path, count: int) -> None:
    """Write questions of one's own, all different: the colour that follows from the animal."""
    stream = random.Random(0)
    colours = {"cat": "red", "dog": "blue", "bird": "green"}
    choices = sorted(colours.values())
    with file.open("w") as out:
        for _ in range(count):
            animal = stream.choice(sorted(colours))
            filler = " ".join(stream.choices(["the", "a", "of", "old", "new", "in"], k=14))
            answer = choices.index(colours[animal])
            row = {"question": f"what is the {animal} {filler} ?", "choices": choices}
            out.write(json.dumps(row | {"answer": answer}) + "\n")


def measure_own_rows(rows: int, folder: Path) -> bool:
    """Print how long a task of many rows takes to plan, to score and to learn; return whether limits hold."""
    import yaml

    import tiny

    tiny.save_model(folder / "model", width=16)
    write_own_rows(folder / "questions.jsonl", rows)
    study = {
        "models": [{"name": "model", "path": str(folder / "model")}],
        "tasks": [{"name": "questions", "file": str(folder / "questions.jsonl")}],
        "tuning": {"learning_rates": [1e-3], "epochs": 1},
        "store": str(folder / "rows.db"),
        "device": "cpu",
    }
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    print(f"\ntask of {rows:,} rows of one's own ({load()})", flush=True)
    within_limits = print_command("plan", ["run", str(file), "--dry-run"], folder, ROWS_PLAN_LIMITS)
    within_limits &= print_command("run", ["run", str(file)], folder, ROWS_RUN_LIMITS)
    return within_limits & print_command(
        "report", ["report", str(folder / "rows.db")], folder, None
    )


def print_command(
    name: str, command: list[str], folder: Path, limits: tuple[float, float] | None
) -> bool:
    """Run a command and print seconds, processor time and memory; return whether it keeps its limits."""
    clock, cpu, memory = timed(command, folder)
    is_kept = limits is None or (cpu < limits[0] and memory < limits[1])
    limit_words = (
        "" if limits is None else f"limit {limits[0]:g} s of a processor, {limits[1]:,} MB"
    )
    miss = "" if is_kept else "  MISSED"
    print(f"{name:28}{clock:9.2f}{cpu:9.2f}{memory:8.0f}   {limit_words}{miss}", flush=True)
    return is_kept


def load() -> str:
    """Say how busy the machine is with other work."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def timed(arguments: list[str], folder: Path) -> tuple[float, float, float]:
    """Run a command; return seconds, seconds of processor time, and MB of memory."""
    began = time.perf_counter()
    with (folder / "said").open("w") as output:
        process = subprocess.Popen(
            [*POTENTIA, *arguments], cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
        _, code, used = os.wait4(process.pid, 0)
    if code:
        raise SystemExit(
            f"{arguments[0]} ended with {code}: {(folder / 'said').read_text()[-2000:]}"
        )
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def board(store: Path, folder: Path) -> dict[str, float]:
    """Serve the board; return seconds until its pages and lists are there."""
    process = subprocess.Popen(
        [*POTENTIA, "serve", str(store), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "300", "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        match = re.search(r"http://[^ ]+/", process.stdout.readline())
        assert match
        took: dict[str, float] = {}
        for name, path in (
            ("board, list of studies", ""),
            ("board, first page", f"studies/{STUDY}"),
            ("board, first page again", f"studies/{STUDY}"),
            ("board, lanes", f"api/studies/{STUDY}/lanes?size=50"),
            ("board, cells", f"api/studies/{STUDY}/cells?size=50&page=20"),
            ("board, metrics", "metrics"),
        ):
            began = time.perf_counter()
            for attempt in range(200):
                try:
                    with urllib.request.urlopen(match[0] + path, timeout=600) as answer:
                        answer.read()
                    break
                except ConnectionError:
                    time.sleep(0.05 * min(attempt, 4))
            took[name] = time.perf_counter() - began
        return took
    finally:
        process.terminate()
        process.wait(timeout=60)


def measure(size: str, folder: Path, steps: list[str]) -> bool:
    """Measure one size and print it; return whether every limit holds."""
    store = folder / f"{size}.db"
    models, tasks = SIZES[size]
    began = time.perf_counter()
    exists = store.exists()
    if not exists:
        make_store(store, models, tasks)
    origin = "found" if exists else f"made in {time.perf_counter() - began:.0f} s"
    print(
        f"\n{size}: {models} models × {tasks} tasks, {2 * models * tasks:,} cells "
        f"({origin}, {store.stat().st_size / 1e6:,.0f} MB; {load()})",
        flush=True,
    )
    print(f"{'':28}{'seconds':>9}{'CPU s':>9}{'MB':>8}   limit")
    within_limits = True
    commands = {
        "status": ["status", str(store)],
        "rankings": ["analyze", "rankings", str(store)],
        "report": ["report", str(store), "-o", str(folder / "report.html")],
    }
    for name, command in commands.items():
        if name not in steps:
            continue
        clock, cpu, memory = timed(command, folder)
        limit, memory_limit = LIMITS.get((size, name), (None, None))
        amount = (folder / "report.html").stat().st_size / 1e6 if name == "report" else memory
        ok = (limit is None or cpu < limit) and (memory_limit is None or amount < memory_limit)
        within_limits &= ok
        line = (
            ""
            if limit is None
            else f"{limit} s"
            + (f", {memory_limit:,} MB" if memory_limit else "")
            + ("" if ok else "  MISSED")
        )
        print(f"{name:28}{clock:9.2f}{cpu:9.2f}{memory:8.0f}   {line}", flush=True)
        if name == "report":
            print(f"{'  its file':28}{'':18}{amount:8.1f}")
    if "board" in steps:
        for name, clock in board(store, folder).items():
            limit, _ = LIMITS.get((size, name), (None, None))
            ok = limit is None or clock < limit
            within_limits &= ok
            print(
                f"{name:28}{clock:9.3f}{'':17}   {'' if limit is None else f'{limit} s'}{'' if ok else '  MISSED'}",
                flush=True,
            )
    return within_limits


def orchestration(cells: int, folder: Path) -> bool:
    """Run studies of trivial cells (one question, a tiny model); print what one more cell costs beside its scoring.

    A small and a large study are run, and their difference divided by the cells that the large one has more: imports
    and the loading of the model, which come once, fall out of it. What scoring takes is measured and taken off.
    """
    import resource

    import tiny
    from potentia.run import plan_study, row_context, run_study
    from potentia.study import make_study

    spent = {"scoring": 0.0}
    score = row_context.evaluate_untuned

    def timed_direct(*arguments: object, **named: object) -> object:
        began = time.process_time()
        try:
            return score(*arguments, **named)
        finally:
            spent["scoring"] += time.process_time() - began

    row_context.evaluate_untuned = timed_direct  # type: ignore[assignment]
    tiny.save_model(folder / "m", seed=0, width=16)
    for k in range(cells):
        tiny.save_questions(folder / f"q{k}.jsonl", n=12, seed=k)
    sizes, timings = (
        (2, max(2, cells // 4), cells),
        [],
    )  # the first, of two cells, only loads what there is to load
    for size in sizes:
        study = make_study(
            {
                "models": [{"name": "m", "path": str(folder / "m")}],
                "tasks": [
                    {"name": f"q{k}", "file": str(folder / f"q{k}.jsonl")} for k in range(size)
                ],
                "protocols": ["direct"],
                "caps": {"test": 1},
                "store": str(folder / f"trivial-{size}-{os.getpid()}.db"),
                "device": "cpu",
            }
        )
        times, plan = {}, None
        for name in ("planned", "computed", "found"):
            began, spent["scoring"] = time.process_time(), 0.0
            if name == "computed":
                run_study(plan)
            else:
                plan = plan_study(study)
            times[name] = time.process_time() - began
            if name == "computed":
                times["scoring"] = spent["scoring"]
        times["MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        timings.append(times)
    _, few_cells, many_cells = timings
    seconds_each = {
        name: (many_cells[name] - few_cells[name]) / (sizes[2] - sizes[1]) * 1e3
        for name in few_cells
        if name != "MB"
    }
    beside = seconds_each["planned"] + seconds_each["computed"] - seconds_each["scoring"]
    within_limits = beside < CELL_MS and seconds_each["found"] < FOUND_MS
    print(f"\n{cells} trivial cells, ms of processor time for one more ({load()}):")
    print("  " + ", ".join(f"{name} {value:.1f}" for name, value in seconds_each.items()))
    print(
        f"  beside its scoring {beside:.1f} (limit {CELL_MS}), "
        f"found again {seconds_each['found']:.1f} (limit {FOUND_MS})"
        + ("" if within_limits else "  MISSED")
    )
    print(
        f"  memory: {few_cells['MB']:,.0f} MB after {sizes[1]} cells, {many_cells['MB']:,.0f} MB after {sizes[2]}"
    )
    return within_limits


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=["2k", "20k", "300x40"])
    parser.add_argument("--steps", nargs="+", default=["status", "rankings", "report", "board"])
    parser.add_argument("--cells", type=int, help="measure this many trivial cells instead")
    parser.add_argument("--plan", help="measure the plan of MODELSxTASKS instead")
    parser.add_argument("--rows", type=int, help="measure a task of this many rows instead")
    parser.add_argument("--folder", type=Path, help="keep the stores here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.cells:
            raise SystemExit(0 if orchestration(options.cells, folder) else 1)
        if options.plan:
            models, tasks = map(int, options.plan.split("x"))
            raise SystemExit(0 if measure_plan(models, tasks, folder) else 1)
        if options.rows:
            raise SystemExit(0 if measure_own_rows(options.rows, folder) else 1)
        within_limits = [measure(size, folder, options.steps) for size in options.sizes]
    raise SystemExit(0 if all(within_limits) else 1)


if __name__ == "__main__":
    main()
