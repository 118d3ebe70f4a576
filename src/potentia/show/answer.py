"""The answer first: who has the most potential and how sure that is, in sentences and as a ladder of all models.

Each rung of the ladder has the model's rank and score on two axes side by side, as shares of their width. What is not
measured has a block of its own, marked as predicted: who may be best once all is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.analysis.completion import Completion
from potentia.analysis.planning import find_selection
from potentia.analysis.rankings import (
    AGGREGATE_LABELS,
    ModelStanding,
    Scoreboard,
    agreement_sentence,
    resolution_sentence,
)
from potentia.facts import variant_of
from potentia.show.page import chance, count, percent, unbroken
from potentia.show.svg import Scale, make_scale
from potentia.values.findings import Interval, short_names

if TYPE_CHECKING:
    from potentia.show.source import ReportData

MAX_TICKS = 5  # on an axis
TOP_PLACES = 3  # the chance to be among the first so many is shown
MAX_RUNGS = 200  # models of the ladder
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

    @property
    def standings(self) -> tuple[ModelStanding, ...]:
        """Every ranked model, best first."""
        return () if self.board is None else self.board.standings

    @property
    def method(self) -> str:
        """What ranks the models."""
        return "" if self.board is None else self.board.ranking.method


def make_answer(data: ReportData) -> Answer:
    """Put the findings into words; nothing is said that an interval does not hold."""
    scoreboard = data.board
    if scoreboard is None:
        reason = data.problem or "there are too few scores"
        return Answer(f"No ranking yet: {reason}.", (), (), _make_tiles(data))
    if data.runs is None:
        headline = scoreboard.headline()
        sentences = list(scoreboard.certainty())
        verdict = _verdict_on_labelled_texts(data, scoreboard)
        if verdict:
            sentences.insert(0, headline)
            headline = verdict
        sentences += _sentences_on_selection(data, scoreboard)
    else:
        headline = data.runs.headline()
        sentences = list(data.runs.sentences())
    sentences += _sentences_on_tasks(data)
    unbroken_sentences = tuple(unbroken(sentence) for sentence in sentences)
    advice: list[str] = []
    if data.runs is None:
        billions = data.evidence.background.billions
        advice = [advise(scoreboard), describe_best_by_size(scoreboard, billions)]
    return Answer(
        headline,
        unbroken_sentences,
        tuple(sentence for sentence in advice if sentence),
        _make_tiles(data),
        scoreboard,
    )


def advise(scoreboard: Scoreboard) -> str:
    """Say what to do with the ranking; nothing where it is no basis for a choice."""
    ranking = scoreboard.ranking
    if len(scoreboard.standings) < 2 or not ranking.can_claim:
        return ""
    names = scoreboard.names
    first = names[ranking.first]
    if not ranking.protocol.tuned:
        return (
            "Give the leading models the same fine-tuning before you choose (potentia run): scores"
            " from before it do not say which will be best after it."
        )
    if ranking.is_first_certain:
        return f"Fine-tune {first}."
    variants = set(ranking.rival_variants)
    rivals = [names[model] for model in ranking.rivals if model not in variants and model in names]
    if not rivals:
        return f"Fine-tune {first}: what comes close are variants of the same model."
    return (
        f"Choose between {_join_names([first, *rivals])} by size, speed or licence, or compare them"
        " on more tasks: these scores cannot say which is better."
    )


def describe_best_by_size(scoreboard: Scoreboard, billions: Mapping[str, float]) -> str:
    """Name the models that no smaller or equally large model is ranked above, the smallest first."""
    sized = [
        (billions[standing.model], standing)
        for standing in scoreboard.standings
        if standing.model in billions and variant_of(standing.model) == standing.model
    ]
    if len({size for size, _ in sized}) < 2:
        return ""
    best_by_size: list[str] = []
    best_rank = math.inf
    for size, standing in sorted(sized, key=lambda entry: (entry[0], entry[1].rank)):
        if standing.rank < best_rank:
            best_rank = standing.rank
            best_by_size.append(f"{scoreboard.names[standing.model]} ({format_size(size)})")
    return f"Best for its size: {', '.join(best_by_size)}."


def format_size(billions: float) -> str:
    """Write a number of parameters: 1.1B, 135M."""
    if billions >= 1:
        return f"{billions:.3g}B"
    return f"{1000 * billions:.3g}M"


def _join_names(names: Sequence[str]) -> str:
    """Write names in a row: a, b and c."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _verdict_on_labelled_texts(data: ReportData, scoreboard: Scoreboard) -> str:
    """Say whether any model is worth it, where one task of labelled texts is all there is; else nothing."""
    if len(data.labelled) != 1 or len(scoreboard.ranking.tasks) != 1:
        return ""
    return data.labelled[0].verdict_sentence()


def _sentences_on_selection(data: ReportData, scoreboard: Scoreboard) -> list[str]:
    """Say what more labels would change and what to check, where the store is that of a selection."""
    selection = find_selection(data.evidence, scoreboard.ranking.first)
    return [] if selection is None else selection.sentences()


def _sentences_on_tasks(data: ReportData) -> list[str]:
    """Say how far the tasks agree, and how many differences are significant, where that is known."""
    if data.rankings is None:
        return []
    sentences = [
        agreement_sentence(
            data.rankings.changes.get((data.first, data.main)),
            data.rankings.agreement.get(data.main),
        ),
        resolution_sentence(data.rankings.significance.get(data.main)),
    ]
    return [sentence for sentence in sentences if sentence is not None]


# --- tiles ------------------------------------------------------------------------------------------------------------


def _make_tile(value: str, label: str, note: str) -> Tile:
    return {"value": value, "label": label, "note": note}


def _make_tiles(data: ReportData) -> tuple[Tile, ...]:
    """Return the numbers that stand above the ladder."""
    failures = None
    if data.failures:
        failures = _make_tile(
            str(len(data.failures)), "failed cells", "shown with their reason, never as zero"
        )
    tiles = (
        _size_tile(data),
        _first_place_tile(data),
        failures,
        _agreement_tile(data),
        _significance_tile(data),
    )
    return tuple(tile for tile in tiles if tile is not None)


def _size_tile(data: ReportData) -> Tile:
    """Return how many models, tasks, corpora and scores there are."""
    corpora: set[str] = set()
    tasks: set[str] = set()
    for matrix in data.evidence.planned.values():
        corpora.update(matrix.corpora().tasks)
        tasks.update(matrix.tasks)
    tasks -= corpora
    scores = sum(int(np.isfinite(matrix.values).sum()) for matrix in data.evidence.scores.values())
    note = count(scores, "score")
    if corpora:
        note += f", with {count(len(corpora), 'corpus', 'corpora')}"
    label = "models × tasks"
    if data.runs is not None:
        label = f"checkpoints × tasks, of {count(len(data.runs.runs), 'run')}"
    return _make_tile(f"{len(data.evidence.models)} × {len(tasks)}", label, note)


def _first_place_tile(data: ReportData) -> Tile | None:
    """Return the probability that the first model is the best."""
    if data.rankings is None or data.runs is not None:
        return None
    ranking = data.rankings.overall.get(data.main)
    if ranking is None or not ranking.can_claim:
        return None
    probability = chance(float(ranking.p_first.max()))
    return _make_tile(probability, "P(first)", f"by the {ranking.method.label}")


def _agreement_tile(data: ReportData) -> Tile | None:
    """Return how far the tasks rank the models alike, before and after tuning where both are known."""
    if data.rankings is None or data.few:  # τ of so few models takes few values
        return None
    label = "agreement between tasks"
    change = data.rankings.changes.get((data.first, data.main))
    if change is not None and np.isfinite([change.mean_before, change.mean_after]).all():
        value = f"{change.mean_before:.2f} → {change.mean_after:.2f}"
        note = f"mean Kendall's τ, {change.before.label} → {change.after.label}"
        return _make_tile(value, label, note)
    agreement = data.rankings.agreement.get(data.main)
    if agreement is not None and np.isfinite(agreement.mean):
        return _make_tile(f"{agreement.mean:.2f}", label, "mean Kendall's τ")
    return None


def _significance_tile(data: ReportData) -> Tile | None:
    """Return the share of pairs of models on a task that differ significantly."""
    if data.rankings is None or data.failures:
        return None
    significance = data.rankings.significance.get(data.main)
    if significance is None or not any(significance.pairs):
        return None
    share = sum(significance.significant) / sum(significance.pairs)
    return _make_tile(percent(share), "comparisons resolved", "pairs of models on a task, 95 %")


# --- the ladder -------------------------------------------------------------------------------------------------------


def answer_context(data: ReportData) -> dict[str, Any]:
    """Return what the template of the answer needs."""
    answer = make_answer(data)
    scoreboard = answer.board
    context: dict[str, Any] = {
        "training": data.runs is not None,
        "answer": answer,
        "most": MAX_RUNGS,
        "board": scoreboard,
        "ladder": None,
        "method": "",
        "names": (),
        "outlook": None,
    }
    if scoreboard is not None:
        context["ladder"] = _layout_ladder(scoreboard, data.evidence.background.billions)
        context["names"] = tuple(scoreboard.names.values())
        has_several_tasks = len(scoreboard.ranking.tasks) > 1
        context["method"] = AGGREGATE_LABELS[answer.method] if has_several_tasks else "score"
    if data.completion is not None:
        context["outlook"] = _layout_outlook(data.completion)
    return context


def _layout_axis(scale: Scale) -> dict[str, Any]:
    """Return the marks of a scale over 100 per cent, each with its position, and the distance of two."""
    marks = [(round(scale(value), 4), text) for value, text in scale.marks]
    step = 100.0
    if len(marks) > 1:
        step = round(marks[1][0] - marks[0][0], 4)
    return {"marks": marks, "step": step}


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
    scores = [
        standing.scores[column] for standing in scoreboard.standings for column in shown_columns
    ]
    known_scores = [score for score in scores if score is not None]
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
        rank = Interval(standing.rank, *standing.rank_interval)
        rungs.append(
            {
                "model": standing.model,
                "name": scoreboard.names[standing.model],
                "size": format_size(billions[standing.model]) if standing.model in billions else "",
                "is_variant": is_variant,
                "standing": standing,
                "rank": _layout_interval(rank_scale, rank),
                "before_rank": before_rank,
                "score": score_scale and _layout_interval(score_scale, after),
                "before": score_scale and _layout_interval(score_scale, before),
                "numbers": _format_scores(before, after, standing.gain),
            }
        )
    return {
        "ranks": _layout_axis(rank_scale),
        "scores": score_scale and _layout_axis(score_scale),
        "rungs": rungs,
        "intervals": scoreboard.ranking.can_claim,
        "errors": any(math.isfinite(score.low) for score in known_scores),
    }


def _finite_ends(intervals: Iterable[Interval]) -> list[float]:
    """Return all values and ends of intervals that are known."""
    ends = []
    for interval in intervals:
        for value in (interval.value, interval.low, interval.high):
            if math.isfinite(value):
                ends.append(value)
    return ends


def _make_rank_scale(models: int) -> Scale:
    """Return a scale from 1 to the last rank, marked at 1 and in even steps."""
    last = max(2, models)
    step = max(1, math.ceil((last - 1) / (MAX_TICKS - 1)))
    marks = [*range(1, last + 1, step)]
    if last - marks[-1] > step / 2:
        marks.append(last)
    return Scale(1, last, 0.0, 100.0, marks=tuple((mark, str(mark)) for mark in marks))


def _format_scores(
    before: Interval | None, after: Interval | None, gain: Interval | None
) -> tuple[str, str]:
    """Write the scores of a rung, and the gain where there is one."""
    if after is None:
        return "", ""
    if before is None:
        return _format_with_error(after), ""
    scores = f"{before.value:.3f} → {after.value:.3f}"
    if gain is None:
        return scores, ""
    return scores, _format_with_error(gain, "+")


def _format_with_error(score: Interval, sign: str = "") -> str:
    text = f"{score.value:{sign}.3f}".replace("-", "−")
    half_width = (score.high - score.low) / 2
    if math.isfinite(half_width):
        text += f" ± {half_width:.3f}"
    return text


# --- what is predicted ------------------------------------------------------------------------------------------------


def _layout_outlook(completion: Completion) -> dict[str, Any]:
    """Lay the expected final ranking out, best first."""
    scale = _make_rank_scale(len(completion.models))
    top = min(TOP_PLACES, len(completion.models))
    order = [int(row) for row in np.argsort(completion.rank, kind="stable")]
    names = short_names([completion.models[row] for row in order])
    probability_in_top = completion.p_top(top)
    measured_cells = completion.measured.sum(axis=1)
    chances = []
    for row, name in zip(order, names, strict=True):
        rank = Interval(
            float(completion.rank[row]),
            float(completion.rank_low[row]),
            float(completion.rank_high[row]),
        )
        chances.append(
            {
                "model": completion.models[row],
                "name": name,
                "rank": rank,
                "place": _layout_interval(scale, rank),
                "best": float(completion.p_best[row]),
                "top": float(probability_in_top[row]),
                "cells": int(measured_cells[row]),
            }
        )
    return {
        "ranks": _layout_axis(scale),
        "chances": chances,
        "top": top,
        "tasks": len(completion.tasks),
        "headline": _outlook_headline(chances),
        "basis": _outlook_basis(completion),
    }


def _outlook_headline(chances: list[dict[str, Any]]) -> str:
    """Say who is probably the best once every cell is measured."""
    if len(chances) < 2:
        return f"There is one model, {chances[0]['name']}: nothing to rank, only its scores are predicted."
    first, *others = sorted(chances, key=lambda chance_of_model: -chance_of_model["best"])
    sentence = (
        f"Once every cell is measured, {first['name']} is the best model"
        f" with probability {chance(first['best'])}"
    )
    rivals = [
        f"{other['name']} {percent(other['best'])}"
        for other in others[:3]
        if other["best"] >= MIN_CHANCE_SHOWN
    ]
    if rivals:
        sentence += "; " + ", ".join(rivals)
    return sentence + "."


def _outlook_basis(completion: Completion) -> str:
    """Say what the prediction rests on."""
    measured = int(completion.measured.sum())
    sentence = (
        f"Predicted from {measured:,} of {completion.measured.size:,} tuned cells,"
        " scores before tuning and facts of the models"
    )
    if completion.history:
        sentence += f", and {completion.history:,} rows of history"
    if len(completion.models) > 1:
        tau = completion.agreement
        sentence += (
            f"; expected agreement with the finished ranking τ {tau.value:.2f}"
            f" ({tau.low:.2f} to {tau.high:.2f})"
        )
    return sentence + "."
