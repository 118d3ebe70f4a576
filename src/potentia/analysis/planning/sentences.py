"""Every sentence that this room says, in one place: short, the number first, one idea each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from potentia.analysis.rankings.sentences import count, headline, missing_sentence, percent
from potentia.values.findings import Interval

if TYPE_CHECKING:
    from potentia.analysis.planning.choose import NextCells
    from potentia.analysis.planning.race import Choice


def checked_sentence(cells: int) -> str:
    """Say what the intervals of predicted cells were checked on."""
    if not cells:
        return "Too few cells are known to check the intervals; they assume a normal distribution."
    return (
        f"{count(cells, 'known cell')} {'was' if cells == 1 else 'were'} hidden and predicted to check the intervals."
    )


def expected_sentence(agreement: Interval) -> str:
    """Say how far the ranking will agree with the finished study's."""
    span = f"{100 * agreement.level:.0f} % interval {agreement.low:.3f} to {agreement.high:.3f}"
    return f"The finished ranking should agree with this one with τ {agreement.value:.3f} ({span})."


def plan_sentence(plan: NextCells) -> str:
    """Say what would still be unmeasured, and whether the plan gets where it was asked to."""
    told = f"All cells that are left after these cost {plan.left:.4g} {plan.unit}."
    if plan.confidence is None:
        return told
    reached = "These cells reach" if plan.reached else "The budget ends before"
    return f"{told} {reached} the {plan.confidence:g} that was asked for."


def choice_sentences(choice: Choice) -> str:
    """Say which model is the best for the data, how sure that is, and what would make it surer."""
    if all(s.problem for s in choice.standings if s.model != choice.best):
        return f"{choice.best} is the only one of {len(choice.standings)} that could be tuned: nothing was compared."
    alone = len(choice.ranking.models) < 2
    told = [f"{choice.best} alone reached the end." if alone else headline(choice.ranking)]
    if choice.missing is not None:
        told.append(missing_sentence(choice.missing))
        if math.isfinite(choice.more_seconds) and math.isfinite(choice.missing.times):
            told.append(f"That is about {choice.more_seconds:.0f} s of scoring.")
    dropped = sum(s.out is not None for s in choice.standings)
    if dropped:
        models = "The model that was" if dropped == 1 else f"The {dropped} models that were"
        told.append(f"{models} dropped early had a chance of {percent(choice.lost)} to be the best.")
    return " ".join(told)


def fewer_models_sentence(kept: int, possible: int) -> str:
    """Say that the budget dropped models that might have won."""
    return f"The budget was enough for {kept} of the {possible} models that might win."


def fewer_documents_sentence(documents: int, whole: int) -> str:
    """Say that the budget cut the training documents."""
    return f"The budget was enough for {documents} of {whole} training documents."
