"""The company's story on real models: labelled tickets → select → predict on a file that nobody saw.

    python bench/tickets.py --models FOLDER FOLDER [--rows 200] [--budget 8min] [--one-quiet-core]

On a shared machine ``--one-quiet-core`` tells what the command takes without its neighbours: in the process that runs
it the clock is that of the processor and torch has one thread, so budget and figures are of a core of its own.

Prints, with the load of the machine, the seconds to the estimate, to the first useful line and to the answer beside the
budget; then the winner's tested accuracy, that of TF-IDF with logistic regression on the same rows, and the accuracy of
``potentia predict`` on as many tickets that no candidate saw.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import ticket_files as tickets
from potentia.run import parse_budget

# Runs the command in a process whose clock stands still while others have the processor.
ON_PROCESSOR_TIME = (
    "import runpy, time; time.monotonic = time.perf_counter = time.process_time;"
    " runpy.run_module('potentia', run_name='__main__')"
)
ESTIMATE_WORDS = ("Estimate:", "A first guess:")
USEFUL_WORDS = "Without a language model"


@dataclass(frozen=True)
class TimedRun:
    """A command's answer, and the lines it wrote on the way with the seconds at which they came."""

    answer: dict
    lines: Sequence[tuple[float, str]]
    seconds: float
    processor_seconds: float

    def first_line_with(self, *words: str) -> float:
        """Return the seconds until the first line that starts with one of these words; NaN where none does."""
        for seconds, line in self.lines:
            if line.startswith(words):
                return seconds
        return float("nan")


def run_potentia(*arguments: object, one_quiet_core: bool = False) -> TimedRun:
    """Run a command with --json; return what it prints, and when it wrote what."""
    program = ["-m", "potentia"]
    environment = dict(os.environ)
    if one_quiet_core:
        program = ["-c", ON_PROCESSOR_TIME]
        environment |= {"OMP_NUM_THREADS": "1"}
    line = [sys.executable, *program, *map(str, arguments), "--json"]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            line, stdout=printed, stderr=subprocess.PIPE, text=True, env=environment
        )
        lines = []
        assert process.stderr is not None
        for text in process.stderr:
            seconds = time.monotonic() - began
            processor_seconds = read_processor_seconds(process.pid)
            if one_quiet_core:
                seconds = processor_seconds
            lines.append((seconds, text.rstrip()))
            print(f"{seconds:7.1f} s  {text.rstrip()}", flush=True)
        used_before = count_children_seconds()
        status = process.wait()
        processor_seconds = count_children_seconds() - used_before
        seconds = time.monotonic() - began
        if one_quiet_core:
            seconds = processor_seconds
        if status != 0:
            raise SystemExit(f"potentia {arguments[0]} ended with {status} after {seconds:.0f} s")
        printed.seek(0)
        answer = json.load(printed)
    return TimedRun(answer, lines, seconds, processor_seconds)


def count_children_seconds() -> float:
    """Return the processor time of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_processor_seconds(process_id: int) -> float:
    """Return the processor time that a running process has had, of all its threads; NaN where /proc does not tell."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def describe_load() -> str:
    """Say how busy the machine is."""
    minute, five_minutes, _ = os.getloadavg()
    return f"load {minute:.1f} (1 min), {five_minutes:.1f} (5 min) on {os.cpu_count()} cores"


def main() -> None:
    """Make the tickets, select, predict, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--budget", help="passed on to select")
    parser.add_argument("--set", nargs="*", default=[], help="passed on to select")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--one-quiet-core",
        action="store_true",
        help="count the processor time of the command, with one thread, for time",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = tickets.english(2 * options.rows)
        known_rows = tickets.write(Path(folder, "tickets.csv"), rows[: options.rows])
        unseen = tickets.write(Path(folder, "unseen.csv"), rows[options.rows :])
        output = Path(folder, "selected")
        arguments = ["select", "--data", known_rows, "--device", options.device, "-o", output]
        for model in options.models:
            arguments += ["--models", model]
        if options.budget is not None:
            arguments += ["--budget", options.budget]
        for setting in options.set:
            arguments += ["--set", setting]
        print(f"before: {describe_load()}")
        chosen = run_potentia(*arguments, one_quiet_core=options.one_quiet_core)
        print(f"after: {describe_load()}")
        predictor = chosen.answer["predictor"]
        predicted = run_potentia("predict", predictor, unseen, "--device", options.device)
    print(f"estimate after {chosen.first_line_with(*ESTIMATE_WORDS):.1f} s")
    print(f"first useful line after {chosen.first_line_with(USEFUL_WORDS):.1f} s")
    print(
        f"selected in {chosen.seconds:.0f} s ({chosen.processor_seconds:.0f} s of processor):"
        f" {chosen.answer['answer']}"
    )
    if options.budget is not None:
        budget = parse_budget(options.budget, 0.0)
        print(f"that is {chosen.seconds / budget:.2f} of the budget of {budget:.0f} s")
    baselines = chosen.answer["classes"]["baselines"]
    tfidf = baselines["TF-IDF + logistic regression"]["acc"]
    for standing in chosen.answer["standings"]:
        print(standing["model"], json.dumps(standing["tuned"]))
    print(f"TF-IDF {tfidf:.3f} on the same rows; used: {chosen.answer['use']}")
    print(f"predict on {options.rows} tickets nobody saw: {predicted.answer['accuracy']:.3f}")


if __name__ == "__main__":
    main()
