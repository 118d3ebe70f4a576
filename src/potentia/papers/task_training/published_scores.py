"""The scores that were published with the paper, from the authors' tree or from a table of stages.

Stages have the names of the tree's folders: ``base``, ``e3/mmluaux``, ``intermediate/gsm8kaux``, ``new_evals/base``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from potentia.analysis.wording import join_names
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
    def from_table(cls, table_file: Path) -> PublishedScores:
        """Read a table of stages: ``stage,step,model,benchmark,metric,value,stderr``."""
        staged = StagedScores(table_file)
        scores: dict[ScoreKey, dict[str, float]] = {}
        for stage in staged.stages():
            for task, metrics in TABLE_METRICS.items():
                for metric, name_in_table in metrics.items():
                    score_key = ScoreKey(STAGE_NAMES.get(stage, stage), task, metric)
                    scores.update(_read_stage(staged, stage, name_in_table, score_key))
        return cls(str(table_file), scores)

    def find(self, stage: str, task: str, metric: str) -> dict[str, float]:
        """Return model → score; nothing where there is none."""
        return dict(self.scores.get(ScoreKey(stage, task, metric), {}))

    def find_steps(self, stage: str, task: str, metric: str) -> dict[int, Mapping[str, float]]:
        """Return step → model → score, in the order of the steps."""
        scores_by_step = {}
        for score_key, scores in self.scores.items():
            if score_key.step and replace(score_key, step=0) == ScoreKey(stage, task, metric):
                scores_by_step[score_key.step] = scores
        return dict(sorted(scores_by_step.items()))

    def find_learning_rates(self, task: str, metric: str) -> dict[str, dict[float, float]]:
        """Return model → learning rate → score, of stages that name a rate (``lr_6e-5/mmluaux``)."""
        rates: dict[str, dict[float, float]] = {}
        for stage in self.list_rate_stages():
            rate_match = LEARNING_RATE.search(stage)
            assert rate_match is not None
            for model, score in self.find(stage, task, metric).items():
                rates.setdefault(model, {})[float(rate_match[1])] = score
        return rates

    def list_rate_stages(self) -> list[str]:
        """Return the stages that name a learning rate."""
        stages = dict.fromkeys(score_key.stage for score_key in self.scores)
        return [stage for stage in stages if LEARNING_RATE.search(stage)]

    def list_models(self) -> tuple[str, ...]:
        """Return every model that has a score."""
        models = set().union(*self.scores.values()) if self.scores else set()
        return tuple(sorted(models))

    def add(self, addition: PublishedScores) -> PublishedScores:
        """Return these scores with those of another source where these have none."""
        scores = {score_key: dict(by_model) for score_key, by_model in addition.scores.items()}
        for score_key, by_model in self.scores.items():
            scores.setdefault(score_key, {}).update(by_model)
        sources = [source for source in (self.source, addition.source) if source]
        return PublishedScores(" and ".join(sources), scores)


@dataclass(frozen=True)
class StagedTask:
    """A task at a stage, at its end or at its steps: what a figure asks for."""

    stage: str
    task: str
    at_steps: bool = False

    @classmethod
    def from_key(cls, score_key: ScoreKey) -> StagedTask:
        """Return the task and stage of a set of scores."""
        return cls(score_key.stage, score_key.task, at_steps=score_key.step > 0)

    @property
    def file_pattern(self) -> str:
        """The files of the tree that hold it."""
        if self.at_steps:
            return f"{self.stage}/evals/*/step_*/{self.task}.json"
        return f"{self.stage}/*-{self.task}.json"


@dataclass(frozen=True, eq=False)
class RequestedScores:
    """Published scores as figures ask for them: what no figure has asked for is unused."""

    published: PublishedScores
    requested: set[StagedTask] = field(default_factory=set)

    def find(self, stage: str, task: str, metric: str) -> dict[str, float]:
        """Return model → score; nothing where there is none."""
        self.requested.add(StagedTask(stage, task))
        return self.published.find(stage, task, metric)

    def require(self, stage: str, task: str, metric: str) -> dict[str, float]:
        """Return model → score; an error names the files where there is none."""
        (scores,) = self.require_stages([stage], task, metric)
        return scores

    def require_stages(
        self, stages: Sequence[str], task: str, metric: str
    ) -> list[dict[str, float]]:
        """Return model → score for each stage; an error names the files of every stage that has none."""
        scores_by_stage = {stage: self.find(stage, task, metric) for stage in stages}
        missing = [stage for stage, scores in scores_by_stage.items() if not scores]
        if missing:
            files = join_names([StagedTask(stage, task).file_pattern for stage in missing])
            raise MissingScoresError(f"{files} ({metric}) are not there")
        return list(scores_by_stage.values())

    def require_steps(self, stage: str, task: str, metric: str) -> dict[int, Mapping[str, float]]:
        """Return step → model → score; an error names the files where there is none."""
        staged_task = StagedTask(stage, task, at_steps=True)
        self.requested.add(staged_task)
        scores_by_step = self.published.find_steps(stage, task, metric)
        if not scores_by_step:
            raise MissingScoresError(f"{staged_task.file_pattern} ({metric}) are not there")
        return scores_by_step

    def find_learning_rates(self, task: str, metric: str) -> dict[str, dict[float, float]]:
        """Return model → learning rate → score, of stages that name a rate (``lr_6e-5/mmluaux``)."""
        for stage in self.published.list_rate_stages():
            self.requested.add(StagedTask(stage, task))
        return self.published.find_learning_rates(task, metric)

    def list_unused(self) -> list[StagedTask]:
        """Return the tasks and stages that have scores and that nobody asked for."""
        staged_tasks = dict.fromkeys(map(StagedTask.from_key, self.published.scores))
        return [staged_task for staged_task in staged_tasks if staged_task not in self.requested]


def normalize_model_name(model_name: str) -> str:
    """Return the tree's spelling of a model's name: lower case, without an owner, ``qwen2-7b`` for ``Qwen-2-7B``."""
    short_name = model_name.rstrip("/").rpartition("/")[2].lower()
    for spelling, name_in_tree in OTHER_SPELLINGS:
        if short_name.startswith(spelling):
            return name_in_tree + short_name.removeprefix(spelling)
    return short_name


def _read_stage(
    staged: StagedScores, stage: str, metric: str, score_key: ScoreKey
) -> dict[ScoreKey, dict[str, float]]:
    """Return the scores of one stage of a table, at its end and at each step."""
    scores: dict[ScoreKey, dict[str, float]] = {}
    for step_number, by_model in staged.steps(stage, score_key.task, metric).items():
        scores[ScoreKey(score_key.stage, score_key.task, score_key.metric, step_number)] = (
            _normalize_names(by_model)
        )
    try:
        by_model = staged.scores(stage, score_key.task, metric)
    except InputError:
        return scores
    scores[score_key] = _normalize_names(by_model)
    return scores


def _normalize_names(scores: Mapping[str, float]) -> dict[str, float]:
    return {normalize_model_name(model): score for model, score in scores.items()}
