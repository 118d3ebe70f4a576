"""Throw seeded, mutated inputs at Potentia, and count how they end.

    python -m fuzz --inputs 2000 --seed 7                  # about two minutes
    python -m fuzz --only scores --first 1234 --inputs 1   # one input again

Printed: inputs by target and outcome (taken, refused with a sentence, crash, hang, outside its folder), and each kind
of crash once, with the number that makes it again. Ends with 1 where there was any.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

from fuzz.targets import SHARES, TARGETS  # noqa: E402
from fuzz.watch import Watch  # noqa: E402

BAD = ("crash", "hang", "outside")


def fuzz(
    inputs: int, *, seed: int, only: list[str], first: int = 0, root: Path, report_every: int = 2000
) -> tuple[Counter[tuple[str, str]], dict[str, str]]:
    """Return how the inputs ended, and the first of every kind of trouble."""
    watch = Watch(root, Path.home() / ".cache")
    counts: Counter[tuple[str, str]] = Counter()
    kinds: dict[str, str] = {}
    names = only or list(TARGETS)
    began = time.monotonic()
    for number in range(first, first + inputs):
        stream = random.Random(f"{seed} {number}")
        name = stream.choices(names, [SHARES[n] for n in names])[0]
        folder = root / "input"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.chdir(folder)
        ended, description = watch.judge(TARGETS[name](stream, folder))
        counts[name, ended] += 1
        if ended in BAD:
            label = f"{name}: {ended}: {description}"
            if label not in kinds:
                kinds[label] = f"--seed {seed} --first {number} --inputs 1" + "".join(
                    f" --only {n}" for n in only
                )
                print(f"{label}\n    again: {kinds[label]}", flush=True)
        if (number - first + 1) % report_every == 0:
            print(
                f"{number - first + 1:,} inputs in {time.monotonic() - began:,.0f} s, {len(kinds)} kinds of trouble",
                flush=True,
            )
    return counts, kinds


def main() -> None:
    """Fuzz, and print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(TARGETS), default=[])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="potentia-fuzz-") as temporary:
        root = Path(temporary).resolve()
        os.environ["POTENTIA_CACHE"] = str(root / "cache")
        counts, kinds = fuzz(
            options.inputs, seed=options.seed, only=options.only, first=options.first, root=root
        )
        os.chdir("/")
    outcomes = ("taken", "refused", *BAD)
    print(f"{'':10}{'inputs':>9}" + "".join(f"{name:>10}" for name in outcomes))
    for name in [*TARGETS, "all"]:
        row = {
            o: sum(n for (t, e), n in counts.items() if e == o and name in (t, "all"))
            for o in outcomes
        }
        if sum(row.values()):
            print(f"{name:10}{sum(row.values()):9,}" + "".join(f"{row[o]:10,}" for o in outcomes))
    raise SystemExit(1 if kinds else 0)


if __name__ == "__main__":
    main()
