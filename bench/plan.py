"""What ``potentia plan`` says a study will take, beside what it took: zoo models on this CPU, studies of several kinds.

    OMP_NUM_THREADS=1 python bench/plan.py
    OMP_NUM_THREADS=1 python bench/plan.py --only generation folds

Each study is planned on an empty store (so a short calibration times the engine), run, and planned once more by the
times in its store. ``ratio`` is predicted over measured. All clocks are those of this process, which a busy machine
does not move; ``--wall`` takes the clock on the wall. Exits with 1 where a ratio leaves ± 30 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from potentia import zoo
from potentia.lab import demo_study
from potentia.lab.demo import recipe
from potentia.run import estimate_cost, plan_study, run_study
from potentia.study import Study, make_study

WITHIN = 0.30
MODELS = ("aster-71k", "birch-96k", "cedar-159k", "dahlia-237k")
CAPS = {"train": 400, "validation": 100, "test": 400}


def main() -> int:
    """Plan, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=sorted(KINDS), default=[])
    parser.add_argument("--wall", action="store_true", help="the clock on the wall: on a machine of one's own")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    given = parser.parse_args()
    if not given.wall:
        time.monotonic = time.perf_counter = time.process_time  # one thread: CPU seconds are those of a quiet machine
    print(f"{'study':12}{'calibration':>12}{'predicted':>11}{'measured':>10}{'ratio':>7}{'from store':>12}")
    lines = []
    for name in given.only or list(KINDS):
        with tempfile.TemporaryDirectory(prefix="potentia-plan-") as folder:
            found = judge(KINDS[name](Path(folder)))
        lines.append({"study": name, **found})
        print(
            f"{name:12}{found['calibration']:>11.1f}s{found['predicted']:>10.1f}s{found['measured']:>9.1f}s"
            f"{found['ratio']:>7.2f}{found['store_ratio']:>12.2f}",
            flush=True,
        )
    off = [line["study"] for line in lines if abs(line["ratio"] - 1.0) > WITHIN]
    print(f"{len(lines) - len(off)} of {len(lines)} within ± {WITHIN:.0%}" + (f"; not {', '.join(off)}" if off else ""))
    if given.json:
        given.json.write_text(json.dumps(lines, indent=1))
    return 1 if off else 0


def judge(study: Study) -> dict[str, float]:
    """Plan a study, run it, and plan it again as if its last row were still to do."""
    with quiet():
        plan = plan_study(study)
        began = time.monotonic()
        cost = estimate_cost(plan)
        calibration = time.monotonic() - began
        plan, began = plan_study(study), time.monotonic()
        result = run_study(plan, workers=1)
        measured = time.monotonic() - began
        after = estimate_cost(plan_study(study), calibrate=False)
    if result.failed:
        raise SystemExit(f"{study.name}: {result.reasons[0]}")
    return {
        "calibration": calibration,
        "predicted": cost.seconds(),
        "measured": measured,
        "ratio": cost.seconds() / measured,
        "store_ratio": after.seconds(everything=True) / measured,
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the progress of libraries out of the table."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


# --- the studies ----------------------------------------------------------------------------------------------------


def make(folder: Path, name: str, tasks: list[str], **changes: Any) -> Study:
    """A study of zoo models on zoo tasks."""
    folders = zoo.model_folders(folder / "models", list(MODELS))
    files = zoo.task_folder(folder / "tasks")
    return make_study(
        {
            "name": name,
            "models": [
                {"name": m, "path": str(folders[m]), "kind": "base", "parameters": zoo.model(m).parameters}
                for m in changes.pop("models", MODELS)
            ],
            "tasks": [{"name": task, "file": str(files[task])} for task in tasks],
            "caps": CAPS,
            "tuning": recipe(epochs=3),
            "device": "cpu",
            "store": str(folder / "bench.db"),
            **changes,
        }
    )


def one_file(folder: Path, task: str, together: int = 1) -> str:
    """Write a task's training questions as one file; several together make long ones."""
    rows = [json.loads(line) for line in (folder / "tasks" / task / "train.jsonl").read_text().splitlines()]
    path = folder / f"{task}-{together}.jsonl"
    with path.open("w") as file:
        for first in range(0, len(rows) - together + 1, together):
            *shown, last = rows[first : first + together]
            told = [f"{row['question']} {row['choices'][row['answer']]}" for row in shown]
            file.write(json.dumps({**last, "question": " ".join([*told, last["question"]])}) + "\n")
    return str(path)


def of_files(folder: Path, name: str, together: int = 1, **extra: Any) -> Study:
    """A study on such files."""
    tasks = ("ask", "fix")
    study = make(folder, name, list(tasks))
    files = [{"name": task, "file": one_file(folder, task, together), **extra} for task in tasks]
    return make_study({**study.model_dump(mode="json", exclude_defaults=True), "tasks": files})


def adjusted(folder: Path) -> Study:
    """One tuning for all tasks."""
    data = zoo.task_folder(folder / "tasks")["record"]
    protocols = ["direct", "adjust"]
    return make(folder, "adjust", ["ask", "fix", "claim"], protocols=protocols, adjust={"data": str(data), "cap": 400})


KINDS = {
    "demo": lambda folder: demo_study(folder, quick=True),
    "one-task": lambda folder: make(folder, "one", ["ask"]),
    "long": lambda folder: of_files(folder, "long", together=4),
    "generation": lambda folder: make(folder, "generation", ["call", "ask"]),
    "corpora": lambda folder: make(folder, "corpora", ["ask", "chronicle"]),
    "few-shot": lambda folder: make(
        folder, "shots", ["ask", "table"], protocols=["direct", "few_shot:5", "train_before_test"]
    ),
    "folds": lambda folder: of_files(folder, "folds", folds=3),
    "seeds": lambda folder: make(folder, "seeds", ["ask", "fix"], seeds=3),
    "treat": lambda folder: make(folder, "treat", ["ask", "fix"], models=MODELS[:2], treat={"data": ["ask"]}),
    "adjust": adjusted,
}

if __name__ == "__main__":
    sys.exit(main())
