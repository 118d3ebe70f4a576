"""Base models joined with their chat versions: the target as chat models do it, the candidates as either does.

A target such as tool use asks for a conversation, so base models have no score on it; the candidates are what an early
base model can be asked (proxy-task paper, section 4.1). A base model needs the candidates, its chat version the target;
where the chat versions have the candidates too, proxies can be chosen or scored on them (section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.errors import InputError
from potentia.values.metric import Metric
from potentia.values.scores import Floats, ScoreMatrix


@dataclass(frozen=True, eq=False)
class Joined:
    """Aligned rows: the target of each pair (higher is better), and the other tasks as each kind of model has them."""

    target: str
    truth: Floats  # (pairs,) of the chat models
    views: dict[str, ScoreMatrix]  # "base", and "chat" where every chat model has these scores

    @property
    def models(self) -> tuple[str, ...]:
        """The base models of the pairs."""
        return self.views["base"].models

    @property
    def chats(self) -> tuple[str, ...]:
        """The chat models of the pairs, or the base models' names where only the target of these is known."""
        return self.views["chat"].models if "chat" in self.views else self.models

    def matrix(self, on: str, tasks: Sequence[str], rows: Sequence[int] | None = None) -> ScoreMatrix:
        """Put the target beside the tasks as this kind of model scores them, for all pairs or some."""
        if on not in self.views:
            raise InputError("the chat models lack a score on some candidate", hint="choose on base models (--on base)")
        view = self.views[on]
        places = list(range(len(view.models))) if rows is None else list(rows)
        part = view.select(models=[view.models[i] for i in places], tasks=tasks)
        return ScoreMatrix.build(
            part.models,
            (self.target, *part.tasks),
            np.column_stack([self.truth[places], part.values]),
            metrics=(Metric(), *part.metrics),
            protocol=view.protocol,
        )


def join_pairs(
    scores: ScoreMatrix, pairs: Mapping[str, str], target: str, tasks: Sequence[str], corpora: Sequence[str] = ()
) -> Joined:
    """Keep the pairs whose base model has every task and corpus, and whose chat model has the target."""
    others = [*dict.fromkeys(t for t in (*tasks, *corpora) if t != target)]
    goal = scores.select(tasks=[target])
    known = {m: float(v) for m, v in zip(goal.models, goal.oriented()[:, 0], strict=True) if np.isfinite(v)}
    whole = set(scores.select(tasks=others).complete().models)
    kept = [(base, chat) for base, chat in pairs.items() if base in whole and chat in known]
    if len(kept) < 3:
        raise InputError(
            f"{len(kept)} pairs have the candidates on the base model and {target} on its chat version; it takes three",
            hint="leave out candidates that few base models were scored on, or name the pairs with --pair-file",
        )
    views = {"base": scores.select(models=[base for base, _ in kept], tasks=others)}
    if all(chat in whole for _, chat in kept):
        views["chat"] = scores.select(models=[chat for _, chat in kept], tasks=others)
    return Joined(target, np.array([known[chat] for _, chat in kept]), views)
