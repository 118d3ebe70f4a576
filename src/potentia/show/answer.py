"""The answer first: who has the most potential and how sure that is, in sentences and as a ladder of all models.

Each rung of the ladder has the model's rank and score on two axes side by side, as shares of their width. What is not
measured has a block of its own, marked as predicted: who may be best once all is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.analysis.benchmark import BaselineVerdict, Classification
from potentia.analysis.completion import Completion
from potentia.analysis.planning import describe_seeds, find_selection
from potentia.analysis.rankings import (
    AGGREGATE_LABELS,
    AggregateMethod,
    ModelStanding,
    Ranking,
    Scoreboard,
    agreement_sentence,
    resolution_sentence,
)
from potentia.facts import variant_of
from potentia.show.page import format_chance, format_percent, keep_numbers_with_units, make_figures
from potentia.show.svg import Scale, make_scale
from potentia.values.findings import Interval, short_names
from potentia.values.selection_studies import SelectionStudy
from potentia.values.wording import format_count, format_parameters, set_signs

if TYPE_CHECKING:
    from potentia.show.source import ReportData

MAX_TICKS = 5  # on an axis
TOP_PLACES = 3  # the chance to be among the first so many is shown
MAX_RUNGS = 200  # models of the ladder
MAX_RUNS_ABOVE = 4  # whose sentences stand above the figure
GOOD_CHANCE = 0.8  # to be the best: enough to advise a model that is not certain to be
OVERALL_MARKS = {AggregateMethod.MEAN_Z: "z", AggregateMethod.MEAN_RANK: "won"}
MIN_CHANCE_SHOWN = 0.1  # to be best, of models named beside the first


Tile = dict[str, str]  # a number, what it is of, and a note


@dataclass(frozen=True)
class Answer:
    """What a reader takes away."""

    headline: str
    sentences: tuple[str, ...]
    advice: tuple[str, ...]  # what to do with it
    tiles: tuple[Tile, ...]
    board: Scoreboard | None = None
    notes: tuple[str, ...] = ()  # what the studies say that readers must know
    sentences_above: int = 1  # of the figure

    @property
    def standings(self) -> tuple[ModelStanding, ...]:
        """Every ranked model, best first."""
        return () if self.board is None else self.board.standings

    @property
    def method(self) -> str:
        """What ranks the models."""
        return "" if self.board is None else self.board.ranking.method


def make_answer(report_data: ReportData) -> Answer:
    """Put the findings into words; nothing is said that an interval does not hold."""
    scoreboard = report_data.scoreboard
    if scoreboard is None:
        reason = report_data.problem or "there are too few scores"
        return Answer(
            f"No ranking yet: {reason}.",
            (),
            (),
            _make_tiles(report_data),
            notes=report_data.evidence.study_notes,
        )
    labelled_test = _only_labelled_test(report_data, scoreboard)
    if report_data.pretraining_runs is None:
        headline = scoreboard.headline()
        sentences = _sentences_on_certainty(report_data, scoreboard)
        verdict = "" if labelled_test is None else labelled_test.verdict_sentence()
        if len(report_data.written) == 1 and len(scoreboard.ranking.tasks) == 1:
            verdict, *about_words = report_data.written[0].sentences()
            sentences += about_words
        if verdict:
            sentences.insert(0, headline)
            headline = verdict
        sentences += _sentences_on_selection(report_data, scoreboard)
    else:
        headline = report_data.pretraining_runs.headline()
        sentences = list(report_data.pretraining_runs.sentences())
    opening = report_data.opening
    if opening is not None:
        sentences.insert(0, headline)
        headline = opening.headline
    sentences += _sentences_on_tasks(report_data)
    readable_sentences = tuple(keep_numbers_with_units(sentence) for sentence in sentences)
    advice: list[str] = []
    if report_data.pretraining_runs is None:
        billions = report_data.evidence.background.billions
        advice = [advise(scoreboard), describe_best_by_size(scoreboard, billions)]
        if len(scoreboard.ranking.tasks) == 1 and any(
            test.verdict is BaselineVerdict.LOSES for test in report_data.written
        ):
            advice = ["Add more rows, or larger candidates: none of these is of use yet."]
        elif labelled_test is not None and labelled_test.verdict is BaselineVerdict.LOSES:
            advice = [labelled_test.advise()]
        elif labelled_test is not None and labelled_test.needs_no_fine_tuning:
            cheaper = labelled_test.best_baseline_label
            advice.insert(
                0,
                f"Try {cheaper} first: no candidate is significantly better, and it needs no fine-tuning.",
            )
    return Answer(
        set_signs(headline),
        readable_sentences,
        tuple(sentence for sentence in advice if sentence),
        _make_tiles(report_data),
        scoreboard,
        notes=report_data.evidence.study_notes,
        sentences_above=_count_sentences_above(report_data),
    )


def _count_sentences_above(report_data: ReportData) -> int:
    """Return how many sentences stand above the figure: one, or one for each of a few pretraining runs."""
    if report_data.pretraining_runs is None or report_data.opening is not None:
        return 1
    return min(len(report_data.pretraining_runs.runs), MAX_RUNS_ABOVE)


def _sentences_on_certainty(report_data: ReportData, scoreboard: Scoreboard) -> list[str]:
    """Say how sure the ranking is; of a selection what it takes to see the seed in words of ``select``."""
    studies = report_data.evidence.studies
    is_selection = bool(studies) and SelectionStudy.parse(studies[-1].name) is not None
    if not is_selection or scoreboard.seeds is None or len(scoreboard.standings) < 2:
        return list(scoreboard.certainty())
    about_seeds = describe_seeds(scoreboard.seeds)
    sentences = list(replace(scoreboard, seeds=None).certainty())
    return sentences if about_seeds is None else [*sentences, about_seeds]


def advise(scoreboard: Scoreboard) -> str:
    """Say what to do with the ranking; nothing where it is no basis for a choice."""
    ranking = scoreboard.ranking
    if len(scoreboard.standings) < 2 or not ranking.can_claim:
        return ""
    model_names = scoreboard.names
    leader = model_names[ranking.first]
    if ranking.other_parts:
        return (
            "Measure at least one task on all models (better five): parts that share no task cannot"
            " be compared."
        )
    if not ranking.protocol.tuned:
        return (
            "Give the leading models the same fine-tuning before you choose (potentia run): scores"
            " from before it do not say which will be best after it."
        )
    if ranking.is_first_certain:
        return f"Fine-tune {leader}."
    variants = set(ranking.rival_variants)
    rivals = []
    for model in ranking.rivals:
        if model not in variants and model in model_names:
            rivals.append(model_names[model])
    if not rivals:
        return f"Fine-tune {leader}: only variants of the same model come close."
    more = "more tasks" if len(ranking.tasks) > 1 else "more test examples"
    probability = _chance_of_first(scoreboard)
    if probability >= GOOD_CHANCE:
        others = rivals[0] if len(rivals) == 1 else _join_names(rivals)
        return (
            f"Fine-tune {leader}: it is the best with a probability of {format_chance(probability)}."
            f" To be surer, compare it with {others} on {more}."
        )
    return (
        f"Choose between {_join_names([leader, *rivals])} by size, speed or licence, or compare them"
        f" on {more}: these scores cannot say which is better."
    )


def _chance_of_first(scoreboard: Scoreboard) -> float:
    """Return the probability that the model ranked first is the best."""
    chances = {standing.model: standing.p_first for standing in scoreboard.standings}
    return chances[scoreboard.first]


def describe_best_by_size(scoreboard: Scoreboard, billions: Mapping[str, float]) -> str:
    """Name the models that no smaller or equally large model is ranked above, the smallest first."""
    sized = []
    for standing in scoreboard.standings:
        is_variant = variant_of(standing.model) != standing.model
        if standing.model in billions and not is_variant:
            sized.append((billions[standing.model], standing))
    if len({size for size, _ in sized}) < 2:
        return ""
    best_by_size: list[str] = []
    best_rank = math.inf
    for size, standing in sorted(sized, key=lambda entry: (entry[0], entry[1].rank)):
        if standing.rank < best_rank:
            best_rank = standing.rank
            best_by_size.append(f"{scoreboard.names[standing.model]} ({format_parameters(size)})")
    return f"The best model up to each size: {', '.join(best_by_size)}."


def _join_names(model_names: Sequence[str]) -> str:
    """Write names in a row: a, b and c."""
    return f"{', '.join(model_names[:-1])} and {model_names[-1]}"


def _only_labelled_test(report_data: ReportData, scoreboard: Scoreboard) -> Classification | None:
    """Return the test on labelled texts where it is the only task; it says whether any model is worth it."""
    if len(report_data.labelled) != 1 or len(scoreboard.ranking.tasks) != 1:
        return None
    return report_data.labelled[0]


def _sentences_on_selection(report_data: ReportData, scoreboard: Scoreboard) -> list[str]:
    """Say what more training examples would change and what to check, where the store is that of a selection."""
    selection = find_selection(
        report_data.evidence,
        scoreboard.ranking.first,
        classification=_only_labelled_test(report_data, scoreboard),
    )
    return [] if selection is None else selection.sentences()


def _sentences_on_tasks(report_data: ReportData) -> list[str]:
    """Say how far the tasks agree, and how many differences are significant, where that is known."""
    if report_data.rankings is None:
        return []
    sentences = [
        agreement_sentence(
            report_data.rankings.changes.get(
                (report_data.baseline_protocol, report_data.ranking_protocol)
            ),
            report_data.rankings.agreement.get(report_data.ranking_protocol),
        ),
        resolution_sentence(report_data.rankings.significance.get(report_data.ranking_protocol)),
    ]
    return [sentence for sentence in sentences if sentence is not None]


# --- tiles ------------------------------------------------------------------------------------------------------------


def _make_tile(value: str, label: str, note: str) -> Tile:
    return {"value": value, "label": label, "note": note}


def _make_tiles(report_data: ReportData) -> tuple[Tile, ...]:
    """Return the numbers that stand above the ranking."""
    failures = None
    if report_data.failures:
        failures = _make_tile(
            str(len(report_data.failures)),
            "failed results",
            "shown with their reason, never as zero",
        )
    tiles = (
        _size_tile(report_data),
        _first_place_tile(report_data),
        _baseline_tile(report_data),
        failures,
        _agreement_tile(report_data),
        _significance_tile(report_data),
    )
    return tuple(tile for tile in tiles if tile is not None)


def _size_tile(report_data: ReportData) -> Tile:
    """Return how many models, tasks, corpora and scores there are."""
    corpora: set[str] = set()
    tasks: set[str] = set()
    for matrix in report_data.evidence.final_scores.values():
        corpora.update(matrix.corpora().tasks)
        tasks.update(matrix.tasks)
    tasks -= corpora
    scores = sum(
        int(np.isfinite(matrix.values).sum()) for matrix in report_data.evidence.scores.values()
    )
    note = format_count(scores, "score")
    if corpora:
        note += f", with {format_count(len(corpora), 'corpus', 'corpora')}"
    label = "models × tasks"
    if report_data.pretraining_runs is not None:
        label = (
            f"checkpoints × tasks, of {format_count(len(report_data.pretraining_runs.runs), 'run')}"
        )
    return _make_tile(f"{len(report_data.evidence.models)} × {len(tasks)}", label, note)


def _first_place_tile(report_data: ReportData) -> Tile | None:
    """Return the probability that the first model is the best; None where no model is first of all."""
    if report_data.rankings is None or report_data.pretraining_runs is not None:
        return None
    ranking = report_data.rankings.overall.get(report_data.ranking_protocol)
    if ranking is None or not ranking.can_claim or ranking.other_parts:
        return None
    probability = format_chance(float(ranking.p_first.max()))
    return _make_tile(probability, "that the first is the best", f"by the {ranking.method.label}")


def _baseline_tile(report_data: ReportData) -> Tile | None:
    """Return the best that needs no fine-tuning, beside labelled texts that are the only task."""
    if len(report_data.labelled) != 1 or report_data.pretraining_runs is not None:
        return None
    (labelled_test,) = report_data.labelled
    score = labelled_test.best_baseline_score
    if score is None:
        return None
    return _make_tile(f"{score:.2f}", labelled_test.best_baseline_label, "needs no fine-tuning")


def _agreement_tile(report_data: ReportData) -> Tile | None:
    """Return how far the tasks rank the models alike, before and after tuning where both are known."""
    if (
        report_data.rankings is None or report_data.has_few_models
    ):  # τ of so few models takes few values
        return None
    label = "agreement between tasks"
    change = report_data.rankings.changes.get(
        (report_data.baseline_protocol, report_data.ranking_protocol)
    )
    if change is not None and np.isfinite([change.mean_before, change.mean_after]).all():
        value = f"{change.mean_before:.2f} → {change.mean_after:.2f}"
        note = "mean Kendall's τ, before → after fine-tuning"
        if change.before.tuned:
            note = f"mean Kendall's τ, {change.before.label} → {change.after.label}"
        difference = change.interval
        if np.isfinite(difference.low):
            # As the sentence under the headline says it.
            openness = "open whether that is a change, " if change.direction == 0 else ""
            note = (
                f"{note}; {openness}difference {difference.value:+.2f} "
                f"({difference.low:.2f} to {difference.high:.2f} over {change.resampled_unit})"
            )
        return _make_tile(value, label, note)
    agreement = report_data.rankings.agreement.get(report_data.ranking_protocol)
    if agreement is not None and np.isfinite(agreement.mean):
        return _make_tile(f"{agreement.mean:.2f}", label, "mean Kendall's τ")
    return None


def _significance_tile(report_data: ReportData) -> Tile | None:
    """Return the share of pairs of models on a task that differ significantly."""
    if report_data.rankings is None or report_data.failures:
        return None
    significance = report_data.rankings.significance.get(report_data.ranking_protocol)
    if significance is None or sum(significance.pairs) < 2:
        return None
    share = sum(significance.significant) / sum(significance.pairs)
    compared = "models" if report_data.pretraining_runs is None else "checkpoints"
    return _make_tile(
        format_percent(share), "differ significantly", f"pairs of {compared} on a task, 5 % level"
    )


# --- the ladder -------------------------------------------------------------------------------------------------------


def answer_context(report_data: ReportData) -> dict[str, Any]:
    """Return what the template of the answer needs."""
    answer = make_answer(report_data)
    scoreboard = answer.board
    context: dict[str, Any] = {
        "of_checkpoints": report_data.pretraining_runs is not None,
        "answer": answer,
        "opening": report_data.opening,
        "opening_figures": [],
        "most": MAX_RUNGS,
        "ladders": (),
        "names": (),
        "outlook": None,
    }
    if scoreboard is not None:
        parts = (scoreboard, *scoreboard.other_parts)
        billions = report_data.evidence.background.billions
        context["ladders"] = [_layout_ladder(part, billions) for part in parts]
        names: list[str] = []
        for part in parts:
            names += part.names.values()
        context["names"] = tuple(names)
    if report_data.opening is not None:
        chart = report_data.opening.chart  # its own section shows it, too: a page has an id once
        opening_chart = replace(chart, name=f"opening-{chart.name}")
        context["opening_figures"] = make_figures([opening_chart])
    if report_data.completion is not None:
        context["outlook"] = _layout_outlook(report_data.completion)
    return context


def _layout_axis(scale: Scale) -> dict[str, Any]:
    """Return the marks of a scale over 100 per cent, each with its position, and the distance of two."""
    marks = [(round(scale(tick_value), 4), tick_label) for tick_value, tick_label in scale.marks]
    tick_step = 100.0
    if len(marks) > 1:
        tick_step = round(marks[1][0] - marks[0][0], 4)
    return {"marks": marks, "step": tick_step}


def _layout_interval(scale: Scale, interval: Interval | None) -> dict[str, float] | None:
    """Return the positions of a value and its ends; the ends are at the value where they are not known."""
    if interval is None:
        return None
    low = interval.value
    high = interval.value
    if math.isfinite(interval.low):
        low = interval.low
        high = interval.high
    return {
        "at": _position(scale, interval.value),
        "low": _position(scale, low),
        "high": _position(scale, high),
    }


def _position(scale: Scale, value: float) -> float:
    """Return where a value stands on a scale, in per cent of its width."""
    if not math.isfinite(value):
        return 0.0
    return round(scale.inside(value), 2)


def _group_variants(standings: Sequence[ModelStanding]) -> list[tuple[ModelStanding, bool]]:
    """Return the models in their order, each followed by its variants, and whether a model is such a variant."""
    ranked = {standing.model for standing in standings}
    variants: dict[str, list[ModelStanding]] = {}
    originals: list[ModelStanding] = []
    for standing in standings:
        original = variant_of(standing.model)
        if original != standing.model and original in ranked:
            variants.setdefault(original, []).append(standing)
        else:
            originals.append(standing)
    grouped: list[tuple[ModelStanding, bool]] = []
    for standing in originals:
        grouped.append((standing, False))
        grouped += [(variant, True) for variant in variants.get(standing.model, ())]
    return grouped


def _layout_ladder(scoreboard: Scoreboard, billions: Mapping[str, float]) -> dict[str, Any]:
    """Lay the scoreboard out: ranks, and the scores by the first protocol and by the one that ranks."""
    columns = [
        column
        for column, protocol in enumerate(scoreboard.protocols)
        if protocol in (scoreboard.before, scoreboard.protocol)
    ]
    after_column = columns[-1] if columns else -1
    before_column = columns[0] if len(columns) > 1 else None
    shown_columns = columns or [after_column]
    known_scores = []
    for standing in scoreboard.standings:
        for column in shown_columns:
            score = standing.scores[column]
            if score is not None:
                known_scores.append(score)
    rank_scale = _make_rank_scale(len(scoreboard.standings))
    score_scale = None
    if scoreboard.tasks and known_scores:
        score_scale = make_scale(_finite_ends(known_scores), 0.0, 100.0, max_ticks=MAX_TICKS)
    rungs = []
    for standing, is_variant in _group_variants(scoreboard.standings):
        after = standing.scores[after_column]
        before = None if before_column is None else standing.scores[before_column]
        before_rank = None
        if standing.before is not None:
            before_rank = _position(rank_scale, standing.before)
        rank_interval = Interval(standing.rank, *standing.rank_interval)
        rungs.append(
            {
                "model": standing.model,
                "name": scoreboard.names[standing.model],
                "size": format_parameters(billions[standing.model])
                if standing.model in billions
                else "",
                "is_variant": is_variant,
                "standing": standing,
                "rank": _layout_interval(rank_scale, rank_interval),
                "before_rank": before_rank,
                "score": score_scale and _layout_interval(score_scale, after),
                "before": score_scale and _layout_interval(score_scale, before),
                "numbers": _format_scores(before, after, standing.gain),
                "overall": _format_overall(scoreboard, standing.model),
            }
        )
    has_several_tasks = len(scoreboard.ranking.tasks) > 1
    return {
        "board": scoreboard,
        "method": AGGREGATE_LABELS[scoreboard.ranking.method] if has_several_tasks else "score",
        "mark": OVERALL_MARKS.get(scoreboard.ranking.method, ""),
        "ranks": _layout_axis(rank_scale),
        "scores": score_scale and _layout_axis(score_scale),
        "rungs": rungs,
        "intervals": scoreboard.ranking.can_claim,
        "sources": _describe_rank_noise(scoreboard.ranking),
        "errors": any(math.isfinite(score.low) for score in known_scores),
    }


def _format_overall(scoreboard: Scoreboard, model: str) -> str:
    """Write what ranks a model, where it is something else than the score that is shown."""
    overall_scores = scoreboard.overall_scores
    if model not in overall_scores:
        return ""
    mark = OVERALL_MARKS[scoreboard.ranking.method]
    return f"{mark} {overall_scores[model]:.2f}".replace("-", "−")


def _describe_rank_noise(ranking: Ranking) -> str:
    """Say what the intervals of ranks are drawn from."""
    if not ranking.generalizes:
        return "test noise"
    if len(ranking.without_error) == sum(ranking.task_counts):
        return "the choice of tasks (the scores have no standard errors)"
    return "test noise and the choice of tasks"


def _finite_ends(intervals: Iterable[Interval]) -> list[float]:
    """Return all values and ends of intervals that are known."""
    ends = []
    for interval in intervals:
        for value in (interval.value, interval.low, interval.high):
            if math.isfinite(value):
                ends.append(value)
    return ends


def _make_rank_scale(models: int) -> Scale:
    """Return a scale from 1 to the last rank, marked at 1, in even steps, and at the last rank."""
    last_rank = max(2, models)
    mark_step = max(1, math.ceil((last_rank - 1) / (MAX_TICKS - 1)))
    marks = [*range(1, last_rank + 1, mark_step)]
    if last_rank - marks[-1] < mark_step / 2:
        marks.pop()  # too close to the last rank, or the last rank itself
    marks.append(last_rank)
    return Scale(1, last_rank, 0.0, 100.0, marks=tuple((mark, str(mark)) for mark in marks))


def _format_scores(
    before: Interval | None, after: Interval | None, gain_interval: Interval | None
) -> tuple[str, str]:
    """Return the two texts beside a model's bars: its scores, and its gain; each is empty where there is none.

    Where only one score is known and its interval is lopsided, the second text is that interval.
    """
    if after is None:
        return "", ""
    if before is None and math.isfinite(after.low) and not after.has_even_sides():
        return f"{after.value:.3f}", f"{after.low:.3f} to {after.high:.3f}"
    if before is None:
        return _format_with_error(after), ""
    scores = f"{before.value:.3f} → {after.value:.3f}"
    if gain_interval is None:
        return scores, ""
    return scores, _format_with_error(gain_interval, "+")


def _format_with_error(score: Interval, sign: str = "") -> str:
    score_text = f"{score.value:{sign}.3f}".replace("-", "−")
    half_width = (score.high - score.low) / 2
    if math.isfinite(half_width):
        score_text += f" ± {half_width:.3f}"
    return score_text


# --- what is predicted ------------------------------------------------------------------------------------------------


def _layout_outlook(completion: Completion) -> dict[str, Any]:
    """Lay the expected final ranking out, best first."""
    scale = _make_rank_scale(len(completion.models))
    shown_models = min(TOP_PLACES, len(completion.models))
    order = [int(row) for row in np.argsort(completion.rank, kind="stable")]
    model_names = short_names([completion.models[row] for row in order])
    probability_in_top = completion.p_top(shown_models)
    measured_cells = completion.measured.sum(axis=1)
    chances = []
    for row, short_name in zip(order, model_names, strict=True):
        predicted_rank = Interval(
            float(completion.rank[row]),
            float(completion.rank_low[row]),
            float(completion.rank_high[row]),
        )
        chances.append(
            {
                "model": completion.models[row],
                "name": short_name,
                "rank": predicted_rank,
                "place": _layout_interval(scale, predicted_rank),
                "best": float(completion.p_best[row]),
                "top": float(probability_in_top[row]),
                "cells": int(measured_cells[row]),
            }
        )
    return {
        "ranks": _layout_axis(scale),
        "chances": chances,
        "top": shown_models,
        "tasks": len(completion.tasks),
        "headline": _outlook_headline(chances),
        "basis": _outlook_basis(completion),
    }


def _outlook_headline(chances: list[dict[str, Any]]) -> str:
    """Say who is probably the best once every cell is measured."""
    if len(chances) < 2:
        return f"There is one model, {chances[0]['name']}: nothing to rank, only its scores are predicted."
    likeliest, *rivals = sorted(chances, key=lambda chance_of_model: -chance_of_model["best"])
    sentence = (
        f"Once every result is measured, {likeliest['name']} is the best model"
        f" with probability {format_chance(likeliest['best'])}"
    )
    named_rivals = [
        f"{rival['name']} {format_percent(rival['best'])}"
        for rival in rivals[:3]
        if rival["best"] >= MIN_CHANCE_SHOWN
    ]
    if named_rivals:
        sentence += "; " + ", ".join(named_rivals)
    return sentence + "."


def _outlook_basis(completion: Completion) -> str:
    """Say what the prediction rests on."""
    measured = int(completion.measured.sum())
    sentence = (
        f"Predicted from {measured:,} of {completion.measured.size:,} fine-tuned results,"
        " scores before fine-tuning and facts of the models"
    )
    if completion.history:
        sentence += f", and {completion.history:,} models of other studies"
    if len(completion.models) > 1:
        tau = completion.agreement
        sentence += (
            f"; expected agreement with the finished ranking τ {tau.value:.2f}"
            f" ({tau.low:.2f} to {tau.high:.2f})"
        )
    return sentence + "."
