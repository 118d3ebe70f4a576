"""The company's story on real models: labelled tickets → select → predict on a file that nobody saw.

    python bench/tickets.py --models FOLDER FOLDER [--rows 600]

Prints the seconds of the selection, the winner's tested accuracy, what TF-IDF with logistic regression scores on the
same split, and the accuracy of ``potentia predict`` on the test file; the last must be the tested one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import ticket_files as tickets


def potentia(*arguments: object) -> dict:
    """Run a command with --json and return what it prints."""
    line = [sys.executable, "-m", "potentia", *map(str, arguments), "--json"]
    return json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    """Make the tickets, select, predict, and print the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", nargs="+", required=True)
    options.add_argument("--rows", type=int, default=600)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--device", default="auto")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "tickets")
        folder.mkdir()
        rows = tickets.english(given.rows)
        a, b = int(0.6 * len(rows)), int(0.75 * len(rows))
        for name, part in (("train", rows[:a]), ("dev", rows[a:b]), ("test", rows[b:])):
            tickets.write(folder / f"{name}.csv", part)
        out = Path(place, "selected")
        began = time.monotonic()
        chosen = potentia(
            "select",
            "--data",
            folder,
            "--models",
            *given.models,
            "--set",
            f"tuning.epochs={given.epochs}",
            "--device",
            given.device,
            "-o",
            out,
        )
        seconds = time.monotonic() - began
        again = potentia("predict", out / "adapter", folder / "test.csv", "--device", given.device)
    print(f"selected in {seconds:.0f} s: {chosen['answer']}")
    classes = chosen["classes"]
    baseline = classes["baselines"]["TF-IDF + logistic regression"]["acc"]
    print(
        f"winner {chosen['best']}: {again['tested']:.3f} on {again['labelled']} tickets, TF-IDF {baseline:.3f}"
    )
    print(
        f"predict on the same file: {again['accuracy']:.3f}, ratio {again['accuracy'] / again['tested']:.3f}"
    )


if __name__ == "__main__":
    main()
