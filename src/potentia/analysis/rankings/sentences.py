"""Every sentence that this room says, in one place: short, the number first, one idea each.

Nothing is claimed here; each sentence puts into words what ``decide`` and the intervals hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.stats.first import FEW_MODELS, FEW_TASKS
from potentia.values.findings import Interval, short_names
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    from potentia.analysis.rankings.agreement import Agreement, AgreementChange
    from potentia.analysis.rankings.decide import Ranking
    from potentia.analysis.rankings.pair import Lead, Missing, TaskPair
    from potentia.analysis.stats.significance import Significance

PREPARED = {
    "train_before_test": "after the same fine-tuning",
    "adjust": "after tuning on the same data",
}
NO_ERRORS = (
    "The scores have no standard errors, so no difference can be called real. "
    "Score the models with Potentia, or give a column stderr."
)


def prepared(protocol: Protocol) -> str:
    """Say what was done to the models before the test."""
    return PREPARED.get(protocol.kind, f"with {protocol.label} scores")


def percent(chance: float) -> str:
    """Write a probability; nothing is certain."""
    if chance > 0.995:
        return "over 99 %"
    return f"{100 * chance:.0f} %" if chance >= 0.01 else "under 1 %"


def plus_minus(value: float, half: float, *, sign: bool = False) -> str | None:
    """Write a score with the half-width of its interval, where it is known: 0.612 ± 0.021."""
    if not math.isfinite(value):
        return None
    return f"{value:{'+' if sign else ''}.3f}" + (f" ± {half:.3f}" if math.isfinite(half) else "")


def count(number: int, noun: str) -> str:
    """Write a count with its noun: 1 task, 2 tasks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listing(names: Sequence[str], most: int = 4) -> str:
    """Join names as people do: A, B and C; A, B and 7 others."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} others"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def headline(ranking: Ranking) -> str:
    """Say who is the best, or who is most likely to be, with the probability."""
    names = dict(zip(ranking.models, short_names(ranking.models), strict=True))
    how, first = prepared(ranking.protocol), names[ranking.first]
    models, where = count(len(ranking.models), "model"), count(len(ranking.tasks), "task")
    if len(ranking.models) < 2:
        return f"Only {first} has scores to rank {how}."
    tied = [
        names[m]
        for m, r in zip(ranking.models, ranking.ranks.tolist(), strict=True)
        if r == ranking.ranks[0]
    ]
    if not ranking.known:
        if len(tied) > 1:
            return f"{listing(tied)} share the best score of {models} {how} ({where})."
        return f"{first} has the best score of {models} {how} ({where})."
    chance = dict(zip(ranking.models, ranking.p_first.tolist(), strict=True))
    if ranking.sure:
        return f"{first} is the best of {models} {how} ({percent(chance[ranking.first])} sure, {where})."
    if len(tied) == len(ranking.models):
        return f"{listing(tied)} tie {how} ({where})."
    own = ranking.variants
    rivals = [
        f"{'its variant ' if m in own else ''}{names[m]} ({percent(chance[m])})"
        for m in ranking.rivals
    ]
    close = f"{_capital(listing(rivals)) if own else listing(rivals)} {'is' if len(rivals) == 1 else 'are'} close."
    if own:
        together = percent(sum(chance[m] for m in (ranking.first, *own)))
        close += f" One of {listing([first, *(names[m] for m in own)])} is the best ({together})."
    return f"{first} is most likely the best of {models} {how} ({percent(chance[ranking.first])}, {where}). {close}"


def certainty(ranking: Ranking, lead: Lead | None, missing: Missing | None) -> list[str]:
    """Say how far the first place holds, and what would make it surer."""
    if len(ranking.models) < 2:
        return []
    if not ranking.known:
        return [NO_ERRORS]
    found = []
    if ranking.general and ranking.sure:
        found.append("This allows for test noise and for other tasks like these.")
    elif ranking.sure and len(ranking.tasks) > 1:
        found.append(
            f"This holds for these tasks. It takes {FEW_TASKS} tasks or more to speak of others."
        )
    found += [] if lead is None else [lead_sentence(lead)]
    found += [] if missing is None else [missing_sentence(missing)]
    if ranking.apart:
        share, have = ("shares", "has") if len(ranking.apart) == 1 else ("share", "have")
        found.append(
            f"{listing(short_names(ranking.apart))} {share} no task with the others and {have} no rank."
        )
    return found


def lead_sentence(lead: Lead) -> str:
    """Say by how much two models differ on the tasks that both have."""
    one, two = short_names([lead.first, lead.second])
    where = f"these {lead.tasks} tasks" if lead.tasks > 1 else "this task"
    gap = lead.difference
    if abs(gap.value) < 0.0005:
        return (
            f"On {where} {one} and {two} have the same score{_interval(gap, ' of the difference')}."
        )
    by = f"{abs(gap.value):.3f} {'more' if gap.value >= 0 else 'less'} than {two}"
    return f"On {where} {one} scores {by}{_interval(gap)}."


def _interval(gap: Interval, of: str = "") -> str:
    if not math.isfinite(gap.low):
        return ""
    low, high = (gap.low, gap.high) if gap.value >= 0 else (-gap.high, -gap.low)
    return f" ({100 * gap.level:.0f} % interval{of} {low:.3f} to {high:.3f})"


def missing_sentence(missing: Missing) -> str:
    """Say what would separate two models."""
    one, two = short_names([missing.first, missing.rival])
    if math.isfinite(missing.times):
        if missing.documents:
            amount = f"{count(missing.documents, 'more test document')}{' a task' if missing.several else ''}"
        else:
            amount = f"{missing.times:.2g} times as many test documents"
        return f"If {one} and {two} differ as much as measured, about {amount} would show it in four studies of five."
    if missing.several:
        more = (
            f"about {count(missing.tasks, 'more task')} would"
            if missing.tasks
            else "more tasks may"
        )
        how = "lead on different tasks" if missing.opposed else "differ little on these tasks"
        return f"{one} and {two} {how}. If that is so, more test documents will not separate them; {more}."
    return f"{one} and {two} score alike. If that is so, not even 100 times as many test documents would separate them."


def pair_sentences(
    lead: Lead, protocol: Protocol, pairs: Sequence[TaskPair], missing: Missing | None
) -> list[str]:
    """Say who is better under one protocol, by how much, and on how many tasks."""
    one, two = short_names([lead.first, lead.second])
    how = prepared(protocol)
    if not math.isfinite(lead.chance):
        first = f"{_capital(how)}: {lead_sentence(lead)} {NO_ERRORS}"
    elif lead.sure:
        scope = " on tasks like these" if lead.general else f" on {count(lead.tasks, 'task')}"
        first = f"{one} is better than {two} {how}{scope} ({percent(lead.chance)} sure). {lead_sentence(lead)}"
    else:
        first = (
            f"{one} may be better than {two} {how}, but that is not sure ({percent(lead.chance)}). "
        )
        first += lead_sentence(lead)
        if missing is not None:
            first += f" {missing_sentence(missing)}"
    if len(pairs) < 2 or not math.isfinite(lead.chance):
        return [first]
    return [first, wins(pairs)]


def wins(pairs: Sequence[TaskPair]) -> str:
    """Say on how many tasks the difference is real, corrected for looking at all of them."""
    one, two = short_names([pairs[0].models[0], pairs[0].models[1]])
    real = [pair for pair in pairs if pair.real]
    first = sum(pair.difference.value > 0 for pair in real)
    if not real:
        return f"On none of the {len(pairs)} tasks is the difference significant (5 % false discovery rate)."
    return (
        f"{one} is significantly better on {first} of {len(pairs)} tasks, {two} on {len(real) - first} "
        "(5 % false discovery rate)."
    )


def agreement_sentence(change: AgreementChange | None, alone: Agreement | None) -> str | None:
    """Say whether the tasks agree more on the ranking after tuning; alone, how far they agree."""
    if (
        change is not None
        and math.isfinite(change.mean_before)
        and math.isfinite(change.mean_after)
    ):
        gap = change.interval
        means = (
            f"the mean Kendall's τ between tasks is {change.mean_before:.2f} {prepared(change.before)} and "
            f"{change.mean_after:.2f} {prepared(change.after)}"
        )
        if change.models < FEW_MODELS:
            return f"{_capital(means)}. It takes {FEW_MODELS} models or more to say whether that is a change."
        if not change.errors:
            return f"{_capital(means)}."
        span = f"95 % interval over {change.over} {gap.low:.2f} to {gap.high:.2f}"
        told = f"{means} (difference {gap.value:+.2f}, {span})"
        if change.verdict == 0:
            return f"It is open whether the tasks agree more after tuning: {told}."
        return f"The tasks agree {'more' if change.verdict > 0 else 'less'} on the ranking after tuning: {told}."
    if alone is not None and alone.models >= FEW_MODELS and math.isfinite(alone.mean):
        spread = f" (95 % interval over {alone.over} {alone.interval.low:.2f} to {alone.interval.high:.2f})"
        return f"The mean Kendall's τ between tasks is {alone.mean:.2f}{spread}; 1 is perfect agreement, 0 is none."
    return None


def resolution_sentence(found: Significance | None) -> str | None:
    """Say how many pairs of models differ significantly, and what a test can find."""
    if found is None or not any(found.pairs):
        return None
    share = sum(found.significant) / sum(found.pairs)
    smallest = float(np.nanmedian(found.detectable))
    several = len(found.pairs) > 1
    task, test = ("on a task", "The median task") if several else ("here", "This test")
    return (
        f"{100 * share:.0f} % of the model pairs differ significantly {task} (5 % level). "
        f"{test} finds a true difference of {smallest:.3f} four times in five."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
