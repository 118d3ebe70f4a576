"""Planning on the published 61 × 24 scores: what a share of the cost tells of the ranking, and whether intervals hold.

    OMP_NUM_THREADS=1 python bench/planning.py --scores train_before_test_scores.csv --splits 50 --jobs 2

A cell costs what a user pays, in tokens × parameters of a forward pass: every rate and epoch of training (three passes
a token, at most 50,000 examples) and validation, the test, and the direct pass. ``--whole-split`` counts the training
tokens of the whole train split alone, as figures before did. Scores of new models are hidden;
what the policy measures is shown, wave by wave. *half*: half of the models are known, the others new; *lineage*: the
same with a base model and its instruct on one side; *family*: one family is new, τ over pairs with a new model;
*cold*: 30 models and no history. Beside: random cells and the cheapest task first, both completed by the same model,
and direct scores alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from potentia import read
from potentia.analysis.planning import Completion, Costs, choose_cells, complete
from potentia.analysis.planning.features import Kinship
from potentia.analysis.rankings.aggregate import mean_z
from potentia.analysis.rankings.groups import items_per_task
from potentia.facts import models as known_models
from potentia.facts.benchmarks import benchmarks
from potentia.values.scores import Floats, ScoreMatrix

LEVELS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
WAVE = 12
RATES, EPOCHS, CAP, VALIDATED, TESTED = 3, 3, 50_000, 1_000, 10_000  # of a study by default
COLD = 30
POLICIES = ("ours", "random", "cheapest")
COVER = (0.5, 0.8, 0.95)
HELD = {0.8: (0.77, 0.84), 0.95: (0.93, 0.97)}  # between which shares of unseen cells these intervals must cover
# Tokens of a training example, four characters each: of the data's first 300 rows; the last six by usual length.
TOKENS = {
    "arc_challenge": 44, "arc_easy": 38, "boolq": 166, "cola": 26, "commonsense_qa": 40, "gsm8k": 136, "headqa_en": 29,
    "mathqa": 48, "mrpc": 80, "nq_open": 23, "openbookqa": 20, "piqa": 41, "rte": 90, "sciq": 110, "social_iqa": 34,
    "sst2": 29, "wic": 48, "winogrande": 27, "mnli": 46, "qnli": 60, "qqp": 45, "anli_r1": 110,
    "hellaswag": 95, "medmcqa": 55,
}  # fmt: skip
# What must hold: (kind, share of the cost) → τ.
BARS = {
    ("half", 0.02): 0.936, ("half", 0.05): 0.948, ("cold", 0.02): 0.92, ("family", 0.02): 0.94,
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """The published scores with the cost of every cell."""

    tuned: ScoreMatrix
    direct: ScoreMatrix
    costs: Floats  # (models, tasks)
    kinship: Kinship

    @classmethod
    def load(cls, path: str, *, whole_split: bool = False) -> Published:
        """Read the file; corpora are direct scores alone."""
        scores = read(path).scores
        tuned = scores["train_before_test"].benchmarks()
        sizes = {b.task: b.train_size for b in benchmarks()}
        tested = items_per_task(tuned)
        lanes = RATES * EPOCHS
        tokens = np.array(
            [
                TOKENS[t] * (sizes[t] or CAP if whole_split else lanes * (3 * min(sizes[t] or CAP, CAP) + VALIDATED)
                             + 2 * min(tested.get(t, TESTED), TESTED))
                for t in tuned.tasks
            ]
        )  # fmt: skip
        table = known_models()
        parameters = np.array([facts.parameters if (facts := table.find(m)) else np.nan for m in tuned.models])
        return cls(tuned, scores["direct"], np.outer(parameters, tokens), Kinship.of(tuned.models, table))


@dataclass(frozen=True)
class Case:
    """One question: which rows are asked about, which of them are new, and what else is known."""

    kind: str
    seed: int
    rows: npt.NDArray[np.intp]  # of the study
    new: npt.NDArray[np.bool_]  # (rows,)
    history: npt.NDArray[np.intp]


def cases(data: Published, kind: str, splits: int) -> Iterator[Case]:
    """Yield the questions of one kind."""
    count = len(data.tuned.models)
    none = np.zeros(0, dtype=np.intp)
    if kind == "family":
        labels = np.array(data.kinship.family)
        for seed, family in enumerate(np.unique(labels)):
            yield Case(kind, seed, np.arange(count), labels == family, none)
        return
    for seed in range(splits):
        rng = np.random.default_rng(seed)
        if kind == "lineage":
            labels = np.array(data.kinship.lineage)
            order = rng.permutation(np.unique(labels))
            sizes = np.cumsum([(labels == name).sum() for name in order])
            new = np.isin(labels, order[: int(np.searchsorted(sizes, count // 2)) + 1])
        else:
            new = np.isin(np.arange(count), rng.permutation(count)[: count // 2 if kind == "half" else COLD])
        rows = np.flatnonzero(new)
        yield Case(kind, seed, rows, np.ones(len(rows), dtype=bool), none if kind == "cold" else np.flatnonzero(~new))


def judge(data: Published, case: Case, policy: str, levels: Sequence[float]) -> Floats:
    """Follow one policy through the budgets; per level: τ, expected τ, coverage (3), CRPS, P(best), is it so, cells."""
    names = data.tuned.models
    study = data.tuned.select(models=[names[i] for i in case.rows])
    history = data.tuned.select(models=[names[i] for i in case.history]) if len(case.history) else None
    price, truth = data.costs[case.rows], mean_z(study.values)
    seen = np.repeat(~case.new[:, None], len(study.tasks), axis=1)
    total, spent = float(price[case.new].sum()), 0.0
    rng = np.random.default_rng(case.seed)
    finish = partial(complete, direct=data.direct, history=history)
    order = _order(policy, price, rng)
    rows: list[list[float]] = []
    done: Completion | None = None
    for level in levels:
        room = level * total - spent
        while done is not None and policy == "ours":
            plan = choose_cells(done, Costs(study.models, study.tasks, price), budget=room, most=WAVE)
            if not plan.cells:
                break
            for (model, task), cost in zip(plan.cells, plan.costs, strict=True):
                seen[study.models.index(model), study.tasks.index(task)] = True
                room, spent = room - cost, spent + cost
            done = finish(_masked(study, seen), fitted=done.fitted, draws=20)
        for i, j in order:
            if not seen[i, j] and price[i, j] <= room:
                seen[i, j] = True
                room, spent = room - price[i, j], spent + price[i, j]
            elif not seen[i, j] and policy == "cheapest":
                break
        done = finish(_masked(study, seen), check=policy == "ours")
        rows.append(_row(done, study, truth, case.new, seen))
    return np.array(rows)


def _order(policy: str, price: Floats, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Cells in the order of a policy that never looks at scores; none for ours."""
    if policy == "ours":
        return []
    cells = np.argwhere(np.isfinite(price))
    if policy == "random":
        cells = rng.permutation(cells)
    else:
        cells = cells[np.lexsort((price[tuple(cells.T)], price.sum(axis=0)[cells[:, 1]]))]
    return [(int(i), int(j)) for i, j in cells]


def _masked(study: ScoreMatrix, seen: npt.NDArray[np.bool_]) -> ScoreMatrix:
    hide = partial(np.where, seen)
    return replace(study, values=hide(study.values, np.nan), stderr=hide(study.stderr, np.nan))


def _row(
    done: Completion, study: ScoreMatrix, truth: Floats, new: npt.NDArray[np.bool_], seen: npt.NDArray[np.bool_]
) -> list[float]:
    unseen = ~seen
    z = done.fitted.scale.standard(study.values)[unseen]
    mean, sd = done.posterior.mean[unseen], np.sqrt(done.posterior.variance[unseen])
    calibration = done.fitted.calibration
    inside = [float(np.mean(np.abs(z - mean) <= calibration.distance(c) * sd)) for c in COVER]
    shares = (np.arange(40) + 0.5) / 40
    quantiles = mean + sd * calibration.stretch(ndtri(shares))[:, None]
    pinball = np.maximum(shares[:, None] * (z - quantiles), (shares[:, None] - 1) * (z - quantiles))
    best = int(np.argmax(done.p_best))
    return [
        pair_tau(done.aggregate, truth, new), done.agreement.value, *inside, float(2 * pinball.mean()),
        float(done.p_best[best]), float(truth[best] == truth.max()), float(seen[new].sum()), *pairs(done, truth, new),
    ]  # fmt: skip


def pairs(done: Completion, truth: Floats, new: npt.NDArray[np.bool_]) -> list[float]:
    """Coverage of the intervals of differences of two models (50, 80, 95 %); said and right of those said 0.7–0.995."""
    first, second = np.triu_indices(len(truth), 1)
    keep = new[first] | new[second]
    gap = (done.draws[:, first] - done.draws[:, second])[:, keep]
    real = (truth[first] - truth[second])[keep]
    ends = [np.quantile(gap, [0.5 - c / 2, 0.5 + c / 2], axis=0) for c in COVER]
    inside = [float(np.mean((low <= real) & (real <= high))) for low, high in ends]
    chance = (gap > 0).mean(axis=0)
    said, right = np.maximum(chance, 1 - chance), (chance > 0.5) == (real > 0)
    open_ = (said >= 0.7) & (said <= 0.995)
    return [*inside, float(said[open_].mean()), float(right[open_].mean())]


def pair_tau(a: Floats, b: Floats, new: npt.NDArray[np.bool_]) -> float:
    """Kendall's τ over the pairs with at least one new model."""
    first, second = np.triu_indices(len(a), 1)
    keep = new[first] | new[second]
    return float((np.sign(a[first] - a[second]) * np.sign(b[first] - b[second]))[keep].mean())


def direct_alone(data: Published, kind: str, splits: int) -> float:
    """τ of the mean z of direct scores of the same tasks."""
    direct = data.direct.select(tasks=data.tuned.tasks, models=data.tuned.models).values
    found = []
    for case in cases(data, kind, splits):
        guess, truth = mean_z(direct[case.rows]), mean_z(data.tuned.values[case.rows])
        found.append(pair_tau(guess, truth, case.new))
    return float(np.mean(found))


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
        done = complete(tuned, direct=direct)
        fit = time.process_time() - start
        start = time.process_time()
        again = complete(tuned, direct=direct, fitted=done.fitted)
        update = time.process_time() - start
        start = time.process_time()
        choose_cells(again, Costs(tuned.models, tuned.tasks, np.ones(values.shape)), most=WAVE)
        step = time.process_time() - start
        ok = update + step <= limit and fit + step <= 60.0
        good &= ok
        print(
            f"{models} × {tasks}: fit, calibrated {fit:.1f} s, update {update:.1f} s, {WAVE} cells {step:.1f} s"
            f" (≤ {limit:g} s): {'ok' if ok else 'SLOW'}"
        )
    return good


def show(kind: str, results: dict[str, Floats], direct: float, levels: Sequence[float], bars: bool) -> bool:
    """Print the table of one kind; say which bars are missed."""
    ours = results["ours"]  # (splits, levels, fields)
    print(f"\n{kind}: {len(ours)} splits; direct scores alone τ {direct:.3f}")
    print(
        "  share  cells    τ ± s.e. (10–90 %)       expected  cover 50/80/95    CRPS  P(best) right  | "
        + "  ".join(POLICIES[1:])
    )
    good = True
    for k, level in enumerate(levels):
        column = ours[:, k]
        low, high = np.quantile(column[:, 0], [0.1, 0.9])
        mean = np.nanmean(column, axis=0)
        error = column[:, 0].std(ddof=1) / np.sqrt(len(column)) if len(column) > 1 else np.nan
        others = "   ".join(f"{results[p][:, k, 0].mean():.3f}" if p in results else "  –  " for p in POLICIES[1:])
        bar = BARS.get((kind, level)) if bars else None
        verdict = "" if bar is None else f"   ≥ {bar:g}: {'ok' if mean[0] >= bar else 'MISSED'}"
        good &= bar is None or mean[0] >= bar
        if bar is not None and level == 0.02:
            missed = [f"{c:.0%}" for k, c in enumerate(COVER) if c in HELD and not _within(mean[2 + k], HELD[c])]
            verdict += f"; intervals of {', '.join(missed)} MISSED" if missed else "; intervals ok"
            good &= not missed
        verdict += (
            f"   pairs cover {mean[9]:.2f}/{mean[10]:.2f}/{mean[11]:.3f}, said {mean[12]:.3f}, right {mean[13]:.3f}"
        )
        print(
            f"  {level:5.1%}  {mean[8]:5.0f}  {mean[0]:.3f} ± {error:.3f} ({low:.3f}–{high:.3f})  {mean[1]:.3f}"
            f"     {mean[2]:.2f}/{mean[3]:.2f}/{mean[4]:.3f}   {mean[5]:.3f}  {mean[6]:.2f}    {mean[7]:.2f}"
            f"   | {others}{verdict}"
        )
    return good


def _within(value: float, ends: tuple[float, float]) -> bool:
    return bool(ends[0] <= value <= ends[1])


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", help="train_before_test_scores.csv as published; without it, timing alone")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument(
        "--kinds", nargs="+", default=["half", "family", "cold"], choices=["half", "lineage", "family", "cold"]
    )
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--levels", nargs="+", type=float, default=list(LEVELS), help="shares of the new models' cost")
    parser.add_argument("--whole-split", action="store_true", help="count training tokens of whole splits alone")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    good = timing()
    if args.scores is None:
        return 0 if good else 1
    data = Published.load(args.scores, whole_split=args.whole_split)
    print(f"\ncost of a cell: {'training tokens of the whole split' if args.whole_split else 'all in'} × parameters")
    with ProcessPoolExecutor(args.jobs) as pool:
        run: Callable[..., object] = pool.map if args.jobs > 1 else map
        for kind in args.kinds:
            asked = list(cases(data, kind, args.splits))
            results = {
                policy: np.stack(list(run(partial(judge, data, policy=policy, levels=args.levels), asked)))  # type: ignore[call-overload]
                for policy in args.policies
            }
            good &= show(kind, results, direct_alone(data, kind, args.splits), args.levels, True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
