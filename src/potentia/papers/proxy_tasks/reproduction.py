"""The proxy-task paper's printed numbers beside ours: what follows from its printed tables.

Table 4's scores give table 5's variances and R; the row "Proxy Task" of tables 6 and 8 is a weighted mean of the plain
scores above it; and the order of its five models is compared with that of their T-Eval scores in tables 7 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls
from scipy.stats import hypergeom, kendalltau

from potentia.analysis.wording import join_names
from potentia.papers.printed import (
    ReproducedNumber,
    compare_claim,
    compare_number,
    read_printed_numbers,
    tabulate_comparison,
)
from potentia.papers.proxy_tasks.proxies import Robustness, measure_robustness
from potentia.values.findings import Findings, Table
from potentia.values.scores import Floats, ScoreMatrix

SEED_MODELS = tuple("ABC")  # models of table 4 that differ in their seed alone
DATA_MODELS = tuple("DEFGH")  # … and in their data
# Of the printed value: tables are rounded, and what the variance is divided by is not said.
TOLERANCE = 0.06
LEADING_CAPABILITIES = ("Reasoning", "Problem-solving")
SUM_WEIGHT = 1e3  # of the equation that the weights add up to one


@dataclass(frozen=True, eq=False)
class ProxyPaper(Findings):
    """Our numbers from the printed scores beside the paper's."""

    robustness: Robustness
    weights: dict[str, float]  # of tables 6 and 8, fitted to their row "Proxy Task"

    def lines(self) -> list[ReproducedNumber]:
        """Return every comparison with a printed number or claim."""
        return [
            *_compare_candidates(),
            *_compare_capabilities(),
            *_compare_robustness(self.robustness),
            *_compare_proxy_row(self.weights),
            *_compare_order(),
        ]

    def tables(self) -> Sequence[Table]:
        """Return ours beside the paper's, the weights, then the robustness."""
        note = (
            f"Table 5 from the eight small models of table 4, within {TOLERANCE:.0%}. The weights of tables 6 and 8 "
            "are fitted to the row that they reproduce: six weights to seven numbers."
        )
        comparison = tabulate_comparison("Proxy tasks: ours and the paper's", self.lines(), note)
        weights = Table(
            "Tables 6 and 8: weights that give the row Proxy Task",
            ("task", "weight"),
            list(self.weights.items()),
        )
        return comparison, weights, *self.robustness.tables()


def reproduce_proxy() -> ProxyPaper:
    """Measure the robustness of the candidate tasks, and fit the weights of the prediction, on the printed scores."""
    printed = read_printed_numbers("proxy_tasks")
    tasks = printed["TASKS"]
    values = np.array([printed["TABLE_4"][task] for task in tasks]).T
    scores = ScoreMatrix.build([*SEED_MODELS, *DATA_MODELS], tasks, values)
    robustness = measure_robustness(scores, list(DATA_MODELS), list(SEED_MODELS))
    return ProxyPaper(robustness, _fit_weights())


def _read_scores() -> Floats:
    """Return the plain scores of tables 6 and 8: a row per model, a column per task."""
    printed = read_printed_numbers("proxy_tasks")
    return np.array([printed["TABLE_6_AND_8"][task] for task in printed["TASKS"]]).T


def _fit_weights() -> dict[str, float]:
    """Return the weights of at least zero that add up to one and come nearest to the printed row."""
    printed = read_printed_numbers("proxy_tasks")
    scores = _read_scores()
    equations = np.vstack([scores, np.full(scores.shape[1], SUM_WEIGHT)])
    weights, _ = nnls(equations, np.append(printed["PROXY_ROW"], SUM_WEIGHT))
    return dict(zip(printed["TASKS"], weights.tolist(), strict=True))


def _compare_candidates() -> Iterator[ReproducedNumber]:
    """Yield how many candidates table 1 has, and in how many settings of table 3 Kendall leads (baseline consistency).

    Of the second halves of table 3's cells, sampling consistency, Kendall's are cut off in our copy.
    """
    printed = read_printed_numbers("proxy_tasks")
    candidates = sum(len(tasks) for tasks in printed["TABLE_1"].values())
    yield compare_number(
        "table 1",
        "candidate tasks",
        candidates,
        "42",
        remark="section 4.1 calls them m, the models",
    )
    indices = np.array(list(printed["TABLE_3_BASELINE"].values()))
    kendall = indices[:, 2]
    better_rival = indices[:, :2].max(axis=1)
    leads = int((kendall > better_rival).sum())
    yield compare_claim(
        "table 3",
        f"settings in which Kendall alone leads by s, of {len(indices)}",
        leads,
        "consistently superior",
        holds=leads == len(indices),
        remark="level with Spearman at n = 10, k = 35",
    )


def _compare_capabilities() -> Iterator[ReproducedNumber]:
    """Yield how many of the tasks nearest to T-Eval are of each capability, and how many would be by chance.

    The scores that name these tasks were not published: what is printed can only be compared with table 1.
    """
    printed = read_printed_numbers("proxy_tasks")
    candidates = {capability: len(tasks) for capability, tasks in printed["TABLE_1"].items()}
    leading_candidates = sum(candidates[capability] for capability in LEADING_CAPABILITIES)
    all_candidates = sum(candidates.values())
    for correlation, counts in printed["TOP_BY_CAPABILITY"].items():
        named_counts = join_names([f"{count} {name}" for name, count in counts.items()])
        total = sum(counts.values())
        yield compare_number(
            "section 4.1",
            f"tasks of the top {printed['TOP']} by {correlation}",
            total,
            str(printed["TOP"]),
            remark=f"printed: {named_counts}",
        )
        leading = sum(counts[capability] for capability in LEADING_CAPABILITIES)
        expected = total * leading_candidates / all_candidates
        # how likely at least as many are drawn by chance
        chance_of_more = hypergeom.sf(leading - 1, all_candidates, leading_candidates, total)
        p_value = float(chance_of_more)
        yield ReproducedNumber(
            "section 4.1",
            f"reasoning and problem-solving tasks among them, by {correlation}",
            leading,
            "primarily",
            agrees=None,  # the text gives no number
            remark=f"{expected:.1f} of {total} by chance, p {p_value:.2f}",
        )


def _compare_robustness(robustness: Robustness) -> Iterator[ReproducedNumber]:
    table_5 = read_printed_numbers("proxy_tasks")["TABLE_5"]
    for task in robustness.tasks:
        our_values = (task.seed_variance, task.data_variance, task.ratio.value)
        names = ("seed variance", "data variance", "R")
        for quantity, value, printed in zip(names, our_values, table_5[task.task], strict=True):
            tolerance = max(0.005, TOLERANCE * printed)
            follows = abs(value - printed) <= tolerance
            yield compare_claim(
                "table 5",
                f"{task.task} {quantity}",
                value,
                f"{printed:.2f}",
                holds=follows,
                remark="" if follows else "does not follow from table 4",
            )
    yield from _compare_ratios(robustness)


def _compare_ratios(robustness: Robustness) -> Iterator[ReproducedNumber]:
    """Yield what section 4.2 says of R: C3 and CHID are the most robust, and RTE is of the inference tasks."""
    ratios = {task.task: task.ratio.value for task in robustness.tasks}
    smaller_praised = min(ratios["C3"], ratios["CHID"])
    largest_other = max(ratio for task, ratio in ratios.items() if task not in ("C3", "CHID"))
    yield compare_claim(
        "section 4.2",
        "R of C3 and CHID, the smaller, less the largest of the others",
        smaller_praised - largest_other,
        "the highest scores",
        holds=smaller_praised > largest_other,
        remark="from table 4 CMNLI has the highest",
    )
    better_rival = max(ratios["CMNLI"], ratios["OCNLI"])
    yield compare_claim(
        "section 4.2",
        "R of RTE less that of the better of CMNLI and OCNLI",
        ratios["RTE"] - better_rival,
        "best of the inference tasks",
        holds=ratios["RTE"] > better_rival,
        remark="from table 4 it is the worst",
    )


def _is_in_table_6(model: str) -> bool:
    """Whether a model is of table 6, where names end in -t1 or -t2; the others are of table 8."""
    return "-t" in model


def _compare_proxy_row(weights: dict[str, float]) -> Iterator[ReproducedNumber]:
    """Yield the row "Proxy Task" of both tables; the weights must be in the order of the scores' columns."""
    printed = read_printed_numbers("proxy_tasks")
    scores = _read_scores()
    exact_weights = np.array(list(weights.values()))
    rounded_weights = np.round(exact_weights, 3)
    exact = scores @ exact_weights
    rounded = scores @ rounded_weights
    # said once, beside the first model
    remark = (
        f"weights rounded to three digits add up to {rounded_weights.sum():.3f} "
        f"and give {rounded[0]:.2f}"
    )
    models = printed["MODELS_6_AND_8"]
    for model, our_score, score in zip(models, exact.tolist(), printed["PROXY_ROW"], strict=True):
        location = "table 6" if _is_in_table_6(model) else "table 8"
        yield compare_number(
            location, f"Proxy Task, {model}", our_score, f"{score:.2f}", remark=remark
        )
        remark = ""


def _compare_order() -> Iterator[ReproducedNumber]:
    """Yield how far the row "Proxy Task" orders the five trained models as T-Eval does (tables 6 to 9)."""
    printed = read_printed_numbers("proxy_tasks")
    proxy_scores = dict(zip(printed["MODELS_6_AND_8"], printed["PROXY_ROW"], strict=True))
    t_eval = printed["T_EVAL"]
    predicted = [proxy_scores[model] for model in t_eval]
    tau = float(kendalltau(predicted, list(t_eval.values())).statistic)
    pairs = len(t_eval) * (len(t_eval) - 1) // 2
    reversed_pairs = round(pairs * (1 - tau) / 2)
    # by how much annealing (A) is ahead of training without it (NA), after the stages t1 and t2
    t_eval_lead = t_eval["A-t2"] - t_eval["NA-t2"]
    lead_t1 = proxy_scores["A-t1"] - proxy_scores["NA-t1"]
    lead_t2 = proxy_scores["A-t2"] - proxy_scores["NA-t2"]
    yield compare_claim(
        "table 7",
        "T-Eval of annealing less non-annealing",
        t_eval_lead,
        "annealing better by both",
        holds=t_eval_lead > 0 and lead_t2 > 0,
    )
    yield compare_claim(
        "table 6",
        "Proxy Task of annealing less non-annealing, t1",
        lead_t1,
        "annealing better at both",
        holds=lead_t1 > 0 and lead_t2 > 0,
        remark=f"t2 {lead_t2:.2f}",
    )
    groups = ("Filter", "Diversity")
    smallest_proxy = min(proxy_scores[group] for group in groups)
    smallest_t_eval = min(t_eval[group] for group in groups)
    yield compare_claim(
        "table 8",
        "Proxy Task of Filter and Diversity, the smaller, less PPL",
        smallest_proxy - proxy_scores["PPL"],
        "PPL the worst by both",
        holds=smallest_proxy > proxy_scores["PPL"] and smallest_t_eval > t_eval["PPL"],
    )
    yield compare_claim(
        "table 9",
        f"pairs that proxies and T-Eval order differently, of {pairs}",
        float(reversed_pairs),
        "Filter and Diversity",
        holds=reversed_pairs == 1,
        remark=f"τ {tau:.2f} of five models, tables 6 to 9",
    )
