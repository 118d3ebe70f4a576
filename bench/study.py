"""The whole of a study as a user runs it: wall time, and where the time of its rows went.

    python bench/study.py examples/real-models.yaml --data-dir FOLDER_OF_BENCHMARKS
    python bench/study.py STUDY.yaml --data-dir FOLDER --train 200         # other options go to `potentia run`
    python bench/study.py STUDY.yaml --random                              # weights that are not at hand: at random
    python bench/study.py STUDY.yaml --read study-bench.db                 # what a store says of a run that ended early

One command with default options in a process of its own, into an empty store beside the study; prints seconds by row
and kind of work (``treat`` is the training that makes a copy) and writes them as JSON with ``--out``. Beside it the
least time that the lanes' training could take: tokens × parameters × 4 operations (LoRA needs no gradients of weights),
divided by the device's matmul rate (``--rate``, by default an H200's).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KINDS = (
    *("load", "compile", "check", "probe", "treat", "tokenise"),
    *("train", "validate", "test", "select", "save", "other"),
)


def main() -> int:
    """Run, then tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("--data-dir", type=Path, help="folder of benchmark splits")
    parser.add_argument(
        "--read", type=Path, metavar="STORE", help="run nothing, tell of what is in a store"
    )
    parser.add_argument(
        "--random", action="store_true", help="fill models that have a config.json and no weights"
    )
    parser.add_argument("--store", type=Path, default=Path("study-bench.db"))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "--rate", type=float, default=790e12, help="operations a second of large matrix products"
    )
    options, remaining = parser.parse_known_args()
    if options.read:
        tell(None, spent(options.read), least(options.read, options.rate))
        return 0
    if options.store.exists():
        parser.error(
            f"{options.store} is there already: the time of a study that is half done says little"
        )
    if options.random:
        fill(options.study)
    command = [sys.executable, "-m", "potentia", "run", str(options.study)]
    command += ["--data-dir", str(options.data_dir)] if options.data_dir else []
    began = time.monotonic()
    status = subprocess.run(
        [*command, "--store", str(options.store), *remaining], check=False
    ).returncode
    wall = time.monotonic() - began
    rows = spent(options.store)
    bound = least(options.store, options.rate)
    tell(wall, rows, bound)
    if options.out:
        result = {"wall": wall, "exit": status, "rows": rows, "least_training_s": bound}
        options.out.write_text(json.dumps(result, indent=1))
    return status


def fill(study: Path) -> None:
    """Give the study's models that have a config and no weights random ones: time follows from shapes."""
    import torch
    import yaml
    from transformers import AutoConfig, AutoModelForCausalLM

    for model in yaml.safe_load(study.read_text())["models"]:
        folder = study.parent / model["path"]
        if (folder / "config.json").exists() and not any(folder.glob("*.safetensors")):
            torch.manual_seed(0)
            with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
                model_made = AutoModelForCausalLM.from_config(
                    AutoConfig.from_pretrained(folder), dtype=torch.bfloat16
                )
            model_made.save_pretrained(folder)
            del model_made
            torch.cuda.empty_cache()  # the study's rows are to have it
            print(f"{model['name']}: random weights", flush=True)


def spent(location: Path) -> list[dict[str, Any]]:
    """Return what every row of the store's study told of its time."""
    from potentia.store import Store

    with Store.open(str(location), readonly=True) as store:
        (study,) = store.studies.read()
        events, last = [], 0
        while found := store.events.read(study.key, after_id=last):
            events += found
            last = found[-1].id
    return [dict(event.payload) for event in events if event.kind == "row"]


def least(location: Path, rate: float) -> float:
    """Return the seconds that the training of all lanes takes at the least."""
    from potentia.store import Store
    from potentia.study import make_study

    with Store.open(str(location), readonly=True) as store:
        (study,) = store.studies.read()
        rows = make_study(dict(study.spec)).rows()
        sizes = {row.name: float(row.parameters or 0.0) for row in rows}
        lanes = store.lanes.read(study=study.key)
    return (
        sum(4 * sizes[lane.model] * (epoch.tokens or 0) for lane in lanes for epoch in lane.epochs)
        / rate
    )


def tell(wall: float | None, rows: list[dict[str, Any]], bound: float) -> None:
    """Print a line for each row that ended, and the shares of all."""
    kinds = [kind for kind in KINDS if any(row["tally"].get(kind) for row in rows)]
    kinds += sorted({kind for row in rows for kind in row["tally"]} - set(KINDS))
    took = "" if wall is None else f"wall time {int(wall // 60)}:{wall % 60:04.1f} min, "
    print(f"\n{took}{len(rows)} rows; seconds of each")
    print(f"{'row':40}{'all':>8}" + "".join(f"{kind:>10}" for kind in kinds))
    for row in sorted(rows, key=lambda row: -row["seconds"]):
        line = "".join(f"{row['tally'].get(kind, 0.0):10.1f}" for kind in kinds)
        print(f"{row['row']:40}{row['seconds']:8.1f}{line}")
    total = sum(row["seconds"] for row in rows) or 1.0
    shares = "".join(
        f"{sum(row['tally'].get(kind, 0.0) for row in rows) / total:10.0%}" for kind in kinds
    )
    print(f"{'share':40}{'':8}{shares}")
    print(f"the training of the lanes takes {bound:.0f} s at the least")


if __name__ == "__main__":
    raise SystemExit(main())
