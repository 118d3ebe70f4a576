"""Whether a selection names the best model, and foresees the best at four times the labels, on published fine-tunings.

    python bench/select_public.py ../shared/data/published/tuning_scaling

30 models × 14 sizes of training data × 2 data sets (test losses; Lin et al. 2024). For every size N, candidates are
drawn anew and race by the rules of ``potentia select``: all of them on N/4 examples, judged by a noisy validation;
those that may win on N, judged by a noisy test. The truth is the published loss at N. The noise is that of
``--examples`` test examples whose losses have a standard deviation of ``--deviation`` beside what all models share.

Then the outlook: the line through N/4 and N of all candidates names the winner at 4 N. How far slopes are drawn to
their mean is chosen on one data set and told on the other, both ways; the figures are printed beside those of the plain
line and of the constant that ``potentia select`` has.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from potentia.analysis.planning import learning_curve
from potentia.analysis.rankings import decide_ranking
from potentia.analysis.stats import select_survivors
from potentia.values.scores import Floats, ScoreMatrix

DATA_SETS = ("flan", "gigaword")
SLOPES_KEPT = tuple(round(0.1 * step, 1) for step in range(11))  # 1: the plain line
FIRST_SIZE = 800  # below, N/4 is the smallest size there is
NAMED_RIGHT = 0.80
FORESEEN = 0.90
CALIBRATED = 0.05


@dataclass(frozen=True)
class Published:
    """The published losses of one data set."""

    name: str
    models: tuple[str, ...]
    parameters: Floats
    sizes: tuple[int, ...]
    losses: Floats  # (models, sizes)


def read_losses(file: Path) -> Published:
    """Read one data set: a row for each model, a column for each size."""
    with file.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    sizes = tuple(int(name) for name in rows[0] if name.isdigit())
    losses = np.array([[float(row[str(size)] or "nan") for size in sizes] for row in rows])
    is_complete = np.isfinite(losses).all(axis=1)
    return Published(
        name=file.stem,
        models=tuple(row["config name"] for row, use in zip(rows, is_complete, strict=True) if use),
        parameters=np.array([float(row["size"]) for row in rows])[is_complete],
        sizes=sizes,
        losses=losses[is_complete],
    )


@dataclass(frozen=True)
class RaceCase:
    """One selection: the candidates and their losses before fine-tuning, at N/4, N and 4 N."""

    candidates: Floats  # rows of the published table
    before: Floats
    small: Floats
    large: Floats
    larger: Floats | None


def draw_cases(published: Published, candidates: int, draws: int, seed: int) -> Iterator[RaceCase]:
    """Draw candidates at every size that has a quarter of it beside it."""
    rng = np.random.default_rng(seed)
    for column, size in enumerate(published.sizes):
        if size < FIRST_SIZE or size // 4 not in published.sizes:
            continue
        small_column = published.sizes.index(size // 4)
        larger_column = None
        if 4 * size in published.sizes:
            larger_column = published.sizes.index(4 * size)
        for _ in range(draws):
            rows = rng.permutation(len(published.models))[:candidates]
            larger = None if larger_column is None else published.losses[rows, larger_column]
            yield RaceCase(
                candidates=rows,
                before=published.losses[rows, 0],
                small=published.losses[rows, small_column],
                large=published.losses[rows, column],
                larger=larger,
            )


@dataclass
class RaceTally:
    """What happened over all races."""

    races: int = 0
    right: int = 0
    dropped: int = 0
    largest: int = 0
    zero_shot: int = 0
    stated: float = 0.0
    loss: float = 0.0


def run_race(case: RaceCase, error: float, rng: np.random.Generator) -> tuple[int, float, bool]:
    """Return the candidate that the race names, its stated chance, and whether the best was dropped early."""
    count = len(case.large)
    names = [str(number) for number in range(count)]
    validation = case.small + error * rng.standard_normal(count)
    survivors, _ = select_survivors(
        dict(zip(names, validation.tolist(), strict=True)),
        dict.fromkeys(names, error),
        higher_is_better=False,
    )
    best = str(int(np.argmin(case.large)))
    finalists = sorted(survivors, key=int)
    rows = [int(name) for name in finalists]
    test = case.large[rows] + error * rng.standard_normal(len(rows))
    if len(rows) == 1:
        return rows[0], 1.0, best not in finalists
    matrix = ScoreMatrix.build(
        finalists,
        ["task"],
        test[:, None],
        stderr=np.full((len(rows), 1), error),
        protocol="train_before_test",
        higher_is_better=False,
    )
    ranking = decide_ranking(matrix)
    return int(ranking.first), float(np.nanmax(ranking.p_first)), best not in finalists


def race_all(published: Published, options: argparse.Namespace) -> RaceTally:
    """Run the races of one data set."""
    tally = RaceTally()
    error = options.deviation / math.sqrt(options.examples)
    rng = np.random.default_rng(options.seed + 1)
    for case in draw_cases(published, options.candidates, options.draws, options.seed):
        named, stated, was_dropped = run_race(case, error, rng)
        best = int(np.argmin(case.large))
        tally.races += 1
        tally.right += named == best
        tally.dropped += was_dropped
        tally.largest += int(np.argmax(published.parameters[case.candidates])) == best
        tally.zero_shot += int(np.argmin(case.before)) == best
        tally.stated += stated
        tally.loss += float(case.large[named] - case.large[best])
    return tally


@dataclass
class OutlookTally:
    """How well the line through N/4 and N foresees the winner at 4 N."""

    cases: int = 0
    foreseen: int = 0
    stays: int = 0  # today's winner wins at 4 N too
    said_change: int = 0
    change_was_right: int = 0
    said_same: int = 0
    same_was_wrong: int = 0
    stated: float = 0.0  # chance of the winner that is foreseen
    squared_line_error: float = 0.0
    lines: int = 0


def look_ahead(published: Published, options: argparse.Namespace) -> OutlookTally:
    """Foresee the winners of one data set."""
    tally = OutlookTally()
    rng = np.random.default_rng(options.seed + 2)
    for case in draw_cases(published, options.candidates, options.outlooks, options.seed):
        if case.larger is None:
            continue
        expected = learning_curve.extrapolate(case.small, case.large, 4.0)
        foreseen = int(np.argmin(expected))
        now = int(np.argmin(case.large))
        later = int(np.argmin(case.larger))
        tally.cases += 1
        tally.foreseen += foreseen == later
        tally.stays += now == later
        if foreseen == now:
            tally.said_same += 1
            tally.same_was_wrong += later != now
        else:
            tally.said_change += 1
            tally.change_was_right += later != now
        noise = np.exp(learning_curve.LINE_ERROR * rng.standard_normal((200, len(expected))))
        tally.stated += float(np.mean(np.argmin(expected * noise, axis=1) == foreseen))
        relative = np.log(case.larger / expected)
        tally.squared_line_error += float(np.sum((relative - relative.mean()) ** 2))
        tally.lines += len(relative) - 1
    return tally


def measure_foreseen(published: Published, options: argparse.Namespace) -> dict[float, float]:
    """Return the share of winners at 4 N that the lines name, for every share of a slope that is kept."""
    cases = []
    for case in draw_cases(published, options.candidates, options.outlooks, options.seed):
        if case.larger is not None:
            cases.append(case)
    small = np.stack([case.small for case in cases])
    large = np.stack([case.large for case in cases])
    winners = np.argmin(
        np.stack([case.larger for case in cases if case.larger is not None]), axis=1
    )
    foreseen = {}
    for slope_share in SLOPES_KEPT:
        expected = learning_curve.extrapolate(small, large, 4.0, slope_kept=slope_share)
        foreseen[slope_share] = float(np.mean(np.argmin(expected, axis=1) == winners))
    return foreseen


def print_chosen_slopes(foreseen: dict[str, dict[float, float]]) -> float:
    """Print what is chosen on each data set and told on the other; return the second's share by the first's choice."""
    share_by_name = {}
    for chosen_on, told_on in (DATA_SETS, DATA_SETS[::-1]):
        shares = foreseen[chosen_on]
        slope_share = max(shares, key=lambda kept: (shares[kept], kept))
        share_by_name[told_on] = foreseen[told_on][slope_share]
        print(
            f"slope kept {slope_share:g}, chosen on {chosen_on} ({shares[slope_share]:.2%}): winner at 4 N on {told_on}"
            f" {share_by_name[told_on]:.2%} (plain line {foreseen[told_on][1.0]:.2%},"
            f" {learning_curve.SLOPE_KEPT:g}: {foreseen[told_on][learning_curve.SLOPE_KEPT]:.2%})"
        )
    return share_by_name[DATA_SETS[1]]


def main() -> int:
    """Print the figures of both data sets; exit with 1 where a bar is missed on the second."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="holds flan.csv and gigaword.csv")
    parser.add_argument("--candidates", type=int, default=6)
    parser.add_argument("--draws", type=int, default=60, help="selections at every size")
    parser.add_argument("--outlooks", type=int, default=1500, help="outlooks at every size")
    parser.add_argument("--examples", type=int, default=200, help="of validation and of test")
    parser.add_argument(
        "--deviation", type=float, default=0.3, help="of an example's loss, in nats"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = False
    foreseen_by_slope = {}
    for name, role in zip(DATA_SETS, ("chosen on", "told on"), strict=True):
        published = read_losses(options.folder / f"{name}.csv")
        foreseen_by_slope[name] = measure_foreseen(published, options)
        race = race_all(published, options)
        outlook = look_ahead(published, options)
        right = race.right / race.races
        stated = race.stated / race.races
        foreseen = outlook.foreseen / outlook.cases
        line_error = math.sqrt(outlook.squared_line_error / outlook.lines)
        print(f"{name} ({role}): {len(published.models)} models, {race.races} selections")
        print(
            f"  best model named {right:.1%} (largest model {race.largest / race.races:.1%},"
            f" before fine-tuning {race.zero_shot / race.races:.1%}); mean loss {race.loss / race.races:.4f} nats"
        )
        print(f"  best model dropped early {race.dropped / race.races:.1%}")
        print(f"  P(best) stated {stated:.3f}, true {right:.3f}, difference {stated - right:+.3f}")
        print(
            f"  winner at 4 N foreseen {foreseen:.1%} (today's winner {outlook.stays / outlook.cases:.1%}),"
            f" stated {outlook.stated / outlook.cases:.3f}"
        )
        changes = outlook.change_was_right / max(outlook.said_change, 1)
        wrong = outlook.same_was_wrong / max(outlook.said_same, 1)
        print(f"  'will change' right {changes:.1%}, 'stays' wrong {wrong:.1%}")
        print(f"  error of the line at 4 N: {line_error:.4f} (log standard deviation)")
        if role == "told on":
            failed = right < NAMED_RIGHT or abs(stated - right) > CALIBRATED
    return int(print_chosen_slopes(foreseen_by_slope) < FORESEEN or failed)


if __name__ == "__main__":
    sys.exit(main())
