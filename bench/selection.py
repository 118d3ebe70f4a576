"""Whether ``potentia select`` names the right model, and as surely as it says: files whose truth is known.

    OMP_NUM_THREADS=1 python bench/selection.py
    OMP_NUM_THREADS=1 python bench/selection.py --data ../shared/data/benchmarks --files 10

Each file holds ``--rows`` rows of one benchmark, no row in two files; the candidates are four zoo models, drawn anew
for each file, and the benchmarks the zoo's, where models differ by what they know and by what they can learn. With
``--data`` the rows are those of real benchmarks, read to zoo models by a tokenizer of as many pieces as they know
words: they are all at chance there, so what is seen is whether ties are told; ``--models`` names folders of models that
can read. The real command answers; the truth is every candidate tuned on the rows that the command tunes on and tested
on rows that it never sees. The truth has noise of its own: ``true P`` is the chance that the model named is the best by
the held-out rows (the Bayesian bootstrap over documents), ``loss`` what its held-out score lacks of the best one's. At
the end: how often the winner is right or within noise of the best, stated beside true probabilities with the
uncertainty of their difference, and the ties. Exits with 1 where stated and true differ by more than two standard
errors.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import yaml

from potentia import zoo
from potentia.lab.demo import zoo_tuning

POOL = tuple(model.name for model in zoo.models("base"))
CANDIDATES = 4
DRAWS = 4_000


# --- rows of real benchmarks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A benchmark of short rows: where it lies, and its rows as questions with choices."""

    place: str
    ask: Callable[[dict[str, Any]], tuple[str, list[str], int]]


def _labelled(text: str, *labels: str) -> Callable[[dict[str, Any]], tuple[str, list[str], int]]:
    return lambda row: (text.format(**row), list(labels), int(row["label"]))


def _lettered(row: dict[str, Any]) -> tuple[str, list[str], int]:
    asked = row.get("question_stem") or row["question"]
    letters = list(row["choices"]["label"])
    return asked, [str(text) for text in row["choices"]["text"]], letters.index(row["answerKey"])


SOURCES = {
    "sst2": Source("nyu-mll--glue/sst2", _labelled("{sentence} This is", "bad", "good")),
    "cola": Source("nyu-mll--glue/cola", _labelled("{sentence} This is", "wrong", "right")),
    "wic": Source(
        "aps--super_glue/wic", _labelled("{word}: {sentence1} {sentence2} Same?", "no", "yes")
    ),
    "winogrande": Source(
        "allenai--winogrande/winogrande_xl",
        lambda row: (
            row["sentence"] + " _ is",
            [row["option1"], row["option2"]],
            int(row["answer"]) - 1,
        ),
    ),
    "piqa": Source(
        "baber--piqa/default",
        lambda row: (row["goal"], [row["sol1"], row["sol2"]], int(row["label"])),
    ),
    "siqa": Source(
        "lighteval--siqa/default",
        lambda row: (
            f"{row['context']} {row['question']}",
            [row["answerA"], row["answerB"], row["answerC"]],
            int(row["label"]) - 1,
        ),
    ),
    "commonsense_qa": Source("tau--commonsense_qa/default", _lettered),
    "sciq": Source(
        "allenai--sciq/default",
        lambda row: (
            row["question"],
            [row["distractor1"], row["correct_answer"], row["distractor2"], row["distractor3"]],
            1,
        ),
    ),
    "openbookqa": Source("allenai--openbookqa/main", _lettered),
    "arc_easy": Source("allenai--ai2_arc/ARC-Easy", _lettered),
}


def real_rows(data: Path, name: str, longest: int = 110) -> list[dict[str, Any]]:
    """Return the short rows of a benchmark's training split, in a fixed random order."""
    import pyarrow.parquet as pq

    made = []
    for row in pq.read_table(data / SOURCES[name].place / "train.parquet").to_pylist():
        try:
            question, choices, answer = SOURCES[name].ask(row)
        except (ValueError, KeyError):  # an answer that is none of the choices
            continue
        if len(question) + max(map(len, choices)) <= longest:
            made.append({"question": question.strip(), "choices": choices, "answer": answer})
    np.random.default_rng(0).shuffle(made)  # type: ignore[arg-type]
    return made


def zoo_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a zoo benchmark."""
    zoo.write_task_files(folder / "tasks")
    files = [
        folder / "tasks" / name / f"{split}.jsonl" for split in ("train", "validation", "test")
    ]
    made = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    np.random.default_rng(0).shuffle(made)  # type: ignore[arg-type]
    return [{key: row[key] for key in ("question", "choices", "answer")} for row in made]


def files(
    given: argparse.Namespace,
) -> Iterator[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]:
    """Yield a name, the rows of a file, and rows held out; benchmarks take turns, and no row is in two files."""
    names = (
        [b.name for b in zoo.BENCHMARKS if b.kind == "choice"]
        if given.data is None
        else list(SOURCES)
    )
    rows = {
        name: zoo_rows(given.out, name) if given.data is None else real_rows(given.data, name)
        for name in names
    }
    times = math.ceil(given.files / len(names))
    for number in range(given.files):
        name, turn = names[number % len(names)], number // len(names)
        share = rows[name][turn::times]
        yield f"{name}-{turn}", share[: given.rows], share[given.rows : given.rows + given.held]


# --- models ---------------------------------------------------------------------------------------------------------


def candidates(given: argparse.Namespace) -> dict[str, Path]:
    """Lay out the zoo models; for real rows with a tokenizer that reads them."""
    if given.models:
        return {path.name: path.resolve() for path in given.models}
    folders = zoo.write_model_folders(given.out / "models", list(POOL))
    if given.data is None:
        return folders
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    texts = [
        f"{row['question']} {' '.join(row['choices'])}"
        for n in SOURCES
        for row in real_rows(given.data, n)[:500]
    ]
    size = json.loads((folders[POOL[0]] / "config.json").read_text())["vocab_size"]
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    pieces.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    for folder in folders.values():
        pieces.save(str(folder / "tokenizer.json"))
    return folders


# --- the answer and the truth ---------------------------------------------------------------------------------------


def potentia(*words: object) -> dict[str, Any]:
    """Run the command in this process, where everything is imported, and read its JSON."""
    from potentia.cli import main as command

    said, sys.argv = io.StringIO(), ["potentia", *map(str, words), "--json"]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()) as problems:
        try:
            command()
        except SystemExit as ended:
            if ended.code:
                raise SystemExit(
                    f"{' '.join(sys.argv)}: exit {ended.code}\n{problems.getvalue()[-2000:]}"
                ) from None
    return json.loads(said.getvalue())  # type: ignore[no-any-return]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as a file of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def true_outcomes(
    given: argparse.Namespace,
    folder: Path,
    rows: list[Any],
    held: list[Any],
    models: dict[str, Path],
) -> dict[str, dict[int, float]]:
    """Return every candidate's outcomes on the rows held out, tuned on what the command tunes on.

    The finalists' own adapters are asked; those that went out before are tuned here.
    """
    from potentia.run import run_study
    from potentia.store import Store
    from potentia.study import make_study
    from potentia.tasks import load

    seen = load(str(folder / "rows.jsonl"), seed=given.seed)
    for split in ("train", "validation"):
        write(folder / "truth" / f"{split}.jsonl", [rows[doc.id] for doc in seen.documents(split)])
    write(folder / "truth" / "test.jsonl", held)
    final: dict[str, dict[str, str]] = {}
    with Store.open(str(folder / "selected" / "select.db"), readonly=True) as store:
        for cell in store.cells.read(study="select-final"):
            adapter = store.adapters.find(cell.key)
            final[Path(cell.model).name] = {"adapter": str(adapter)} if adapter is not None else {}
    found: dict[str, dict[int, float]] = {}
    for name, protocol, chosen in (
        ("finalists", "direct", [m for m in models if m in final]),
        ("others", "train_before_test", [m for m in models if m not in final]),
    ):
        if not chosen:
            continue
        study = make_study(
            {
                "name": name,
                "models": [{"name": m, "path": str(models[m]), **final.get(m, {})} for m in chosen],
                "tasks": [{"name": "truth", "file": str(folder / "truth")}],
                "protocols": [protocol],
                "tuning": zoo_tuning(given.rates, epochs=given.epochs),
                "seed": given.seed,
                "device": "cpu",
                "store": str(folder / "truth.db"),
            }
        )
        result = run_study(study)
        if result.interrupted or result.failed:
            raise SystemExit(f"no truth: {result.reasons or 'stopped'}")
        with Store.open(study.store, readonly=True) as store:
            for cell in store.cells.read(study=result.study):
                found[cell.model] = {
                    item.doc_id: item.value for item in store.cells.read_items(cell.key)
                }
    return found


def paired(outcomes: dict[str, dict[int, float]]) -> np.ndarray:
    """Values of the documents that every candidate has: (models, documents)."""
    common = sorted(set.intersection(*(set(part) for part in outcomes.values())))
    return np.array([[part[d] for d in common] for part in outcomes.values()])


def true_chances(outcomes: dict[str, dict[int, float]]) -> dict[str, float]:
    """Return each model's chance to be the best by the rows held out; flat prior, documents drawn."""
    table = paired(outcomes)
    weights = np.random.default_rng(1).dirichlet(np.ones(table.shape[1]), size=DRAWS)
    drawn = weights @ table.T
    best = drawn >= drawn.max(axis=1, keepdims=True) - 1e-12
    return dict(
        zip(outcomes, (best / best.sum(axis=1, keepdims=True)).mean(axis=0).tolist(), strict=True)
    )


def judge(
    given: argparse.Namespace, name: str, rows: Any, held: Any, models: Any
) -> dict[str, Any]:
    """Ask the command, find the truth, compare."""
    folder = given.out / name
    note = folder / "found.json"
    if note.exists():
        return json.loads(note.read_text())  # type: ignore[no-any-return]
    write(folder / "rows.jsonl", rows)
    tuning = {
        "tuning": zoo_tuning(given.rates, epochs=given.epochs),
        "models": ["x"],
        "tasks": ["y"],
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tuning))
    began = time.monotonic()
    said = potentia(
        "select",
        "--data",
        folder / "rows.jsonl",
        "--models",
        *models.values(),
        "--study",
        folder / "recipe.yaml",
        "--device",
        "cpu",
        "--seed",
        given.seed,
        "-o",
        folder / "selected",
    )
    seconds = time.monotonic() - began
    outcomes = true_outcomes(given, folder, rows, held, models)
    chances = true_chances(outcomes)
    scores = {model: float(np.mean(list(values.values()))) for model, values in outcomes.items()}
    named = Path(said["best"]).name
    best = max(scores, key=lambda model: scores[model])
    both = paired({"best": outcomes[best], "named": outcomes[named]})
    gap, error = (
        float((both[0] - both[1]).mean()),
        float((both[0] - both[1]).std(ddof=1)) / math.sqrt(both.shape[1]),
    )
    stated = {Path(s["model"]).name: s["p_best"] or 0.0 for s in said["standings"]}
    found = {
        "file": name,
        "named": named,
        "best": best,
        "stated": said["p_best"],
        "true": chances[named],
        "loss": scores[best] - scores[named],
        "noise": bool(abs(gap) <= 1.96 * error),
        "tie": [Path(model).name for model in (said["best"], *said["close"])],
        "in_tie": best in [Path(model).name for model in (said["best"], *said["close"])],
        "spread": scores[best] - min(scores.values()),
        "seconds": seconds,
        "every": {model: [p, chances[model]] for model, p in stated.items()},
    }
    note.write_text(json.dumps(found))
    return found


def main() -> int:
    """Make files, ask, compare, sum up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of splits of real benchmarks")
    parser.add_argument(
        "--models", type=Path, nargs="*", default=[], help="candidates in place of zoo models"
    )
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--rows", type=int, default=320, help="of a file")
    parser.add_argument("--held", type=int, default=450, help="rows of the truth")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rates", type=float, nargs="*", default=[3e-3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("select-bench"),
        help="what is found there is not done again",
    )
    given = parser.parse_args()
    given.out = given.out.resolve()
    models = candidates(given)
    print(
        f"{'file':18}{'named':22}{'best':22}{'stated':>7}{'true P':>7}{'loss':>7}{'spread':>7}{'s':>5}  tie"
    )
    found = []
    for number, (name, rows, held) in enumerate(files(given)):
        chosen = np.random.default_rng(number).permutation(sorted(models))[:CANDIDATES]
        one = judge(given, name, rows, held, {model: models[model] for model in chosen.tolist()})
        found.append(one)
        tie = f"of {len(one['tie'])}" if len(one["tie"]) > 1 else ""
        print(
            f"{one['file']:18}{one['named']:22}{one['best']:22}{one['stated']:>7.2f}{one['true']:>7.2f}"
            f"{one['loss']:>7.3f}{one['spread']:>7.3f}{one['seconds']:>5.0f}  {tie}",
            flush=True,
        )
    return sum_up(found)


def sum_up(found: list[dict[str, Any]]) -> int:
    """Say how often the winner is right, and whether the probabilities are."""
    stated, true = (np.array([one[key] for one in found]) for key in ("stated", "true"))
    count = len(found)
    right = sum(one["named"] == one["best"] for one in found)
    noise = sum(one["noise"] for one in found)
    gap, error = (
        float((stated - true).mean()),
        float((stated - true).std(ddof=1) / math.sqrt(count)) if count > 1 else 0.0,
    )
    print(
        f"\n{count} files: the winner is the best in {right}, within noise of the best in {noise}; "
        f"mean loss {np.mean([one['loss'] for one in found]):.3f} of a mean spread of "
        f"{np.mean([one['spread'] for one in found]):.3f}"
    )
    print(
        f"stated P(best) {stated.mean():.3f}, true {true.mean():.3f}: difference {gap:+.3f} ± {error:.3f}"
    )
    pairs = np.array([pair for one in found for pair in one["every"].values()])
    for low, high in ((0.0, 0.1), (0.1, 0.3), (0.3, 0.6), (0.6, 0.9), (0.9, 1.01)):
        inside = pairs[(pairs[:, 0] >= low) & (pairs[:, 0] < high)]
        if len(inside):
            spread = inside[:, 1].std() / math.sqrt(len(inside))
            means = (
                f"stated {inside[:, 0].mean():.3f}, true {inside[:, 1].mean():.3f} ± {spread:.3f}"
            )
            print(
                f"  stated {low:.1f} to {min(high, 1.0):.1f}: {len(inside):3} models, mean {means}"
            )
    ties = [one for one in found if len(one["tie"]) > 1]
    held = sum(one["in_tie"] for one in ties)
    alone = [one for one in found if len(one["tie"]) < 2]
    wrong = sum(not one["noise"] for one in alone)
    print(
        f"ties told: {len(ties)}, with the best among them in {held}; winners alone: {len(alone)}, of them wrong "
        f"beyond noise {wrong}; mean time {np.mean([one['seconds'] for one in found]):.0f} s"
    )
    return int(abs(gap) > 2 * max(error, 0.02))


if __name__ == "__main__":
    sys.exit(main())
