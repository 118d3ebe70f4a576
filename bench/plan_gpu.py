"""What ``potentia run --dry-run`` says three kinds of rows will take on this device, beside what each took, twice.

    python bench/plan_gpu.py --pack carry                # where there is a network: the packages that the machine lacks
    python3 bench/plan_gpu.py --carry carry --seconds 170 --out plan_gpu.json
    python bench/plan_gpu.py --device cpu --tiny         # tries the script itself, in a minute or two

One model of 135M parameters with random weights and real questions (``arc_easy.json`` and ``gsm8k.json`` of
``--carry``, as bench/gpu.py packs them, with ``tokenizer/``): a row that chooses, one that writes, one that does both.
A row is calibrated (``run --dry-run``) and run in processes of their own, as ``potentia run`` does: predicted over
measured, and where the time went. All kinds are run once before any is run again. What is found is written to ``--out``
row by row; no row is begun that would end after ``--seconds``. Exits with 1 where a ratio leaves ± 30 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

WITHIN = 0.30
KINDS = {"choosing": ("arc",), "writing": ("sums",), "both": ("arc", "sums")}
# What Potentia needs beyond torch, transformers, peft, pandas and pyarrow, in the flavour of that machine's Python.
LACKING = (
    "pydantic",
    "pydantic-core",
    "typing-inspection",
    "typing-extensions",
    "annotated-types",
    "sqlalchemy",
    "lm-eval",
    "datasets",
    "dill",
    "multiprocess",
    "xxhash",
    "more-itertools",
    "pytablewriter",
    "requests",
    "urllib3",
    "idna",
    "charset-normalizer",
    "certifi",
    "sacrebleu",
    "portalocker",
    "tabulate",
    "colorama",
    "lxml",
)


def main() -> int:
    """Plan, run, run apart, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny model and few documents, to try the script"
    )
    parser.add_argument("--carry", type=Path, default=HERE.parent / "carry")
    parser.add_argument(
        "--pack", type=Path, metavar="CARRY", help="fetch packages into CARRY/site, and end"
    )
    parser.add_argument("--python", default="3.12", help="with --pack: the machine's Python")
    parser.add_argument("--model", type=Path, help="a folder with weights, in place of random ones")
    parser.add_argument("--train", type=int, default=400)
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="begin nothing that would not end by then"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "plan_gpu.json"
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--row", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pack:
        return pack(options.pack, options.python)
    sys.path.append(
        str(options.carry.resolve() / "site")
    )  # what the machine has itself comes first
    if file := options.row or options.plan:
        body = json.loads(file.read_text())
        print(json.dumps(run_row(body) if options.row else plan_row(body)))
        return 0
    with tempfile.TemporaryDirectory(prefix="potentia-plan-") as folder:
        return judge(options, Path(folder))


def judge(options: argparse.Namespace, folder: Path) -> int:
    """Print predicted and measured, kind by kind, then once more."""
    until = time.monotonic() + options.seconds
    model = options.model or make_model(options, folder / "model")
    bodies = {
        kind: make_body(options, folder / kind, model, names)
        for kind, names in KINDS.items()
        if kind in options.kinds
    }
    planned: dict[str, dict[str, Any]] = {}
    comparisons: list[dict[str, Any]] = []
    for turn, kind in itertools.product(range(2), bodies):
        if (
            time.monotonic() + (1.5 * planned[kind]["predicted_s"] if kind in planned else 20) + 15
            > until
        ):
            print(f"{kind}: no time left")
            continue
        if kind not in planned:
            planned[kind] = apart(options, "--plan", folder / kind / "plan.json", bodies[kind])
            print(
                "{}: calibration {calibration_s:.1f} s, predicted {predicted_s:.1f} s".format(
                    kind, **planned[kind]
                )
            )
        body = {**bodies[kind], "store": str(folder / kind / f"{turn}.db")}
        took = apart(options, "--row", folder / kind / f"row{turn}.json", body)
        ratio = planned[kind]["predicted_s"] / took["seconds"]
        comparisons.append(
            {
                "kind": kind,
                "turn": turn,
                "device": options.device,
                "ratio": ratio,
                **planned[kind],
                **took,
            }
        )
        options.out.write_text(json.dumps(comparisons, indent=1))
        tally = ", ".join(f"{part} {seconds:.1f}" for part, seconds in took["tally"].items())
        print(
            f"{kind}: took {took['seconds']:.1f} s, predicted / measured {ratio:.2f} ({tally})",
            flush=True,
        )
    return int(
        not comparisons
        or any(abs(comparison["ratio"] - 1.0) > WITHIN for comparison in comparisons)
    )


def apart(
    options: argparse.Namespace, stage: str, file: Path, body: dict[str, Any]
) -> dict[str, Any]:
    """Plan or run a study in a process of its own."""
    file.write_text(json.dumps(body))
    command = [sys.executable, __file__, "--carry", str(options.carry), stage, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{file.parent.name}: failed\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def plan_row(body: dict[str, Any]) -> dict[str, Any]:
    """Calibrate, and tell the seconds that the study is said to take."""
    from potentia.run import estimate_cost, plan_study
    from potentia.study import make_study

    plan = plan_study(make_study(body))
    began = time.monotonic()
    cost = estimate_cost(plan)
    cells = [[cell.task, str(cell.protocol), cell.seconds] for cell in cost.cells]
    facts = {"loads": dict(cost.loads), "start_s": cost.start, "predicted_cells": cells}
    return {"calibration_s": time.monotonic() - began, "predicted_s": cost.seconds, **facts}


def run_row(body: dict[str, Any]) -> dict[str, Any]:
    """Run the study; its seconds in all, by cell, and by kind of work."""
    from potentia.run import plan_study, run_study
    from potentia.store import Store
    from potentia.study import make_study

    plan = plan_study(make_study(body))
    began = time.monotonic()
    result = run_study(plan)
    seconds = time.monotonic() - began
    if result.failed:
        raise SystemExit(f"a cell failed: {result.reasons}")
    with Store.open(body["store"], readonly=True) as store:
        cells = [[f"{cell.task} × {cell.protocol}", cell.seconds] for cell in store.cells.read()]
        events = store.events.read(result.study)
        tally = next((dict(event.payload["tally"]) for event in events if event.kind == "row"), {})
    return {"seconds": seconds, "cells": cells, "tally": tally}


def make_body(
    options: argparse.Namespace, folder: Path, model: Path, names: tuple[str, ...]
) -> dict[str, Any]:
    """Lay out the tasks, and return the study."""
    folder.mkdir()
    train, held = (48, 16) if options.tiny else (options.train, 200)
    rows = json.loads((options.carry / "arc_easy.json").read_text())
    arc = [
        {
            "question": row["question"],
            "choices": row["choices"]["text"],
            "answer": n % len(row["choices"]["text"]),
        }
        for n, row in enumerate(rows)
    ]
    sums = [
        {"prompt": f"Question: {text}\nAnswer:", "completion": f"{n % 100} apples"}
        for n, text in enumerate(json.loads((options.carry / "gsm8k.json").read_text()))
    ]
    tasks = []
    for name, documents in [(name, {"arc": arc, "sums": sums}[name]) for name in names]:
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(document) + "\n" for document in documents))
        tasks.append({"name": name, "file": str(path)})
    return {
        "name": "row",
        "models": [{"name": "135m", "path": str(model), "kind": "base"}],
        "tasks": tasks,
        "caps": {"train": train, "validation": held, "test": held},
        "tuning": {"epochs": 1 if options.tiny else options.epochs},
        "answer_tokens": 8 if options.tiny else 32,
        "device": options.device,
        "store": str(folder / "plan.db"),
    }


def make_model(options: argparse.Namespace, folder: Path) -> Path:
    """Write a model with random weights and the carried tokenizer."""
    import torch
    from transformers import AutoTokenizer

    import lanes

    words = AutoTokenizer.from_pretrained(str(options.carry / "tokenizer"))
    if options.tiny:
        lanes.SHAPES["tiny"]["vocab"] = len(words)
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    lanes.build("tiny" if options.tiny else "135m", device, dtype).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def pack(carry: Path, python: str) -> int:
    """Fetch what the machine lacks, for its Python, without what it has."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--target",
        str(carry / "site"),
        "--upgrade",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        python,
        "--implementation",
        "cp",
        *(
            part
            for tag in ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")
            for part in ("--platform", tag)
        ),
        *LACKING,
    ]
    done = subprocess.run(command, check=False).returncode
    tasks = carry / "site" / "lm_eval" / "tasks"  # thousands of files that nobody asks for here
    for folder in [
        *(f for f in tasks.glob("*") if f.is_dir()),
        *(carry / "site").rglob("__pycache__"),
    ]:
        shutil.rmtree(folder, ignore_errors=True)
    for file in (
        *(carry / "site" / "sqlalchemy").rglob("*.so"),
        *(carry / "site" / "lxml").glob("objectify*.so"),
    ):
        file.unlink()  # it does without
    return done


if __name__ == "__main__":
    sys.exit(main())
