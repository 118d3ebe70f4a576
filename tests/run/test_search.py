"""What validation decides: the best state, the next learning rate, who drops out, what may have more in it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from potentia.run.search import (
    ValidatedState,
    find_leaders,
    find_leading_end,
    find_most_doubtful_end,
    find_next_rung,
    find_search_end,
    is_past_its_best,
    propose_rate,
    select_best,
)
from potentia.values.fine_tuning import EpochResult, FineTuning
from potentia.values.metric import Metric
from potentia.values.selection import SearchEnd

GRID = (3e-4, 1e-3, 3e-3)
BOUNDS = (1e-5, 1e-2)


def state(rate: float, value: float, epoch: int = 1, stderr: float = 0.02) -> ValidatedState:
    result = EpochResult(epoch, value=value, stderr=stderr)
    return ValidatedState("plain", result, FineTuning(f"{rate:g}", "t", "plain", rate, 0))


def turn_round(peak: ValidatedState) -> ValidatedState:
    """The same state by a metric that is better when lower."""
    return replace(peak, result=replace(peak.result, value=-peak.value), higher_is_better=False)


def peaks(
    *values: float | None, rates: tuple[float, ...] = GRID
) -> dict[float, ValidatedState | None]:
    return {r: None if v is None else state(r, v) for r, v in zip(rates, values, strict=True)}


def test_what_cannot_be_better_may_not_have_more_in_it():
    """ "1.0000 (may have more in it: at the bound)" was said of a perfect validation."""
    best, worse, none = (
        state(1e-2, 1.0),
        state(1e-2, 0.98),
        replace(state(1e-2, 0.0), higher_is_better=False),
    )
    share, errors, free = Metric.of("acc"), Metric.of("error_rate"), Metric.of("elo")
    assert (
        find_most_doubtful_end([SearchEnd.AT_BOUND, SearchEnd.INSIDE], [best, best], share)
        == SearchEnd.PERFECT
    )
    assert (
        find_most_doubtful_end([SearchEnd.AT_BOUND, SearchEnd.INSIDE], [best, worse], share)
        == SearchEnd.AT_BOUND
    )
    assert find_most_doubtful_end([SearchEnd.UNTUNED], [none], errors) == SearchEnd.PERFECT
    assert find_most_doubtful_end([SearchEnd.INSIDE], [best], share) == SearchEnd.INSIDE
    assert find_most_doubtful_end([SearchEnd.STILL_RISING], [best], free) == SearchEnd.STILL_RISING
    assert not SearchEnd.PERFECT.may_have_more


def test_rungs_are_1_3_10():
    assert [
        find_next_rung(rate, upwards=True) for rate in (1e-5, 3e-5, 1e-4, 3e-3, 2e-4, 5e-5)
    ] == [
        3e-5,
        1e-4,
        3e-4,
        1e-2,
        1e-3,
        1e-4,
    ]
    assert [find_next_rung(rate, upwards=False) for rate in (1e-2, 3e-4, 1e-4, 2e-4)] == [
        3e-3,
        1e-4,
        3e-5,
        1e-4,
    ]


@pytest.mark.parametrize(
    ("found", "following"),
    [
        (peaks(0.3, 0.5, 0.4), None),  # the best lies inside
        (peaks(0.3, 0.5, 0.52), 1e-2),  # the end leads by a standard error
        (peaks(0.3, 0.5, 0.505), None),  # by a quarter: a tie
        (peaks(0.6, 0.5, 0.4), 1e-4),
        (peaks(0.6, 0.5, None), 1e-4),  # a failed lane is the worst of all
        (peaks(0.6, None, None), 1e-4),
        (peaks(None, None, None), 1e-4),
        (peaks(None, None, 0.6), 1e-2),
        (peaks(0.1, 0.3, 0.5, 0.7, rates=(*GRID, 1e-2)), None),  # the bound
        (peaks(0.5, rates=(1e-3,)), None),
    ],
)
def test_the_grid_is_extended_at_the_end_that_leads(found, following):
    assert propose_rate(found, BOUNDS) == following
    assert propose_rate(found, None) is None
    turned = {rate: peak and turn_round(peak) for rate, peak in found.items()}
    assert propose_rate(turned, BOUNDS) == following


def test_ties_go_to_the_untuned_model_then_inside_then_to_the_earlier_epoch():
    untuned = ValidatedState("plain", EpochResult(0, value=0.5, stderr=0.02))
    tied = [state(rate, 0.5, epoch) for rate in GRID for epoch in (1, 2)]
    assert select_best([*tied, untuned]) is untuned
    best = select_best(tied)
    assert (best.learning_rate, best.epoch) == (1e-3, 1)
    assert select_best([state(3e-4, math.nan), state(1e-3, 0.1)]).learning_rate == 1e-3


@pytest.mark.parametrize(
    ("found", "curve", "said"),
    [
        (peaks(0.3, 0.5, 0.4), (0.2, 0.5, 0.5), SearchEnd.INSIDE),
        (peaks(0.3, 0.5, 0.505), (0.2, 0.5, 0.505), SearchEnd.FLAT),
        (peaks(0.3, 0.5, 0.6), (0.2, 0.5, 0.6), SearchEnd.AT_BOUND),
        (peaks(0.3, 0.5, 0.4), (0.2, 0.3, 0.5), SearchEnd.STILL_RISING),
        (peaks(0.5, rates=(1e-3,)), (0.2, 0.5, 0.5), SearchEnd.ONE_RATE),
    ],
)
def test_a_cell_says_where_its_best_lies(found, curve, said):
    rate = max(found, key=lambda r: found[r].value if found[r] else -1)
    looks = [
        ValidatedState("plain", EpochResult(0, value=curve[0], stderr=0.02)),
        *(state(rate, v, 1 + k) for k, v in enumerate(curve[1:])),
    ]
    chosen = max(looks, key=lambda c: (c.value, -c.epoch))
    assert find_search_end(chosen, found, looks) == said
    assert find_search_end(looks[0], found, looks) == SearchEnd.UNTUNED
    assert (find_leading_end(found) is not None) == (said == SearchEnd.AT_BOUND)


def test_a_lane_is_past_its_best_after_three_clearly_worse_looks():
    falling = [state(1e-3, v, k) for k, v in enumerate((0.5, 0.6, 0.55, 0.5, 0.4), 1)]
    assert is_past_its_best(falling)
    assert not is_past_its_best(falling[:-1]), "two, and the best may be near"
    noisy = [state(1e-3, v, k) for k, v in enumerate((0.5, 0.6, 0.55, 0.59, 0.4), 1)]
    assert not is_past_its_best(noisy)


def test_what_may_be_selected_later_is_held_while_lanes_come():
    """Full lanes keep few states; ties go inside the grid, so the winner of a tie changes as rates are added."""
    values = {
        1e-5: (0.5, 0.5),
        3e-5: (0.4, 0.5),
        1e-4: (0.5, 0.3),
        3e-4: (0.2, 0.5),
        1e-6: (0.5, 0.1),
    }
    known_states: list[ValidatedState] = []
    held_states: set[tuple[str, int]] = set()
    for rate, curve in values.items():
        for epoch, value in enumerate(curve, 1):
            new = state(rate, value, epoch)
            known_states.append(new)
            leading_states = {(c.lane.key, c.epoch) for c in find_leaders(known_states)}
            held_states = leading_states & (held_states | {(new.lane.key, epoch)})
            chosen = select_best(known_states)
            assert (chosen.lane.key, chosen.epoch) in held_states
    assert len(held_states) == 5, "one of each rate: all are on a level"
    better = [*known_states, state(1e-3, 0.6)]
    assert [c.learning_rate for c in find_leaders(better)] == [1e-3]
