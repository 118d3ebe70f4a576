"""The scores that were published with the paper, from the authors' tree or from a table of stages.

Stages have the names of the tree's folders: ``base``, ``e3/mmluaux``, ``intermediate/gsm8kaux``, ``new_evals/base``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from potentia.errors import InputError
from potentia.formats import StagedScores

STAGE_NAMES = {  # of the published table: those of the tree
    "tuned_mc_3ep": "e3/mmluaux",
    "tuned_math_3ep": "e3/gsm8kaux",
    "inter_mc": "intermediate/mmluaux",
    "inter_math": "intermediate/gsm8kaux",
}
TABLE_METRICS = {  # of the published table, by task; the first name is ours
    "mmlu": {"acc": "acc", "brier_score": "brier_score"},
    "mmlu_cloze": {"acc": "acc", "brier_score": "brier_score"},
    "gsm8k": {"exact_match": "exact_match|flexible-extract"},
}
OTHER_SPELLINGS = (  # of model names, as the paper's own tables and the tree differ
    ("stabilitylm", "stablelm"),
    ("qwen-2-", "qwen2-"),
)
LEARNING_RATE = re.compile(r"(?:rate|lr)[_=-]?(\d+(?:\.\d+)?e-?\d+)")


class MissingScoresError(InputError):
    """Scores that a figure needs are not in what was given; the message names them."""


@dataclass(frozen=True)
class ScoreKey:
    """What a set of scores was measured on, and at which stage; step 0 is no step on the way."""

    stage: str
    task: str
    metric: str
    step: int = 0


@dataclass(frozen=True)
class PublishedScores:
    """Model → score for every stage, task and metric."""

    source: str
    scores: Mapping[ScoreKey, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def from_table(cls, path: Path) -> PublishedScores:
        """Read a table of stages: ``stage,step,model,benchmark,metric,value,stderr``."""
        staged = StagedScores(path)
        scores: dict[ScoreKey, dict[str, float]] = {}
        for stage in staged.stages():
            for task, metrics in TABLE_METRICS.items():
                for metric, name_in_table in metrics.items():
                    key = ScoreKey(STAGE_NAMES.get(stage, stage), task, metric)
                    scores.update(_read_stage(staged, stage, name_in_table, key))
        return cls(str(path), scores)

    def find(self, stage: str, task: str, metric: str) -> dict[str, float]:
        """Return model → score; nothing where there is none."""
        return dict(self.scores.get(ScoreKey(stage, task, metric), {}))

    def require(self, stage: str, task: str, metric: str) -> dict[str, float]:
        """Return model → score; an error names the files where there is none."""
        scores = self.find(stage, task, metric)
        if not scores:
            raise MissingScoresError(f"{stage}/*-{task}.json ({metric}) are not there")
        return scores

    def find_steps(self, stage: str, task: str, metric: str) -> dict[int, Mapping[str, float]]:
        """Return step → model → score, in the order of the steps."""
        scores_by_step = {}
        for key, scores in self.scores.items():
            if (key.stage, key.task, key.metric) == (stage, task, metric) and key.step:
                scores_by_step[key.step] = scores
        return dict(sorted(scores_by_step.items()))

    def require_steps(self, stage: str, task: str, metric: str) -> dict[int, Mapping[str, float]]:
        """Return step → model → score; an error names the files where there is none."""
        steps = self.find_steps(stage, task, metric)
        if not steps:
            raise MissingScoresError(f"{stage}/evals/*/step_*/{task}.json ({metric}) are not there")
        return steps

    def find_learning_rates(self, task: str, metric: str) -> dict[str, dict[float, float]]:
        """Return model → learning rate → score, of stages that name a rate (``lr_6e-5/mmluaux``)."""
        rates: dict[str, dict[float, float]] = {}
        for key, scores in self.scores.items():
            rate = LEARNING_RATE.search(key.stage)
            if rate is None or (key.task, key.metric, key.step) != (task, metric, 0):
                continue
            for model, score in scores.items():
                rates.setdefault(model, {})[float(rate[1])] = score
        return rates

    def list_models(self) -> tuple[str, ...]:
        """Return every model that has a score."""
        models = set().union(*self.scores.values()) if self.scores else set()
        return tuple(sorted(models))

    def add(self, other: PublishedScores) -> PublishedScores:
        """Return these scores with those of another source where these have none."""
        scores = {key: dict(by_model) for key, by_model in other.scores.items()}
        for key, by_model in self.scores.items():
            scores.setdefault(key, {}).update(by_model)
        sources = [source for source in (self.source, other.source) if source]
        return PublishedScores(" and ".join(sources), scores)


def normalize_model_name(name: str) -> str:
    """Return the tree's spelling of a model's name: lower case, without an owner, ``qwen2-7b`` for ``Qwen-2-7B``."""
    short_name = name.rstrip("/").rpartition("/")[2].lower()
    for spelling, name_in_tree in OTHER_SPELLINGS:
        if short_name.startswith(spelling):
            return name_in_tree + short_name.removeprefix(spelling)
    return short_name


def _read_stage(
    staged: StagedScores, stage: str, metric: str, key: ScoreKey
) -> dict[ScoreKey, dict[str, float]]:
    """Return the scores of one stage of a table, at its end and at each step."""
    scores: dict[ScoreKey, dict[str, float]] = {}
    for step, by_model in staged.steps(stage, key.task, metric).items():
        scores[ScoreKey(key.stage, key.task, key.metric, step)] = _normalize_names(by_model)
    try:
        by_model = staged.scores(stage, key.task, metric)
    except InputError:
        return scores
    scores[key] = _normalize_names(by_model)
    return scores


def _normalize_names(scores: Mapping[str, float]) -> dict[str, float]:
    return {normalize_model_name(model): score for model, score in scores.items()}
