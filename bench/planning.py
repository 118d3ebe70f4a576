"""Planning on published scores: what a share of the cost tells of the ranking, whether intervals and stops hold.

    python bench/planning.py --data ../shared/data/published --minutes 20 --workers 2 --out planning.jsonl
    python bench/planning.py --summary planning.jsonl
    python bench/planning.py --timing

Scores of new models are hidden; what the policy measures is shown, wave by wave, as in an adaptive run. Matrices:
*published*, 61 models × 24 tasks after train-before-test; *test task*, 52 base models × 40 tasks after tuning on
auxiliary data (leaderboard subtasks, MMLU, GSM8K); *real*, ten models × 12 tasks, five of
them copies. Questions: *half*, half of the models are known and the others new; *lineage*, the same with a base model
and its instruct on one side; *family*, one family is new (τ over pairs with a new model); *cold*, up to 30 models and
no history. A cell costs what a user pays, in tokens × parameters of a forward pass: every rate and epoch of training
(three passes a token, at most 50,000 examples) and validation, the test, and the direct pass; of the test-task matrix,
documents × parameters. *Stops*: a run that looks after every wave ends at the confidence asked for; is the model that
it names the best? Beside: random cells and the cheapest task first, both completed by the same model; and *pooled*, the
τ of partial pooling (task + model + a slope on the direct score, each drawn to its mean) on the cells that ours chose.

Splits have seeds from 4,000 on: those from 2,000 on were used to choose the planner's constants, on both matrices, and
those from 3,000 on were looked at before that choice (``--first`` goes back to them). Every answer is a line of the
file as it is done; a part of the run covers all questions evenly.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import os
import re
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

from as_they_go import write_lines
from potentia import read
from potentia.analysis.completion import Completion, complete_matrix
from potentia.analysis.completion.features import Kinship
from potentia.analysis.planning import CellCosts, choose_cells
from potentia.analysis.rankings.decide import decide_ranking
from potentia.analysis.stats.significance import estimate_test_sizes
from potentia.analysis.stats.standardize import mean_z_scores
from potentia.facts import ModelTable, read_facts
from potentia.facts import models as known_models
from potentia.facts.benchmarks import benchmarks
from potentia.values.scores import Floats, ScoreMatrix

LEVELS = (0.02, 0.05, 0.1)
WAVE = 12
CONFIDENCE = 0.9
MOST_SHARE = 0.5  # of the cost, at which a run that did not stop is given up
RATES, EPOCHS, CAP, VALIDATED, TESTED = 3, 3, 50_000, 1_000, 10_000  # of a study by default
COLD = 30
POLICIES = ("ours", "random", "cheapest")
COVER = (0.5, 0.8, 0.95)
FIRST_SEED = 4_000
# Tokens of a training example, four characters each: of the data's first 300 rows; the last six by usual length.
TOKENS = {
    "arc_challenge": 44,
    "arc_easy": 38,
    "boolq": 166,
    "cola": 26,
    "commonsense_qa": 40,
    "gsm8k": 136,
    "headqa_en": 29,
    "mathqa": 48,
    "mrpc": 80,
    "nq_open": 23,
    "openbookqa": 20,
    "piqa": 41,
    "rte": 90,
    "sciq": 110,
    "social_iqa": 34,
    "sst2": 29,
    "wic": 48,
    "winogrande": 27,
    "mnli": 46,
    "qnli": 60,
    "qqp": 45,
    "anli_r1": 110,
    "hellaswag": 95,
    "medmcqa": 55,
}

# What must hold: τ of all pairs with a new model by share of the cost; at 2 % the headline's, intervals of pairs and
# what is said of them; how often a stop is right, of so many.
BARS = {("published", "half", 0.02): 0.936, ("published", "half", 0.05): 0.948}
HEADLINE, OFF, SAID, RIGHT, STOPS = 0.93, 0.03, 0.03, 0.87, 100
# What is asked, in turn: matrix, kind of question, what for.
QUESTIONS = (
    ("published", "half", "stop"),
    ("published", "half", "ours"),
    ("published", "cold", "ours"),
    ("published", "half", "stop"),
    ("published", "cold", "stop"),
    ("test task", "half", "ours"),
    ("test task", "cold", "ours"),
    ("published", "half", "ours"),
    ("published", "cold", "ours"),
    ("test task", "half", "stop"),
    ("real", "cold", "ours"),
    ("published", "lineage", "ours"),
    ("test task", "cold", "stop"),
    ("published", "half", "random"),
    ("published", "half", "cheapest"),
    ("published", "family", "ours"),
)


@dataclass(frozen=True)
class Matrix:
    """Scores with the cost of every cell."""

    tuned: ScoreMatrix
    direct: ScoreMatrix
    costs: Floats  # (models, tasks)
    facts: ModelTable

    @property
    def kinship(self) -> Kinship:
        """Families and lineages of the models."""
        return Kinship.look_up(self.tuned.models, self.facts)


@cache
def load(data: str, name: str) -> Matrix:
    """Read one of the matrices."""
    return {"published": published, "test task": test_task, "real": real}[name](Path(data))


def published(folder: Path) -> Matrix:
    """61 × 24 after train-before-test; corpora are direct scores alone."""
    scores = read(folder / "train_before_test_scores.csv").scores
    tuned = scores["train_before_test"].benchmarks()
    sizes, tested = {b.task: b.train_size for b in benchmarks()}, estimate_test_sizes(tuned)
    lanes = RATES * EPOCHS
    tokens = np.array(
        [
            TOKENS[t]
            * (
                lanes * (3 * min(sizes[t] or CAP, CAP) + VALIDATED)
                + 2 * min(tested.get(t, TESTED), TESTED)
            )
            for t in tuned.tasks
        ]
    )
    return _priced(tuned, scores["direct"], tokens, known_models())


def real(folder: Path) -> Matrix:
    """Ten real models, five of them copies that saw tasks before."""
    scores = read(folder.parent / "real_study" / "scores.csv").scores
    tuned = scores["train_before_test"].benchmarks()
    table = read_facts(folder.parent / "real_study" / "facts.csv")
    return _priced(tuned, scores["direct"], np.array([TOKENS[t] for t in tuned.tasks]), table)


def test_task(folder: Path) -> Matrix:
    """52 base models on leaderboard subtasks, MMLU and GSM8K, before and after tuning on auxiliary data."""
    cells: dict[str, dict[tuple[str, str], tuple[float, float]]] = {"direct": {}, "adjust": {}}
    with tarfile.open(folder / "test_task_evaluations.tar.xz") as archive:
        for member in archive:
            match = re.search(
                r"new_evals/(base|mmluaux|gsm8kaux)/(.+)-leaderboard_(\w+)\.json$", member.name
            )
            file = archive.extractfile(member) if match else None
            if (
                not match
                or not file
                or match[3] not in ("bbh", "gpqa", "musr", "mmlu_pro", "math_hard")
            ):
                continue
            results = json.load(file)["results"]
            for task, result in results.items():
                if len(results) > 1 and task == f"leaderboard_{match[3]}":
                    continue  # the mean of its subtasks
                value = next(
                    (result[m] for m in result if re.match(r"(acc_norm|acc|exact_match),", m)), None
                )
                error = next(
                    (
                        result[m]
                        for m in result
                        if re.match(r"(acc_norm|acc|exact_match)_stderr,", m)
                    ),
                    math.nan,
                )
                if isinstance(value, float):
                    kind = "direct" if match[1] == "base" else "adjust"
                    cells[kind][match[2], task] = (
                        value,
                        float(error) if isinstance(error, float) else math.nan,
                    )
    stages = {("base", "mmlu"): "direct", ("base", "gsm8k"): "direct"}
    stages |= {("tuned_mc_3ep", "mmlu"): "adjust", ("tuned_math_3ep", "gsm8k"): "adjust"}
    with (folder / "test_task_training_scores.csv").open(encoding="utf-8") as table:
        for row in csv.DictReader(table):
            kind = stages.get((row["stage"], row["benchmark"]))
            if kind and row["metric"].partition("|")[0] in ("acc", "exact_match"):
                cells[kind][row["model"], row["benchmark"]] = (
                    float(row["value"]),
                    float(row["stderr"] or "nan"),
                )
    tasks = sorted({t for _, t in cells["adjust"]} & {t for _, t in cells["direct"]})
    names = sorted({m for m, _ in cells["adjust"]})
    names = [m for m in names if all((m, t) in cells[k] for k in cells for t in tasks)]
    tuned, direct = (
        ScoreMatrix.build(
            names,
            tasks,
            [[cells[k][m, t][0] for t in tasks] for m in names],
            stderr=[[cells[k][m, t][1] for t in tasks] for m in names],
            protocol=k,
        )
        for k in ("adjust", "direct")
    )
    sizes = estimate_test_sizes(tuned)
    documents = np.array([sizes.get(t, 14_042.0 if t == "mmlu" else 250.0) for t in tasks])
    return _priced(tuned, direct, documents, read_facts(folder / "test_task_training_models.csv"))


def _priced(
    tuned: ScoreMatrix, direct: ScoreMatrix, cost_of_each: Floats, table: ModelTable
) -> Matrix:
    size = np.array(
        [facts.parameters if (facts := table.find(m)) else np.nan for m in tuned.models]
    )
    size = np.where(np.isfinite(size), size, np.nanmedian(size))
    return Matrix(tuned, direct, np.outer(size, cost_of_each), table)


@dataclass(frozen=True)
class Case:
    """One question: which rows are asked about, which of them are new, and what else is known."""

    seed: int
    rows: npt.NDArray[np.intp]  # of the study
    new: npt.NDArray[np.bool_]  # (rows,)
    history: npt.NDArray[np.intp]


def case(data: Matrix, kind: str, seed: int) -> Case:
    """Return a question of one kind."""
    count = len(data.tuned.models)
    none = np.zeros(0, dtype=np.intp)
    rng = np.random.default_rng(seed)
    if kind == "family":
        labels = np.array(data.kinship.family)
        names = np.unique(labels)
        return Case(seed, np.arange(count), labels == names[seed % len(names)], none)
    if kind == "lineage":
        labels = np.array(data.kinship.lineage)
        order = rng.permutation(np.unique(labels))
        sizes = np.cumsum([(labels == name).sum() for name in order])
        new = np.isin(labels, order[: int(np.searchsorted(sizes, count // 2)) + 1])
    else:
        new = np.isin(
            np.arange(count), rng.permutation(count)[: count // 2 if kind == "half" else COLD]
        )
    rows = np.flatnonzero(new)
    return Case(
        seed, rows, np.ones(len(rows), dtype=bool), none if kind == "cold" else np.flatnonzero(~new)
    )


class Simulated:
    """An adaptive run on scores that are known: what it has seen, and what that cost."""

    def __init__(self, data: Matrix, case_asked: Case) -> None:
        names = data.tuned.models
        self.asked = case_asked
        self.study = data.tuned.select(models=[names[i] for i in case_asked.rows])
        self.past = (
            data.tuned.select(models=[names[i] for i in case_asked.history])
            if len(case_asked.history)
            else None
        )
        self.direct = data.direct
        self.price, self.truth = data.costs[case_asked.rows], mean_z_scores(self.study.oriented())
        self.seen = np.repeat(~case_asked.new[:, None], len(self.study.tasks), axis=1)
        self.total, self.spent = float(self.price[case_asked.new].sum()), 0.0
        self.finish = partial(
            complete_matrix, direct=data.direct, history=self.past, facts=data.facts
        )

    def known(self) -> ScoreMatrix:
        """What was seen so far."""
        hide = partial(np.where, self.seen)
        return replace(
            self.study,
            values=hide(self.study.values, np.nan),
            stderr=hide(self.study.stderr, np.nan),
        )

    def measure(self, cells: Sequence[tuple[int, int]]) -> None:
        """Look at these cells."""
        for i, j in cells:
            if not self.seen[i, j]:
                self.seen[i, j] = True
                self.spent += float(self.price[i, j])

    def wave(self, done: Completion, max_cells: int = WAVE, **ends: Any) -> bool:
        """Take the next cells; False where there are none to take."""
        plan = choose_cells(
            done,
            CellCosts(self.study.models, self.study.tasks, self.price),
            max_cells=max_cells,
            **ends,
        )
        self.measure(
            [(self.study.models.index(m), self.study.tasks.index(t)) for m, t in plan.cells]
        )
        return bool(plan.cells) and not plan.settled


def budgets(data: Matrix, case_asked: Case, policy: str) -> list[dict[str, float]]:
    """Follow one policy through the shares of the cost; what is known at each."""
    run = Simulated(data, case_asked)
    points = []
    done = run.finish(run.known(), check=False, draws=20)
    for level in LEVELS:
        if policy == "ours":
            while run.wave(done, budget=level * run.total - run.spent):
                done = run.finish(run.known(), fitted=done.fitted, draws=20)
        else:
            for i, j in _order(policy, run.price, np.random.default_rng(case_asked.seed)):
                if run.price[i, j] <= level * run.total - run.spent:
                    run.measure([(i, j)])
                elif policy == "cheapest" and not run.seen[i, j]:
                    break
        done = run.finish(run.known())
        points.append({"share": level, **judged(done, run)})
    return points


def judged(done: Completion, run: Simulated) -> dict[str, float]:
    """τ of the completion and of the headline, cells' and pairs' intervals, what was said of pairs, P(best)."""
    new, unseen = run.asked.new, ~run.seen
    z = done.fitted.scale.standardize(run.study.values)[unseen]
    sd = np.sqrt(done.posterior.variance[unseen])
    reach = [done.fitted.calibration.distance(c) for c in COVER]
    inside = {
        f"cells {c:.0%}": float(np.mean(np.abs(z - done.posterior.mean[unseen]) <= r * sd))
        for c, r in zip(COVER, reach, strict=True)
    }
    best = int(np.argmax(done.p_best))
    return {
        "tau": pair_tau(done.aggregate, run.truth, new),
        "expected": done.agreement.value,
        "headline": headline(run),
        "pooled": pair_tau(pool_scores(run), run.truth, new),
        **inside,
        **pairs(done, run.truth, new),
        "p_best": float(done.p_best[best]),
        "best": float(run.truth[best] == run.truth.max()),
        "cells": float(run.seen[new].sum()),
    }


def headline(run: Simulated) -> float:
    """τ of the ranking that a store of all these cells is headed by, over the pairs with a new model."""
    known_matrix, past = run.known(), run.past
    oriented = run.study.oriented()
    if past is not None:
        stacked = {
            k: np.vstack([getattr(known_matrix, k), getattr(past, k)])
            for k in ("values", "stderr", "n")
        }
        known_matrix = replace(known_matrix, models=(*known_matrix.models, *past.models), **stacked)
        oriented = np.vstack([oriented, past.oriented()])
    new = np.concatenate(
        [run.asked.new, np.zeros(len(known_matrix.models) - len(run.asked.new), dtype=bool)]
    )
    is_known = np.isfinite(known_matrix.values)
    rows = np.flatnonzero(
        is_known.any(axis=1)
    )  # a model or a task without any score is in no store
    tasks = [
        t for t, is_seen in zip(known_matrix.tasks, is_known.any(axis=0), strict=True) if is_seen
    ]
    complete_matrix = known_matrix.select(
        models=[known_matrix.models[k] for k in rows], tasks=tasks
    )
    if len(rows) < 2 or not new[rows].any():
        return math.nan
    done = run.finish(complete_matrix, history=None, check=False, draws=20)
    ranking = decide_ranking(
        complete_matrix,
        cell_sampler=done.draw_scores,
        draw_count=1_000,
    )
    scores = dict(zip(ranking.models, ranking.scores.tolist(), strict=True))
    return pair_tau(
        np.array([scores[m] for m in complete_matrix.models]),
        mean_z_scores(oriented)[rows],
        new[rows],
    )


def pool_scores(run: Simulated) -> Floats:
    """Return the mean standardised score of every model by partial pooling of what was seen.

    score = mean + slope × direct score + task + model, where tasks and models are normal about zero; the variances are
    estimated by EM. Scores count by how far apart models are on a task, before tuning where that is all that is known.
    """
    study = run.known()
    rows = study.oriented()
    names = study.models
    if run.past is not None:
        rows = np.vstack([rows, run.past.oriented()])
        names = (*names, *run.past.models)
    direct = run.direct.select(models=list(names), tasks=list(study.tasks)).oriented()
    level = np.nanmean(direct, axis=0)
    spread = np.nanstd(direct, axis=0) if run.past is None else np.nanstd(rows, axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    scores = (rows - level) / spread
    before = np.nan_to_num((direct - level) / spread)
    model, task = np.nonzero(np.isfinite(scores))
    if not len(model):
        return np.asarray(before[: len(study.models)].mean(axis=1))
    observed = scores[model, task]
    design = np.zeros((len(model), 2 + len(names) + len(study.tasks)))
    design[:, 0] = 1.0
    design[:, 1] = before[model, task]
    design[np.arange(len(model)), 2 + model] = 1.0
    design[np.arange(len(model)), 2 + len(names) + task] = 1.0
    kinds = (slice(2, 2 + len(names)), slice(2 + len(names), None))
    variances = np.full(design.shape[1], 0.25)
    variances[:2] = 1e6
    noise = 0.25
    for _ in range(30):
        covariance = np.linalg.inv(design.T @ design / noise + np.diag(1 / variances))
        effects = covariance @ design.T @ observed / noise
        for kind in kinds:
            variances[kind] = np.mean(effects[kind] ** 2 + np.diag(covariance)[kind])
        residuals = observed - design @ effects
        noise = float(np.mean(residuals**2) + np.trace(design @ covariance @ design.T) / len(model))
    predicted = effects[0] + effects[1] * before
    predicted += effects[kinds[0], None] + effects[kinds[1]]
    filled = np.where(np.isfinite(scores), scores, predicted)
    return np.asarray(filled[: len(study.models)].mean(axis=1))


def stop(data: Matrix, case_asked: Case) -> list[dict[str, float]]:
    """Run until P(best) is high enough, looking after every wave; see whether the model named is the best."""
    run, waves = Simulated(data, case_asked), 0
    done = run.finish(run.known())
    while run.wave(
        done, 2 * len(run.study.models), confidence=CONFIDENCE, top=1
    ):  # as many as ``run --adaptive``
        waves += 1
        if run.spent > MOST_SHARE * run.total:
            return []
        done = run.finish(run.known())
    best = int(np.argmax(done.p_best))
    stop_facts = {
        "p_best": float(done.p_best[best]),
        "best": float(run.truth[best] == run.truth.max()),
    }
    return [
        {
            **stop_facts,
            "near": float(in_noise(run, best)),
            "waves": float(waves),
            "spent": run.spent / run.total,
        }
    ]


def in_noise(run: Simulated, named: int) -> bool:
    """Whether a model is the first of the finished table, or no further below it than test noise reaches (95 %)."""
    first = int(np.argmax(run.truth))
    spread = run.study.values.std(axis=0)
    variance = np.nansum(
        (run.study.stderr[[first, named]] / np.where(spread > 0, spread, np.nan)) ** 2
    )
    return bool(
        run.truth[first] - run.truth[named] <= 1.96 * math.sqrt(variance) / len(run.study.tasks)
    )


def _order(policy: str, price: Floats, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Cells in the order of a policy that never looks at scores."""
    cells = np.argwhere(np.isfinite(price))
    if policy == "random":
        cells = rng.permutation(cells)
    else:
        cells = cells[np.lexsort((price[tuple(cells.T)], price.sum(axis=0)[cells[:, 1]]))]
    return [(int(i), int(j)) for i, j in cells]


def pairs(done: Completion, truth: Floats, new: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Coverage of the intervals of differences of two models; said and right of those said 0.7–0.995, and log loss."""
    first, second = np.triu_indices(len(truth), 1)
    keep = new[first] | new[second]
    gap = (done.draws[:, first] - done.draws[:, second])[:, keep]
    real = (truth[first] - truth[second])[keep]
    ends = [np.quantile(gap, [0.5 - c / 2, 0.5 + c / 2], axis=0) for c in COVER]
    pair_facts = {
        f"pairs {c:.0%}": float(np.mean((a <= real) & (real <= b)))
        for c, (a, b) in zip(COVER, ends, strict=True)
    }
    chance = (gap > 0).mean(axis=0)
    claimed, right = np.maximum(chance, 1 - chance), (chance > 0.5) == (real > 0)
    open_ = (claimed >= 0.7) & (claimed <= 0.995)
    loss = -np.log(np.clip(np.where(real > 0, chance, 1 - chance), 1e-3, 1.0))
    return pair_facts | {
        "said": float(claimed[open_].mean()),
        "right": float(right[open_].mean()),
        "loss": float(loss.mean()),
    }


def pair_tau(a: Floats, b: Floats, new: npt.NDArray[np.bool_]) -> float:
    """Kendall's τ over the pairs with at least one new model."""
    first, second = np.triu_indices(len(a), 1)
    keep = new[first] | new[second]
    return float((np.sign(a[first] - a[second]) * np.sign(b[first] - b[second]))[keep].mean())


# --- runs and their sum ---------------------------------------------------------------------------------------------


def questions(
    chosen: Sequence[tuple[str, str, str]], first: int
) -> Iterator[tuple[str, str, str, int]]:
    """Yield questions without end, all kinds in turn, each with a split of its own."""
    count: dict[tuple[str, str, str], int] = {}
    for question in itertools.cycle(chosen):
        seed = count[question] = count.get(question, first - 1) + 1
        if question[1] != "family" or seed < first + 6:
            yield *question, seed


def answer(data: str, question: tuple[str, str, str, int]) -> str:
    """Answer one question; return it as a line of JSON."""
    name, kind, question_text, seed = question
    matrix, began = load(data, name), time.process_time()
    case_asked = case(matrix, kind, seed)
    result = (
        stop(matrix, case_asked)
        if question_text == "stop"
        else budgets(matrix, case_asked, question_text)
    )
    line = {
        "matrix": name,
        "kind": kind,
        "what": question_text,
        "seed": seed,
        "seconds": time.process_time() - began,
    }
    return json.dumps(line | {"found": result})


def run(args: argparse.Namespace) -> None:
    """Answer questions until the time is over."""
    chosen = [
        q for q in QUESTIONS if q[0] in args.matrices and q[1] in args.kinds and q[2] in args.what
    ]
    write_lines(
        partial(answer, args.data),
        questions(chosen, args.first),
        args.out,
        workers=args.workers,
        minutes=args.minutes,
    )


def summary(path: str) -> None:
    """Print the means of every kind of question, ± their standard errors over splits."""
    lines = [
        json.loads(line)
        for line in Path(path).read_text(encoding="utf-8").splitlines()
        if line.endswith("}")
    ]
    print(f"{len(lines)} answers in {sum(line['seconds'] for line in lines) / 60:.0f} core-minutes")
    all_stops: list[Mapping[str, float]] = []  # stops
    for matrix, kind, question_text in dict.fromkeys(QUESTIONS):
        here = [
            line
            for line in lines
            if (line["matrix"], line["kind"], line["what"]) == (matrix, kind, question_text)
        ]
        entries = [entry for line in here for entry in line["found"]]
        if question_text == "stop" and here:
            all_stops += entries
            print(f"\n{matrix}, {kind}: {told_of_stops(entries)} of {len(here)} runs")
            continue
        for level in LEVELS if here else ():
            rows = [entry for entry in entries if entry["share"] == level]
            show(
                f"{matrix}, {kind}, {question_text} at {level:.0%}",
                rows,
                BARS.get((matrix, kind, level)) if question_text == "ours" else None,
            )
            if question_text == "ours" and kind in ("half", "cold") and level == LEVELS[0]:
                show_bars(rows, matrix == "published")
    right = float(np.mean([entry["best"] for entry in all_stops])) if all_stops else math.nan
    verdict = "held" if right >= RIGHT and len(all_stops) >= STOPS else "MISSED"
    print(f"\nall: {told_of_stops(all_stops)} (bar {RIGHT:g} of {STOPS}: {verdict})")


def told_of_stops(stops: Sequence[Mapping[str, float]]) -> str:
    """Say how often stops were right."""
    if not stops:
        return "no stop"
    right, claimed, spent, waves = (
        float(np.mean([stop_facts[k] for stop_facts in stops]))
        for k in ("best", "p_best", "spent", "waves")
    )
    error = math.sqrt(right * (1 - right) / len(stops))
    many = f"{sum(stop_facts['best'] for stop_facts in stops):.0f} of {len(stops)} stops at {CONFIDENCE:g} right"
    many += f", {sum(stop_facts['near'] for stop_facts in stops):.0f} the first but for test noise"
    return f"{many} ({right:.3f} ± {error:.3f}, said {claimed:.3f}, after {spent:.1%} of the cost, {waves:.1f} waves)"


def show(title: str, rows: Sequence[Mapping[str, float]], bar: float | None) -> None:
    """Print the means of one question at one share of the cost."""
    if not rows:
        return
    mean = {k: float(np.nanmean([row[k] for row in rows])) for k in rows[0]}
    error = {
        k: float(np.nanstd([row[k] for row in rows], ddof=1) / math.sqrt(len(rows)))
        if len(rows) > 1
        else math.nan
        for k in mean
    }
    verdict = "" if bar is None else f" (bar {bar:g}: {'held' if mean['tau'] >= bar else 'MISSED'})"
    print(f"\n{title}: {len(rows)} splits, {mean['cells']:.0f} cells")
    print(
        f"  τ {mean['tau']:.3f} ± {error['tau']:.3f}{verdict}, expected {mean['expected']:.3f}, "
        f"headline τ {mean['headline']:.3f} ± {error['headline']:.3f}, "
        f"pooled τ {mean['pooled']:.3f} ± {error['pooled']:.3f}"
    )
    for kind in ("pairs", "cells"):
        print(
            f"  {kind} 50/80/95 %: "
            + " / ".join(
                f"{mean[f'{kind} {c:.0%}']:.3f} ± {error[f'{kind} {c:.0%}']:.3f}" for c in COVER
            )
        )
    print(
        f"  pairs said 0.7–0.995: said {mean['said']:.3f}, right {mean['right']:.3f} ± {error['right']:.3f}; "
        f"log loss {mean['loss']:.3f}; P(best) {mean['p_best']:.2f}, right {mean['best']:.2f}"
    )


def show_bars(rows: Sequence[Mapping[str, float]], headline: bool) -> None:
    """Say which bars the means hold: intervals of pairs, what is said of pairs, the headline."""
    mean = {k: float(np.nanmean([row[k] for row in rows])) for k in (rows[0] if rows else ())}
    if not mean:
        return
    bars = {f"pairs {c:.0%} ± {OFF:g}": abs(mean[f"pairs {c:.0%}"] - c) <= OFF for c in COVER}
    bars[f"said and right ± {SAID:g}"] = abs(mean["said"] - mean["right"]) <= SAID
    if headline:
        bars[f"headline τ ≥ {HEADLINE:g}"] = mean["headline"] >= HEADLINE
    print(
        "  bars: "
        + ", ".join(f"{name} {'held' if is_held else 'MISSED'}" for name, is_held in bars.items())
    )


def timing() -> bool:
    """Time a fit and a step on 61 × 24 and 500 × 40 made-up scores, half of the rows known, in seconds of one core."""
    good = True
    for models, tasks, limit in ((61, 24, 10.0), (500, 40, 60.0)):
        rng = np.random.default_rng(0)
        ability = rng.normal(size=(models, 1))
        values = 1 / (1 + np.exp(-(ability + 0.5 * rng.normal(size=(models, tasks)))))
        names, columns = [f"m{i}" for i in range(models)], [f"t{j}" for j in range(tasks)]
        direct = ScoreMatrix.build(names, columns, values * 0.8, protocol="direct")
        values[models // 2 :, tasks // 4 :] = np.nan
        tuned = ScoreMatrix.build(names, columns, values, protocol="train_before_test")
        start = time.process_time()
        done = complete_matrix(tuned, direct=direct)
        fit = time.process_time() - start
        start = time.process_time()
        again = complete_matrix(tuned, direct=direct, fitted=done.fitted)
        update = time.process_time() - start
        start = time.process_time()
        choose_cells(
            again, CellCosts(tuned.models, tuned.tasks, np.ones(values.shape)), max_cells=WAVE
        )
        step = time.process_time() - start
        ok = update + step <= limit and fit + step <= 60.0
        good &= ok
        print(
            f"{models} × {tasks}: fit, calibrated {fit:.1f} s, update {update:.1f} s, {WAVE} cells {step:.1f} s"
            f" (≤ {limit:g} s): {'ok' if ok else 'SLOW'}"
        )
    return good


def main() -> int:
    """Run, sum up, or time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder of the published scores")
    parser.add_argument(
        "--out", default="planning.jsonl", help="a line for each answer, written as it is done"
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="seed of the first split")
    parser.add_argument("--matrices", nargs="+", default=sorted({q[0] for q in QUESTIONS}))
    parser.add_argument("--kinds", nargs="+", default=sorted({q[1] for q in QUESTIONS}))
    parser.add_argument("--what", nargs="+", default=sorted({q[2] for q in QUESTIONS}))
    parser.add_argument(
        "--summary", metavar="FILE", help="sum up what a run wrote, and run nothing"
    )
    parser.add_argument(
        "--timing", action="store_true", help="time a fit and a step, and run nothing"
    )
    args = parser.parse_args()
    if args.timing:
        return 0 if timing() else 1
    if args.summary is None:
        if args.data is None:
            parser.error("--data is needed")
        run(args)
    summary(args.summary or args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
