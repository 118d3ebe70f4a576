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
ORIGINAL_COLUMNS = {"1B": 0, "2B": 3}  # of table 1, by the size of the models
BOSE_COLUMNS = {"1B": 1, "2B": 4}
IMPROVEMENT_COLUMNS = {"1B": 2, "2B": 5}
MODELS_IN_TABLE = {"TABLE_2": 6, "TABLE_3": 16}  # whose order τ compares
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
            *_count_parameters(),
        ]

    def tables(self) -> Sequence[Table]:
        """Return the comparison, then the ablation."""
        note = (
            "From the printed tables 1 to 4, 11 and 12; the scores behind them were not published."
        )
        comparison = tabulate_comparison("BOSE: ours and the paper's", self.lines(), note)
        return comparison, *self.ablation.tables()


def reproduce_bose() -> BosePaper:
    """Return our numbers beside those of tables 1 to 4, 11 and 12; the methods of table 4 are ranked for it."""
    printed = read_printed_numbers("base_models")
    table = printed["TABLE_4"]
    tasks = []
    for method in printed["METHODS"]:
        tasks += [f"{task}:{method}" for task in printed["TASKS"]]
    values = np.array([np.concatenate(rows) for rows in table.values()])
    scores = ScoreMatrix.build(list(table), tasks, values)
    return BosePaper(compare_methods({DIRECT: scores}, tolerance=1.0))


def _read_table(table_name: str) -> Floats:
    """Return the body of a printed table, a row per benchmark."""
    rows = read_printed_numbers("base_models")[table_name].values()
    return np.array(list(rows), dtype=np.float64)


def _compare_stability() -> Iterator[ReproducedNumber]:
    """Yield the arithmetic of table 1: its means, and what the text says of open-ended and multiple-choice tasks."""
    table = _read_table("TABLE_1")
    printed_means = read_printed_numbers("base_models")["TABLE_1_MEANS"]
    means = table.mean(axis=0)
    for column_name, mean, printed in zip(STABILITY_COLUMNS, means, printed_means, strict=True):
        yield compare_number("table 1", f"mean τ, {column_name}", float(mean), printed)
    yield _compare_differences("table 1", table, ((0, 1, 2), (3, 4, 5)))
    open_ended = table[:OPEN_ENDED_TASKS].mean(axis=0)
    for size, improvement in IMPROVEMENT_COLUMNS.items():
        original = ORIGINAL_COLUMNS[size]
        yield compare_number(
            "section 4.2",
            f"mean improvement of open-ended tasks, {size}",
            float(open_ended[improvement]),
            printed_means[improvement],
            remark="the text prints the mean over all nine tasks",
        )
        relative_improvement = 100 * means[improvement] / means[original]
        rounded_mean = float(printed_means[improvement])
        rounded_relative_improvement = 100 * rounded_mean / float(printed_means[original])
        yield compare_number(
            "section 4.2",
            f"improvement of all nine tasks, per cent, {size}",
            float(relative_improvement),
            PRINTED_SHARES[size],
            remark=f"{rounded_relative_improvement:.1f} from the rounded means",
        )
    yield from _compare_changes(table)


def _compare_changes(table: Floats) -> Iterator[ReproducedNumber]:
    """Yield which tasks of table 1 get better or worse."""
    improvements = table[:, list(IMPROVEMENT_COLUMNS.values())]  # (tasks, sizes)
    gets_worse = (improvements[:OPEN_ENDED_TASKS] < 0).any(axis=1)
    worse = int(gets_worse.sum())
    yield compare_claim(
        "section 4.2",
        "open-ended tasks that get worse at a size",
        worse,
        "Minerva Math alone",
        holds=worse == 1,
        remark="MGSM_zh too, at 1B",
    )
    choice_improvements = improvements[OPEN_ENDED_TASKS:]
    improved = int((choice_improvements > 0).sum())
    yield compare_number("section 4.2", "multiple-choice tasks that improve, of 6", improved, "5")
    choice_after = table[OPEN_ENDED_TASKS:, list(BOSE_COLUMNS.values())]
    of_worse_ones = choice_after[choice_improvements < 0]
    yield compare_number(
        "section 4.2", "τ of the one that gets worse", float(of_worse_ones.max()), "0.893"
    )


def _compare_differences(
    location: str, table: Floats, columns: Sequence[tuple[int, int, int]]
) -> ReproducedNumber:
    """Compare the printed improvements with the difference of the two columns before them."""
    equal = 0
    for original, ours, improvement in columns:
        difference = table[:, ours] - table[:, original]
        is_equal = abs(difference - table[:, improvement]) < 0.0005
        equal += int(is_equal.sum())
    printed = len(table) * len(columns)
    quantity = f"improvements that are the difference of their columns, of {printed}"
    return compare_number(location, quantity, equal, str(printed))


def _compare_consistency(table_name: str, location: str) -> Iterator[ReproducedNumber]:
    """Yield the arithmetic of table 2 or 3: means, differences and which τ are possible.

    Then how far (table 2) or how often (table 3) it improves.
    """
    table = _read_table(table_name)
    printed_means = read_printed_numbers("base_models")[f"{table_name}_MEANS"]
    means = table.mean(axis=0)
    for column, mean, printed in zip(CONSISTENCY_COLUMNS, means, printed_means, strict=True):
        yield compare_number(location, f"mean τ, {column}", float(mean), printed)
    yield _compare_differences(location, table, [(0, 1, 2)])
    yield _count_untied_values(table_name, location, table[:, :2])
    if table_name == "TABLE_2":
        share = 100 * means[2] / means[0]
        yield compare_number(location, "improvement, per cent", float(share), "88.9")
    else:
        improved = int((table[:, 2] > 0).sum())
        yield compare_number(location, "benchmarks that improve, of 6", improved, "5")


def _count_untied_values(table_name: str, location: str, taus: Floats) -> ReproducedNumber:
    """Count the printed τ that the equation of section 4.1 can give: without ties, τ is (2P − pairs) / pairs."""
    models = MODELS_IN_TABLE[table_name]
    pairs = models * (models - 1) // 2
    concordant = np.arange(pairs + 1)  # P, the pairs in the same order
    possible_taus = (2 * concordant - pairs) / pairs
    printed_taus = taus.ravel()
    distances = abs(printed_taus[:, None] - possible_taus)
    is_possible = distances.min(axis=1) < 0.00051
    count = int(is_possible.sum())
    tied_values = ", ".join(f"{tau:.3f}" for tau in printed_taus[~is_possible])
    return compare_claim(
        location,
        f"τ that the equation of section 4.1 can give, of {taus.size}",
        count,
        f"{taus.size}",
        holds=count == taus.size,
        remark=f"{models} models have {pairs} pairs; {tied_values} need ties, as in τ-b",
    )


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
    yield compare_number(
        "table 4",
        "scores within one point of the best, asterisks",
        float(sum(ablation.near)),
        str(printed["TABLE_4_ASTERISKS"]),
        remark="57.67 of Qwen2.5-7B on Multi_LogiEval has none",
    )
    yield _find_repeated_scores(printed["TABLE_4"])
    means = np.array([np.mean(rows, axis=1) for rows in printed["TABLE_4"].values()])
    highest = int((means.argmax(axis=1) == iclip).sum())
    yield compare_number("section 4.4", "models whose mean is highest by ICLiP, of 6", highest, "6")
    ranks = {}
    for method, mean_rank in zip(ablation.methods, ablation.mean_rank, strict=True):
        ranks[method] = mean_rank.value
    yield compare_claim(
        "section 4.4",
        "mean rank of light instructions less that of instruct, without examples",
        ranks["light"] - ranks["instruct"],
        "light consistently better",
        holds=ranks["light"] < ranks["instruct"] and ranks["iclip"] < ranks["instruct@5"],
        remark=f"with examples {ranks['iclip'] - ranks['instruct@5']:.2f}",
    )
    yield compare_claim(
        "section 4.4",
        "mean rank of instruct with examples, less that without",
        ranks["instruct@5"] - ranks["instruct"],
        "few-shot always better",
        holds=ranks["instruct@5"] < ranks["instruct"],
        remark="the two instruct methods are level in table 4",
    )


def _find_repeated_scores(table: dict[str, list[list[float]]]) -> ReproducedNumber:
    """Count the models whose score on Minerva Math is that of the column beside it, by the light instruction."""
    printed = read_printed_numbers("base_models")
    light = printed["METHODS"].index("light")
    college_math = printed["TASKS"].index("collegemath")
    minerva_math = printed["TASKS"].index("minerva_math")
    scores = np.array([rows[light] for rows in table.values()])
    repeated = int((scores[:, college_math] == scores[:, minerva_math]).sum())
    zeros = int((scores[:, minerva_math] == 0).sum())
    return ReproducedNumber(
        "table 4",
        "models whose light score on Minerva Math repeats CollegeMath's",
        repeated,
        "–",
        agrees=None,
        remark=f"it is 0.00 for the other {zeros}",
    )


def _compare_judges() -> Iterator[ReproducedNumber]:
    """Yield the ratios of table 11 from its own columns, and its scores of Llama 3.1 8B beside those of table 4."""
    tables = read_printed_numbers("base_models")
    llama = dict(zip(tables["METHODS"], tables["TABLE_4"]["Llama-3.1-8B"], strict=True))
    for task, row in tables["TABLE_11"].items():
        column = tables["TASKS"].index(task)
        for method, start in (("instruct", 0), ("ICLiP", 4)):
            current, verified, upper_bound, ratio = row[start : start + 4]
            same_cell = llama[method.lower()][column]
            mean = float(np.mean(llama[method.lower()]))
            yield compare_number(
                "table 11",
                f"{task}, {method}: current, as in table 4",
                same_cell,
                f"{current:.2f}",
                remark="" if same_cell == current else f"the mean of table 4, {mean:.2f}, needs it",
            )
            yield compare_number(
                "table 11",
                f"{task}, {method}: math-verify / judge",
                verified / upper_bound,
                f"{ratio:.3f}",
            )


def _count_parameters() -> Iterator[ReproducedNumber]:
    """Yield the parameters of table 12 from its settings.

    Attention has grouped queries, a feed-forward layer is gated, and the head does not share the embedding.
    """
    for size_name, settings in read_printed_numbers("base_models")["TABLE_12"].items():
        hidden = settings["hidden"]
        key_value_width = hidden // settings["heads"] * settings["key_value_heads"]
        attention = 2 * hidden * hidden + 2 * hidden * key_value_width
        feed_forward = 3 * hidden * settings["intermediate"]
        layers = settings["layers"] * (attention + feed_forward)
        embeddings = 2 * settings["vocabulary"] * hidden
        yield compare_number(
            "table 12",
            f"billions of parameters, {size_name}",
            (layers + embeddings) / 1e9,
            settings["billions"],
        )
        yield compare_number(
            "table 12",
            f"billions without embeddings, {size_name}",
            layers / 1e9,
            settings["non_embedding"],
        )
