"""How the default recipe was chosen: candidates on the same models, tasks and documents, chosen on validation.

    OMP_NUM_THREADS=1 python bench/recipes.py --minutes 15
    python bench/recipes.py --models MODELS --data DATA/benchmarks --device cuda --minutes 6
    python bench/recipes.py --models MODELS/stories15M --tickets --documents 150

Each candidate changes one thing of ``fair``; ``paper`` is the train-before-test paper's. All are run at every number of
documents with every seed (of splits, order and adapters), the cheapest sizes first, until ``--minutes`` are over (what
is stopped keeps the cells that it has); a cell counts where every candidate has it. Told for each: the mean score that
was reached on validation, by which the winner is named, and on test; tuned cells whose search ended at a bound, that
were still rising, or that kept the untuned model; updates, learning rates tried and fine-tunings that diverged a cell;
seconds. On the zoo also
Kendall's tau of the tuned scores with what the models know, which is planted (a mean over tasks). ``--tickets`` asks
for support tickets in five classes, generated, in place of benchmarks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

from potentia import zoo
from potentia.analysis.stats import kendall_matrix
from potentia.run import run_study
from potentia.store import Store
from potentia.study import make_study
from potentia.values.selection import SearchEnd

BOUNDS = [
    1e-5,
    1e-2,
]  # a grid that is named is meant as it is: a candidate that goes on searching says so
CANDIDATES: dict[str, dict[str, Any]] = {
    "fair": {},
    "paper": {"recipe": "paper"},
    "text loss": {"loss": "text"},
    "PEFT's targets": {"targets": None},
    "no floor": {"least_updates": 0},
    "grid 1e-4, 3e-4": {"learning_rates": [1e-4, 3e-4]},
    "start 1e-4 to 1e-3": {"learning_rates": [1e-4, 3e-4, 1e-3], "rate_bounds": BOUNDS},
    "start 1e-4 to 3e-3": {"learning_rates": [1e-4, 3e-4, 1e-3, 3e-3], "rate_bounds": BOUNDS},
    # "LoRA Without Regret": 5e-4 · (2000 / width)^0.78, which is 7e-3 at the zoo's widths of 32 to 88
    "start at the law of widths": {"learning_rates": [2.3e-3, 7e-3], "rate_bounds": BOUNDS},
    "constant rate": {"decay": "constant"},
    "constant rate, short decay": {"decay": "late"},
    "no bracketing": {"rate_bounds": None},
    "three epochs": {"epochs": 3, "least_updates": 200},
    "no race": {"race": False},
    "dropout 0.1": {"dropout": 0.1},
    "rank 32": {"rank": 32, "alpha": 128},
}
ZOO_MODELS = ("aster-71k", "aster-159k", "birch-159k", "cedar-71k", "cedar-159k", "dahlia-159k")
ZOO_TASKS = ("table", "claim", "fix")
TASKS = ("commonsense_qa", "openbookqa", "sst2", "sciq", "piqa", "boolq")
TOLD = ("validation", "learning_rate", "search", "updates", "rates_tried", "failed_lanes")
DOCUMENTS = (150, 500, 2000)


@dataclass(frozen=True)
class Setting:
    """One candidate on so many documents with one seed."""

    candidate: str
    documents: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What a candidate reached: a dictionary per tuned cell."""

    setting: Setting
    cells: list[dict[str, Any]]
    seconds: float
    stopped: bool = False

    def share(self, verdict: str) -> float:
        """The share of tuned cells whose search ended so."""
        return float(np.mean([cell["search"] == verdict for cell in self.cells]))

    def mean(self, name: str) -> float:
        """The mean over cells of a number or of how many there are."""
        values = [cell[name] for cell in self.cells]
        return float(
            np.mean([len(value) if isinstance(value, tuple) else value for value in values])
        )

    @property
    def tau(self) -> float:
        """Kendall's tau of the tuned scores with the planted knowledge, the mean over tasks; NaN outside the zoo."""
        knowledge_by_model = {model.name: model.knowledge for model in zoo.models()}
        if not all(cell["model"] in knowledge_by_model for cell in self.cells):
            return float("nan")
        taus = []
        for task in {cell["task"] for cell in self.cells}:
            cells_of_task = [cell for cell in self.cells if cell["task"] == task]
            scores_and_knowledge = np.column_stack(
                [
                    [c["test"] for c in cells_of_task],
                    [knowledge_by_model[c["model"]] for c in cells_of_task],
                ]
            )
            taus.append(kendall_matrix(scores_and_knowledge)[0, 1])
        return float(np.nanmean(taus))


def main() -> None:
    """Run what fits into the time, writing every setting as it ends, and print the table."""
    options = _arguments()
    if options.summary:
        print(_table([outcome for path in options.summary for outcome in _read(path)]))
        return
    deadline = time.monotonic() + 60 * options.minutes
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="potentia-recipes-") as folder_name:
        folder = Path(folder_name)
        models, tasks = _subjects(options, folder)
        for setting in _settings(options):
            if (
                outcomes
                and time.monotonic() + outcomes[-1].seconds * _growth(setting, outcomes) > deadline
            ):
                break
            last = _run(setting, models, tasks, options, folder)
            outcomes.append(last)
            print(
                f"{setting.candidate}, {setting.documents} documents, seed {setting.seed}: {len(last.cells)} cells,"
                f" validation {last.mean('validation'):.3f}, test {last.mean('test'):.3f}, {last.seconds:.0f} s",
                flush=True,
            )
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(last)) + "\n")
            if last.stopped:
                break
    print(_table(outcomes))


def _read(path: Path) -> Iterator[Outcome]:
    for line in path.read_text("utf-8").splitlines():
        line_facts = json.loads(line)
        yield Outcome(Setting(**line_facts.pop("setting")), **line_facts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", type=Path, nargs="*", help="model folders, or a folder of them; else the zoo's"
    )
    parser.add_argument("--data", type=Path, help="folder of benchmarks' rows, for real models")
    parser.add_argument(
        "--tasks", nargs="*", default=list(TASKS), help="benchmarks, for real models"
    )
    parser.add_argument(
        "--tickets", action="store_true", help="support tickets in place of benchmarks"
    )
    parser.add_argument(
        "--candidates", nargs="*", default=list(CANDIDATES), choices=list(CANDIDATES)
    )
    parser.add_argument("--documents", type=int, nargs="*", default=list(DOCUMENTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--validation", type=int, default=200)
    parser.add_argument("--test", type=int, default=400)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="begin nothing that would not end within them"
    )
    parser.add_argument(
        "--out", type=Path, help="append what every setting gave to this file, a line each"
    )
    parser.add_argument(
        "--summary", type=Path, nargs="*", help="run nothing: the table of such files together"
    )
    return parser.parse_args()


def _settings(options: argparse.Namespace) -> Iterator[Setting]:
    for seed in options.seeds:
        for documents in options.documents:
            for candidate in options.candidates:
                yield Setting(candidate, documents, seed)


def _growth(setting: Setting, outcomes: Sequence[Outcome]) -> float:
    """Return how much longer a setting may take than the one before it."""
    before = outcomes[-1].setting.documents
    return max(1.2, setting.documents / before)


def _subjects(options: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the models and tasks as a study names them."""
    if options.models:
        subjects = [
            inner
            for path in options.models
            for inner in (sorted(path.iterdir()) if _has_models(path) else [path])
        ]
        models = [
            {"name": path.name, "path": str(path), "kind": "base"}
            for path in subjects
            if path.is_dir()
        ]
    else:
        paths = zoo.write_model_folders(folder / "models", ZOO_MODELS)
        models = [{"name": name, "path": str(path), "kind": "base"} for name, path in paths.items()]
    if options.tickets:
        rows = tickets(max(options.documents) + options.validation + options.test)
        (folder / "tickets.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
        return models, [{"name": "tickets", "file": str(folder / "tickets.jsonl")}]
    if options.models:
        return models, list(options.tasks)
    files = zoo.write_task_files(folder / "tasks")
    return models, [{"name": name, "file": str(files[name])} for name in ZOO_TASKS]


def _has_models(path: Path) -> bool:
    return not any((path / name).exists() for name in ("config.json", "m.gguf"))


def _run(
    setting: Setting, models: list[dict[str, Any]], tasks: list[Any], options: Any, folder: Path
) -> Outcome:
    caps = {"train": setting.documents, "validation": options.validation, "test": options.test}
    if options.tickets:
        ratios = [setting.documents, options.validation, options.test]
        tasks = [task | {"ratios": ratios} for task in tasks]
    study = make_study(
        {
            "name": "recipes",
            "models": models,
            "tasks": tasks,
            "protocols": ["train_before_test"],
            "tuning": CANDIDATES[setting.candidate],
            "caps": caps,
            "seed": setting.seed,
            "chat": "never",
            "data_dir": str(options.data) if options.data else None,
            "device": options.device,
            "keep_adapters": False,
            "probe": {"on": False},
            "store": str(folder / f"{abs(hash(setting))}.db"),
        }
    )
    began = time.monotonic()
    result = run_study(study, workers=options.workers)
    seconds = time.monotonic() - began
    for reason in result.reasons:
        print(f"failed: {reason}", flush=True)
    with Store.open(study.store, readonly=True) as store:
        cells = [
            {"model": c.model, "task": c.task, "test": c.score.value}
            | {name: getattr(c.selection, name) for name in TOLD}
            for c in store.cells.read(protocol="train_before_test")
        ]
    return Outcome(setting, cells, seconds, result.interrupted)


# --- support tickets --------------------------------------------------------------------------------------------------

TOPICS = {
    "billing": (
        "I was charged twice for {thing}",
        "the invoice for {thing} shows the wrong amount",
        "my card was debited but {thing} is still unpaid",
        "why did the price of {thing} go up this month",
    ),
    "delivery": (
        "{thing} has not arrived yet",
        "the parcel with {thing} went to the wrong address",
        "tracking for {thing} has not moved in days",
        "the courier left {thing} in the rain",
    ),
    "account": (
        "I cannot log in since I ordered {thing}",
        "the reset mail never comes, I need {thing} today",
        "please change the address on my account for {thing}",
        "my password does not work, {thing} is locked",
    ),
    "return": (
        "I want to send {thing} back",
        "{thing} does not fit, how do I return it",
        "where do I bring {thing} that I do not want",
        "can I exchange {thing} for another colour",
    ),
    "fault": (
        "{thing} stopped working after a day",
        "{thing} makes a loud noise and smells",
        "the screen of {thing} stays black",
        "a part of {thing} broke off when I opened it",
    ),
}
THINGS = (
    "the lamp",
    "my new phone",
    "the blue chair",
    "a coat",
    "the coffee machine",
    "the toy train",
    "my hat",
    "the garden table",
    "an old radio",
    "the kettle",
    "a pair of shoes",
    "the bicycle light",
)
OPENINGS = ("Hello,", "Hi there,", "Good morning,", "To whom it may concern,", "Hey,", "")
ENDINGS = (
    "Please help.",
    "Thank you.",
    "I am not happy.",
    "This is the second time I write.",
    "Kind regards, {name}",
    "Can you call me back?",
    "",
)
NAMES = ("Anna", "Tom", "Mia", "Jack", "Lily", "Ben")


def tickets(many: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return support tickets of five kinds, as questions whose choices are the kinds; no two are the same."""
    stream = random.Random(seed)
    splits: dict[str, dict[str, Any]] = {}
    while len(splits) < many:
        kind = stream.choice(sorted(TOPICS))
        other_topic = stream.choice([topic for topic in sorted(TOPICS) if topic != kind])
        body = stream.choice(TOPICS[kind]).format(thing=stream.choice(THINGS))
        aside = "" if stream.random() < 0.7 else f" (It is not about {other_topic}.)"
        ending = stream.choice(ENDINGS).format(name=stream.choice(NAMES))
        text = " ".join(
            part for part in (stream.choice(OPENINGS), body + "." + aside, ending) if part
        )
        question = f"Ticket: {text}\nKind:"
        splits.setdefault(
            text,
            {"question": question, "choices": sorted(TOPICS), "answer": sorted(TOPICS).index(kind)},
        )
    return list(splits.values())


# --- telling ----------------------------------------------------------------------------------------------------------


def _whole(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with the cells that every candidate has at that number of documents and seed."""
    names = {outcome.setting.candidate for outcome in outcomes}
    cells_by_setting: dict[tuple[Any, ...], set[str]] = {}
    for outcome in outcomes:
        for cell in outcome.cells:
            cells_by_setting.setdefault(_place(outcome, cell), set()).add(outcome.setting.candidate)
    outcomes_kept = (
        replace(o, cells=[cell for cell in o.cells if cells_by_setting[_place(o, cell)] == names])
        for o in outcomes
    )
    return [outcome for outcome in outcomes_kept if outcome.cells]


def _place(outcome: Outcome, cell: dict[str, Any]) -> tuple[Any, ...]:
    return outcome.setting.documents, outcome.setting.seed, cell["model"], cell["task"]


def _table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as Markdown, a row per candidate and number of documents; the winner on validation marked."""
    lines = [
        "| documents | recipe | validation | test | tau with truth | at the bound | still rising | kept untuned |"
        " updates | rates tried | diverged | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    whole_outcomes = _whole(outcomes)
    for documents in sorted({o.setting.documents for o in whole_outcomes}):
        at = [o for o in whole_outcomes if o.setting.documents == documents]
        names = dict.fromkeys(o.setting.candidate for o in at)
        rows = {name: [o for o in at if o.setting.candidate == name] for name in names}
        best = max(rows, key=lambda name: np.mean([o.mean("validation") for o in rows[name]]))
        for name, outcomes_of_name in rows.items():
            numbers = [
                f"{np.mean([o.mean('validation') for o in outcomes_of_name]):.3f}",
                f"{np.mean([o.mean('test') for o in outcomes_of_name]):.3f}",
                f"{np.mean([o.tau for o in outcomes_of_name]):.2f}",
                *(
                    f"{np.mean([o.share(v) for o in outcomes_of_name]):.0%}"
                    for v in (SearchEnd.AT_BOUND, SearchEnd.STILL_RISING, SearchEnd.UNTUNED)
                ),
                f"{np.mean([o.mean('updates') for o in outcomes_of_name]):.0f}",
                f"{np.mean([o.mean('rates_tried') for o in outcomes_of_name]):.1f}",
                f"{np.mean([o.mean('failed_lanes') for o in outcomes_of_name]):.2f}",
                f"{np.mean([o.seconds for o in outcomes_of_name]):.0f}",
            ]
            shown_name = f"**{name}**" if name == best else name
            lines.append(f"| {documents} | {shown_name} | " + " | ".join(numbers) + " |")
    return "\n".join(lines).replace(" nan ", " ")


if __name__ == "__main__":
    main()
