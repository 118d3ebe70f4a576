"""BOSE's printed numbers beside ours: what follows from its printed tables.

Neither scores of checkpoints nor answers were published, so the tables themselves are the data: their means and
differences, the mean ranks of table 4's methods (figure 5), and what the text says about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.papers.base_models.ablation import Ablation, compare_methods
from potentia.papers.printed import (
    ReproducedNumber,
    compare_claim,
    compare_number,
    read_printed_numbers,
    tabulate_comparison,
)
from potentia.values.findings import Findings, Table
from potentia.values.protocol import DIRECT
from potentia.values.scores import Floats, ScoreMatrix

OPEN_ENDED_TASKS = 6  # the first rows of table 1
STABILITY_COLUMNS = (
    "1B original",
    "1B BOSE",
    "1B improvement",
    "2B original",
    "2B BOSE",
    "2B improvement",
)
CONSISTENCY_COLUMNS = ("original", "ICLiP", "improvement")
PRINTED_SHARES = {"1B": "30.5", "2B": "14.5"}  # per cent of the original, in the text on table 1


@dataclass(frozen=True, eq=False)
class BosePaper(Findings):
    """Our numbers from the printed tables beside the paper's."""

    ablation: Ablation

    def lines(self) -> list[ReproducedNumber]:
        """Return every comparison with a printed number or claim."""
        return [
            *_compare_stability(),
            *_compare_consistency("TABLE_2", "table 2"),
            *_compare_consistency("TABLE_3", "table 3"),
            *_compare_methods(self.ablation),
            *_compare_judges(),
        ]

    def tables(self) -> Sequence[Table]:
        """Return the comparison, then the ablation."""
        note = "From the printed tables 1 to 4 and 11; the scores behind them were not published."
        comparison = tabulate_comparison("BOSE: ours and the paper's", self.lines(), note)
        return comparison, *self.ablation.tables()


def reproduce_bose() -> BosePaper:
    """Rank the methods of table 4 in every cell."""
    printed = read_printed_numbers("base_models")
    table = printed["TABLE_4"]
    tasks = []
    for method in printed["METHODS"]:
        tasks += [f"{task}:{method}" for task in printed["TASKS"]]
    values = np.array([np.concatenate(rows) for rows in table.values()])
    scores = ScoreMatrix.build(list(table), tasks, values)
    return BosePaper(compare_methods({DIRECT: scores}, tolerance=1.0))


def _read_table(name: str) -> Floats:
    """Return the body of a printed table, a row per benchmark."""
    rows = read_printed_numbers("base_models")[name].values()
    return np.array(list(rows), dtype=np.float64)


def _compare_stability() -> Iterator[ReproducedNumber]:
    """Yield the arithmetic of table 1: its means, and what the text says of open-ended and multiple-choice tasks."""
    table = _read_table("TABLE_1")
    printed_means = read_printed_numbers("base_models")["TABLE_1_MEANS"]
    means = table.mean(axis=0)
    for name, mean, printed in zip(STABILITY_COLUMNS, means, printed_means, strict=True):
        yield compare_number("table 1", f"mean τ, {name}", float(mean), printed)
    open_ended = table[:OPEN_ENDED_TASKS].mean(axis=0)
    for size, column in (("1B", 2), ("2B", 5)):
        yield compare_number(
            "section 4.2",
            f"mean improvement of open-ended tasks, {size}",
            float(open_ended[column]),
            printed_means[column],
            remark="the text prints the mean over all nine tasks",
        )
        share = 100 * means[column] / means[column - 2]
        rounded_share = 100 * float(printed_means[column]) / float(printed_means[column - 2])
        yield compare_number(
            "section 4.2",
            f"improvement of all nine tasks, per cent, {size}",
            float(share),
            PRINTED_SHARES[size],
            remark=f"{rounded_share:.1f} from the rounded means",
        )
    choice = table[OPEN_ENDED_TASKS:]
    improved = int((choice[:, [2, 5]] > 0).sum())
    yield compare_number("section 4.2", "multiple-choice tasks that improve, of 6", improved, "5")


def _compare_consistency(name: str, place: str) -> Iterator[ReproducedNumber]:
    """Yield the means of table 2 or 3, and how many benchmarks improve."""
    table = _read_table(name)
    printed_means = read_printed_numbers("base_models")[f"{name}_MEANS"]
    means = table.mean(axis=0)
    for column, mean, printed in zip(CONSISTENCY_COLUMNS, means, printed_means, strict=True):
        yield compare_number(place, f"mean τ, {column}", float(mean), printed)
    if name == "TABLE_2":
        share = 100 * means[2] / means[0]
        yield compare_number(place, "improvement, per cent", float(share), "88.9")
    else:
        improved = int((table[:, 2] > 0).sum())
        yield compare_number(place, "benchmarks that improve, of 6", improved, "5")


def _compare_methods(ablation: Ablation) -> Iterator[ReproducedNumber]:
    """Yield the means of table 4, figure 5, and what the text says of both."""
    printed = read_printed_numbers("base_models")
    for model, rows in printed["TABLE_4"].items():
        printed_means = printed["TABLE_4_MEANS"][model]
        for method, scores, mean in zip(printed["METHODS"], rows, printed_means, strict=True):
            yield compare_number(
                "table 4", f"mean of {model}, {method}", float(np.mean(scores)), mean
            )
    iclip = ablation.methods.index("iclip")
    yield compare_number(
        "figure 5", "mean rank of ICLiP, 36 results", ablation.mean_rank[iclip].value, "1.31"
    )
    yield compare_number(
        "section 4.4", "results in which ICLiP is best", float(ablation.best[iclip]), "28"
    )
    yield compare_number(
        "section 4.4",
        "results in which it is within one point",
        float(ablation.near[iclip]),
        "2",
    )
    zero_shot = ablation.mean_rank[ablation.methods.index("instruct")].value
    few_shot = ablation.mean_rank[ablation.methods.index("instruct@5")].value
    yield compare_claim(
        "section 4.4",
        "mean rank of instruct with examples, less that without",
        few_shot - zero_shot,
        "few-shot always better",
        holds=few_shot < zero_shot,
        remark="the two instruct methods are level in table 4",
    )


def _compare_judges() -> Iterator[ReproducedNumber]:
    """Yield the ratios of table 11 from its own columns."""
    for task, row in read_printed_numbers("base_models")["TABLE_11"].items():
        for method, start in (("instruct", 0), ("ICLiP", 4)):
            _, verified, upper_bound, ratio = row[start : start + 4]
            yield compare_number(
                "table 11",
                f"{task}, {method}: math-verify / judge",
                verified / upper_bound,
                f"{ratio:.3f}",
            )
