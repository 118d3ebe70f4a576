"""Every sentence about rankings, in one place: short, the number first, one idea each.

Nothing is claimed here; each sentence puts into words what ``decide_ranking`` and the intervals hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.rankings.lead import RankedOtherwise
from potentia.analysis.stats.first_place import ENOUGH_MODELS, ENOUGH_TASKS
from potentia.analysis.wording import (
    capitalize_first,
    format_difference,
    format_level,
    format_p_value,
    format_percent,
    format_range,
    join_names,
)
from potentia.values.findings import Interval, short_names
from potentia.values.protocol import Protocol
from potentia.values.seeds import MIN_REPEATED_RESULTS
from potentia.values.wording import format_count

if TYPE_CHECKING:
    from potentia.analysis.rankings.agreement import Agreement, AgreementChange
    from potentia.analysis.rankings.decide import Ranking
    from potentia.analysis.rankings.lead import Lead, MissingEvidence
    from potentia.analysis.rankings.pair import TaskComparison
    from potentia.analysis.stats.significance import Significance
    from potentia.values.seeds import SeedSpread

PREPARATIONS = {
    "direct": "without further fine-tuning",
    "train_before_test": "after the same fine-tuning",
    "adjust": "after fine-tuning on the same data",
}
HOW_TO_GIVE_ERRORS = (
    "Score the models with Potentia, or give their standard errors: a column stderr where a row has one score, "
    "TASK_stderr where a column has one task."
)
NO_CLAIM = (
    f"Without standard errors, and with fewer than {ENOUGH_TASKS} tasks, no difference can be called significant. "
    f"{HOW_TO_GIVE_ERRORS}"
)
_SCORE_METHODS = ("score", "mean score", "mean z")  # of which the best is called the best score
SAME_SCORE = 0.0005  # a smaller difference does not show in three digits


def describe_preparation(protocol: Protocol) -> str:
    """Say what was done to the models before the test."""
    return PREPARATIONS.get(protocol.kind, f"with {protocol.label} scores")


def headline_sentence(ranking: Ranking) -> str:
    """Say who is the best, or who is most likely to be; no part of models that cannot be compared speaks for all."""
    if not ranking.other_parts:
        return _part_headline(ranking)
    parts = (ranking, *ranking.other_parts)
    limit = (
        f"The models fall into {len(parts)} parts that share no task, "
        "so no model can be called the best of all."
    )
    sentences = [limit]
    for part in parts:
        sentences.append(_part_headline(part))
        scope = _scope_of_certainty(part)
        if scope is not None:
            sentences.append(scope)
    return " ".join(sentences)


def _part_headline(ranking: Ranking) -> str:
    """Say who is the best of models that can be compared, or who is most likely to be."""
    short_by_model = dict(zip(ranking.models, short_names(ranking.models), strict=True))
    leader = short_by_model[ranking.first]
    preparation = describe_preparation(ranking.protocol)
    models = format_count(len(ranking.models), "model")
    tasks = ranking.groups.describe_size()
    measured = ranking.task_counts[ranking.models.index(ranking.first)]
    if measured < len(ranking.tasks):
        tasks = f"{leader} has {measured} of {tasks}"
    if len(ranking.models) < 2:
        return f"Only {leader} has scores to rank {preparation}."
    score = "score" if ranking.method in _SCORE_METHODS else ranking.method.label
    best_rank = ranking.ranks[0]
    ranks = zip(ranking.models, ranking.ranks.tolist(), strict=True)
    tied_names = [short_by_model[model] for model, rank in ranks if rank == best_rank]
    if not ranking.can_claim and len(tied_names) > 1:
        return (
            f"{join_names(tied_names)} share the best {score} of {models} {preparation} ({tasks})."
        )
    if not ranking.can_claim:
        return f"{leader} has the best {score} of {models} {preparation} ({tasks})."
    if ranking.method not in _SCORE_METHODS:  # who is the best hangs on what is counted
        tasks = f"{tasks}, by the {score}"
    chances = dict(zip(ranking.models, ranking.p_first.tolist(), strict=True))
    chance = format_percent(chances[ranking.first])
    if ranking.is_first_certain:
        evidence = _describe_wins(ranking, short_by_model)
        return f"{leader} is the best of {models} {preparation} ({tasks}): {evidence}."
    if len(tied_names) == len(ranking.models):
        return f"{join_names(tied_names)} tie {preparation} ({tasks})."
    rivals = _rivals_sentence(ranking, short_by_model, chances)
    return (
        f"{leader} is most likely the best of {models} {preparation} ({chance}, {tasks}). {rivals}"
    )


def _describe_wins(ranking: Ranking, short_by_model: dict[str, str]) -> str:
    """Say that the first is better than every other, with the p value of the closest."""
    p_value = format_p_value(2 * (1 - ranking.p_beats_closest))
    closest = short_by_model[ranking.closest or ranking.first]
    if len(ranking.models) == 2:
        return f"significantly better than {closest} ({p_value})"
    return (
        f"significantly better than each of the others ({p_value} against {closest}, the closest)"
    )


def _rivals_sentence(
    ranking: Ranking, short_by_model: dict[str, str], chances: dict[str, float]
) -> str:
    """Say who may be first too, and with what probability; variants of the first are named as such."""
    variants = ranking.rival_variants
    described: list[str] = []
    for model in ranking.rivals:
        rival = f"{short_by_model[model]} ({format_percent(chances[model])})"
        if model in variants:
            # the first of them begins the sentence
            rival = f"its variant {rival}" if described else f"Its variant {rival}"
        described.append(rival)
    rivals = join_names(described)
    possible = f"{rivals} may be the best, too."
    if not variants:
        return possible
    together = format_percent(sum(chances[model] for model in (ranking.first, *variants)))
    relatives = join_names([short_by_model[model] for model in (ranking.first, *variants)])
    return f"{possible} One of {relatives} is the best ({together})."


def certainty_sentences(
    ranking: Ranking, lead: Lead | None, missing: MissingEvidence | None
) -> list[str]:
    """Say how far the first place holds, and what would make it surer."""
    if len(ranking.models) < 2:
        return []
    sentences = []
    scope = _scope_of_certainty(ranking)
    if not ranking.can_claim:
        sentences.append(missing_errors_sentence(ranking))
    elif scope is not None and not ranking.other_parts:  # else each part says it of itself
        sentences.append(scope)
    if ranking.groups.has_several_tasks_in_one:
        sentences.append(ranking.groups.describe_groups())
    if lead is not None and ranking.can_claim:
        sentences.append(lead_sentence(lead))
    if lead is not None and lead.ranked_otherwise is not None:
        sentences.append(order_sentence(lead, lead.ranked_otherwise))
    if missing is not None:
        sentences.append(missing_sentence(missing))
    if ranking.unranked:
        sentences.append(_unranked_sentence(ranking.unranked))
    return sentences


def _scope_of_certainty(ranking: Ranking) -> str | None:
    """Say what a certain first place allows for; None where it is not certain, or there is one task to speak of."""
    if not ranking.is_first_certain:
        return None
    if ranking.generalizes and ranking.has_no_errors:
        return (
            "This allows for other tasks like these; the scores have no standard errors: "
            "test noise is allowed for only as far as it shows between tasks."
        )
    if ranking.generalizes:
        return "This allows for test noise and for other tasks like these."
    if len(ranking.tasks) > 1:
        return f"This holds for these tasks. {_scope_sentence(ranking)}"
    return None


def _scope_sentence(ranking: Ranking) -> str:
    """Say how many tasks it takes to speak of others."""
    if ranking.groups.has_several_tasks_in_one:
        return f"It takes tasks of {ENOUGH_TASKS} benchmarks or more to speak of others."
    return f"It takes {ENOUGH_TASKS} tasks or more to speak of others."


def missing_errors_sentence(ranking: Ranking) -> str:
    """Say why nothing can be claimed: which scores have no standard error, or that ranks have none."""
    tasks = f"With fewer than {ENOUGH_TASKS} tasks"
    if ranking.groups.has_several_tasks_in_one:
        tasks = f"With tasks of fewer than {ENOUGH_TASKS} benchmarks"
    if not ranking.without_error:
        return (
            f"{tasks} of different scales and scores missing, no difference can be called significant. "
            "Measure every model on every task."
        )
    lacking = len(ranking.without_error)
    scores = sum(ranking.task_counts)
    if lacking == scores:
        subject = "the scores have no standard errors"
    else:
        names = [f"{model} on {task}" for model, task in ranking.without_error]
        verb = "has" if lacking == 1 else "have"
        subject = f"{lacking:,} of {scores:,} scores {verb} no standard error ({join_names(names)})"
    return (
        f"{tasks} a difference needs standard errors to be called significant, and {subject}. "
        f"{HOW_TO_GIVE_ERRORS}"
    )


def seed_sentence(spread: SeedSpread) -> str | None:
    """Say what another fine-tuning seed may change; None where every result has several seeds."""
    if spread.repeated == spread.fine_tuned:
        return None
    if spread.repeated == 0:
        return (
            "Each model was fine-tuned once per task; another seed may change this "
            "(seed_check: 0.1 in the study measures how much)."
        )
    if not spread.is_known:
        return (
            "How far another fine-tuning seed moves a score is not known: "
            f"that takes {MIN_REPEATED_RESULTS} results that are shares of 1 and have two seeds or more, "
            f"and this study has {spread.repeated_shares} (a larger seed_check adds some)."
        )
    return (
        f"Another fine-tuning seed moves a score by about {spread.deviation:.3f} "
        f"(standard deviation, from {format_count(spread.repeated_shares, 'result')} with two seeds or more); "
        "the errors allow for it."
    )


def _unranked_sentence(models: Sequence[str]) -> str:
    """Say which models have no rank for want of a common task."""
    names = join_names(short_names(models))
    if len(models) == 1:
        return f"{names} shares no task with the others and has no rank."
    return f"{names} share no task with the others and have no rank."


def lead_sentence(lead: Lead) -> str:
    """Say by how much two models differ on the tasks that both have; the interval is of test noise alone."""
    first, second = short_names([lead.first, lead.second])
    tasks = f"these {lead.tasks} tasks" if lead.tasks > 1 else "this task"
    difference = lead.difference
    if difference is None:
        return f"{first} scores more than {second} on {lead.tasks_ahead} of {tasks}."
    if abs(difference.value) < SAME_SCORE:
        interval = _describe_interval(difference, lead.are_shares, " of the difference")
        return f"On {tasks} {first} and {second} have the same score{interval}."
    direction = "more" if difference.value >= 0 else "less"
    interval = _describe_interval(difference, lead.are_shares)
    amount = format_difference(abs(difference.value), in_points=lead.are_shares)
    return f"On {tasks} {first} scores {amount} {direction} than {second}{interval}."


def order_sentence(lead: Lead, reason: RankedOtherwise) -> str:
    """Say that the ranking of all models orders two of them otherwise than their own difference, and why."""
    first, second = short_names([lead.first, lead.second])
    reasons = {
        RankedOtherwise.BY_SPREAD: "by mean z score, a difference counts the less "
        "the further apart all models are on its task",
        RankedOtherwise.BY_OTHER_TASKS: "tasks count that one of the two lacks",
        RankedOtherwise.BY_OTHER_MODELS: "comparisons with the other models count, too",
    }
    return f"The ranking of all models puts {second} before {first}: {reasons[reason]}."


def _describe_interval(difference: Interval, in_points: bool, subject: str = "") -> str:
    """Write the interval of a difference in its own direction; nothing where it is not known."""
    if not math.isfinite(difference.low):
        return ""
    if difference.value >= 0:
        low, high = difference.low, difference.high
    else:
        low, high = -difference.high, -difference.low
    level = format_level(difference.level)
    range_text = format_range(low, high, in_points=in_points)
    if subject and in_points:  # where no difference before it says the unit
        range_text += " points"
    return f" ({level} interval{subject} by test noise alone {range_text})"


def missing_sentence(missing: MissingEvidence) -> str:
    """Say what would separate two models."""
    first, rival = short_names([missing.first, missing.rival])
    if math.isfinite(missing.times):
        amount = _examples_in_words(missing)
        return (
            f"If {first} and {rival} differ as much as measured, "
            f"it takes about {amount} to confirm it (80 % power)."
        )
    if not missing.has_several_tasks:
        return (
            f"If {first} and {rival} differ as little as measured, "
            "not even 100 times as many test examples would separate them."
        )
    tasks = "more tasks"
    remedy = "more tasks may"
    if missing.tasks:
        tasks = f"about {format_count(missing.tasks, 'more task')}"
        remedy = f"{tasks} would"
    if missing.is_split:
        reason = f"{first} and {rival} each win some tasks by more than test noise"
    elif missing.is_limited_by_tasks is None:
        return (
            f"It is open whether more test examples would separate {first} and {rival}; {remedy}."
        )
    elif missing.is_limited_by_tasks:
        reason = f"Other tasks could reverse the order of {first} and {rival}"
    else:
        return (
            f"If {first} and {rival} differ as little as measured, "
            f"more test examples would not separate them; {remedy}."
        )
    return f"{reason}. More test examples would not separate them: add {tasks}."


def _examples_in_words(missing: MissingEvidence) -> str:
    """Say how many more test examples it takes, as a number where it is known, else as a multiple."""
    if not missing.examples:
        return f"{missing.times:.2g} times as many test examples"
    examples = format_count(missing.examples, "more test example")
    return f"{examples} per task" if missing.has_several_tasks else examples


def pair_sentences(
    lead: Lead,
    protocol: Protocol,
    comparisons: Sequence[TaskComparison],
    missing: MissingEvidence | None,
) -> list[str]:
    """Say who is better under one protocol, by how much, and on how many tasks."""
    answers = [_better_sentence(lead, describe_preparation(protocol), missing)]
    if lead.ranked_otherwise is not None:
        answers.append(order_sentence(lead, lead.ranked_otherwise))
    if len(comparisons) > 1 and math.isfinite(lead.chance):
        answers.append(wins_sentence(comparisons))
    return answers


def _better_sentence(lead: Lead, preparation: str, missing: MissingEvidence | None) -> str:
    """Say which of two models is better, how sure that is, and what would make it surer."""
    first, second = short_names([lead.first, lead.second])
    difference = lead_sentence(lead)
    if not math.isfinite(lead.chance):
        return f"{capitalize_first(preparation)}: {difference} {NO_CLAIM}"
    if lead.difference is not None and abs(lead.difference.value) < SAME_SCORE:
        interval = _describe_interval(lead.difference, lead.are_shares, " of the difference")
        return f"{first} and {second} score the same {preparation}{interval}."
    chance = format_percent(lead.chance)
    if lead.is_certain:
        scope = f" on {format_count(lead.tasks, 'task')}"
        if lead.generalizes:
            scope = " on tasks like these"
        return f"{first} is better than {second} {preparation}{scope} ({chance} sure). {difference}"
    answer = (
        f"{first} may be better than {second} {preparation}, but that is not sure ({chance}). "
        f"{difference}"
    )
    if missing is not None:
        answer += f" {missing_sentence(missing)}"
    return answer


def wins_sentence(comparisons: Sequence[TaskComparison]) -> str:
    """Say on how many tasks the difference is real, corrected for looking at all of them."""
    first, second = short_names(list(comparisons[0].models))
    significant = [comparison for comparison in comparisons if comparison.is_significant]
    if all(comparison.is_significant is None for comparison in comparisons):
        return "No single task can be tested: the scores have no standard errors."
    if not significant:
        return (
            f"On none of the {len(comparisons)} tasks is the difference significant "
            "(5 % false discovery rate)."
        )
    first_wins = sum(comparison.difference.value > 0 for comparison in significant)
    second_wins = len(significant) - first_wins
    return (
        f"{first} is significantly better on {first_wins} of {len(comparisons)} tasks, "
        f"{second} on {second_wins} (5 % false discovery rate)."
    )


def agreement_sentence(change: AgreementChange | None, alone: Agreement | None) -> str | None:
    """Say whether the tasks agree more on the ranking after tuning; without a change, how far they agree."""
    if (
        change is not None
        and math.isfinite(change.mean_before)
        and math.isfinite(change.mean_after)
    ):
        return _change_sentence(change)
    if alone is None or alone.models < ENOUGH_MODELS or not math.isfinite(alone.mean):
        return None
    low, high = alone.interval.low, alone.interval.high
    level = format_level(alone.interval.level)
    interval = f"{level} interval over {alone.resampled_unit} {low:.2f} to {high:.2f}"
    return (
        f"The mean Kendall's τ between tasks is {alone.mean:.2f} ({interval}); "
        "1 is perfect agreement, 0 is none."
    )


def _change_sentence(change: AgreementChange) -> str:
    """Say how far the tasks agree before and after tuning, and whether that is a change."""
    preparation_before = "before fine-tuning"
    if change.before.tuned:
        preparation_before = describe_preparation(change.before)
    before = f"{change.mean_before:.2f} {preparation_before}"
    after = f"{change.mean_after:.2f} {describe_preparation(change.after)}"
    means = f"the mean Kendall's τ between tasks is {before} and {after}"
    if change.models < ENOUGH_MODELS:
        limit = f"It takes {ENOUGH_MODELS} models or more to say whether that is a change."
        return f"{capitalize_first(means)}. {limit}"
    if not math.isfinite(change.corrected_difference.value):
        return f"{capitalize_first(means)}."
    difference = change.interval
    level = format_level(difference.level)
    interval = f"{level} interval over {change.resampled_unit} {difference.low:.2f} to {difference.high:.2f}"
    measured = f"{means} (difference {difference.value:+.2f}, {interval})"
    corrected = (
        f"without test noise it would be {change.corrected_before:.2f} "
        f"and {change.corrected_after:.2f}"
    )
    if change.direction == 0:
        reason = _describe_doubt(change, corrected)
        return f"It is open whether the tasks agree more after fine-tuning: {measured}; {reason}."
    measured += f"; {corrected}"
    direction = "more" if change.direction > 0 else "less"
    return f"The tasks agree {direction} on the ranking after fine-tuning: {measured}."


def _describe_doubt(change: AgreementChange, corrected: str) -> str:
    """Say which interval has zero in it where the one over families or models has not: it leaves the change open."""
    if _includes_zero(change.interval):
        return corrected
    for source, interval in change.difference.items():
        if _includes_zero(interval):
            return f"but over {source} the interval is {interval.low:.2f} to {interval.high:.2f}; {corrected}"
    difference = change.corrected_difference
    return (
        f"but {corrected}, and the interval of that difference is "
        f"{difference.low:.2f} to {difference.high:.2f}"
    )


def _includes_zero(interval: Interval) -> bool:
    return interval.low <= 0 <= interval.high


def resolution_sentence(significance: Significance | None) -> str | None:
    """Say how many pairs of models differ significantly, and what a test can find."""
    if significance is None or not any(significance.pairs):
        return None
    pairs = sum(significance.pairs)
    share = sum(significance.significant) / pairs
    level = format_level(1 - significance.level)
    smallest, in_points = _find_typical_difference(significance)
    if len(significance.pairs) > 1:
        scope, subject = "on a task", "A typical task"
    else:
        scope, subject = "here", "This test"
    finding = f"{100 * share:.0f} % of the model pairs differ significantly {scope}"
    if pairs == 1:
        finding = f"The two models {'differ' if share else 'do not differ'} significantly here"
    return (
        f"{finding} ({level} level). "
        f"{subject} can detect a difference of {format_difference(smallest, in_points=in_points)}"
        " or more (80 % power)."
    )


def _find_typical_difference(significance: Significance) -> tuple[float, bool]:
    """Return the smallest difference that a typical task can detect, and whether in points.

    Differences of one scale are compared: those of the shares of 1, where most tasks have such scores.
    """
    detectable = np.array(significance.detectable)
    unit_scaled = np.array(significance.unit_scaled, dtype=bool)
    if len(unit_scaled) == len(detectable) and unit_scaled.mean() > 0.5:
        return float(np.nanmedian(detectable[unit_scaled])), True
    return float(np.nanmedian(detectable)), False
