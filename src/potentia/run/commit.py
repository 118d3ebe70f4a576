"""Committing a cell: its score with its items and its provenance, in one transaction."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from potentia.errors import ModelError
from potentia.run.ask import Evaluation
from potentia.run.gpu_sharing import is_gpu_shared
from potentia.study import SCORING_VERSION, adjust_tuning, renamed
from potentia.timing import spending
from potentia.values.metric import Origin, recipe_fingerprint
from potentia.values.plain import to_plain
from potentia.values.provenance import (
    EngineProvenance,
    ModelProvenance,
    Provenance,
    ScorerProvenance,
    SplitsProvenance,
    TaskProvenance,
    TrainingProvenance,
)
from potentia.values.selection import CutPrompts, ProbeResult, Selection

if TYPE_CHECKING:
    from potentia.run.plan import CellPlan
    from potentia.run.row_context import RowContext
    from potentia.store import CellRecord
    from potentia.tasks import Task

UNKNOWN_SHARE = 0.05  # of the tokens of a task, from which it is told
SAMPLED_DOCUMENTS = 100  # whose tokens are looked at
PACKAGES = (
    "potentia",
    "torch",
    "transformers",
    "peft",
    "lm-eval",
    "tokenizers",
    "datasets",
    "numpy",
    "bitsandbytes",
)


@dataclass(frozen=True)
class CellResult:
    """What was computed for a cell."""

    test: Evaluation
    selection: Selection
    seconds: float
    direct_value: float | None = None  # of the untuned model, where the cell is a tuned one's
    probe: ProbeResult | None = None


class CellCommitter:
    """Commits the cells of one row."""

    def __init__(self, context: RowContext) -> None:
        self._context = context
        self._unknown_shares: dict[str, float] = {}  # of tokens, by task

    def commit(self, cell: CellPlan, result: CellResult) -> None:
        """Commit one cell with its items, and report it; a score that is no number, or says nothing, is refused."""
        test = result.test
        if not math.isfinite(test.main.value):
            raise ModelError(f"the {test.metric} on the test split is {test.main.value}")
        if test.says_nothing:
            raise ModelError(
                f"every choice got the same log-probability in {test.tied:,} of {test.compared:,} examples",
                hint="the result would say which choice comes first: look at the model's weights and tokenizer",
            )
        record = self._make_record(cell, result)
        self._store_record(cell, record, test)

    def _make_record(self, cell: CellPlan, result: CellResult) -> CellRecord:
        from potentia.store import CellRecord

        row = self._context.row
        test = result.test
        selection = result.selection
        provenance = self.describe_provenance(cell, selection)
        if provenance.task.unknown_tokens >= UNKNOWN_SHARE:
            selection = replace(selection, unknown_tokens=provenance.task.unknown_tokens)
        if test.cut:
            selection = replace(selection, cut_prompts=CutPrompts(test.cut, test.requests))
        origin = self._find_origin(provenance)
        gain = None
        if result.direct_value is not None:
            gain = test.main.value - result.direct_value
        return CellRecord(
            key=cell.key,
            study=row.study_key,
            model=row.model.name,
            task=cell.task,
            protocol=cell.protocol,
            scores={name: replace(score, origin=origin) for name, score in test.scores.items()},
            metric=test.metric,
            provenance=provenance,
            seconds=result.seconds,
            selection=selection,
            direct_value=result.direct_value,
            gain=gain,
            probe=result.probe,
        )

    def _find_origin(self, provenance: Provenance) -> Origin:
        recipe = provenance.recipe
        auxiliary = self._context.tasks.auxiliary
        if recipe["adjust"] and auxiliary is not None:  # what is in the file, wherever it lies
            recipe["adjust"] = {**recipe["adjust"], "data": auxiliary.fingerprint}
        training = provenance.training
        return Origin(
            data=provenance.task.fingerprint,
            recipe=recipe_fingerprint(recipe),
            shots=provenance.shots,
            model=self._context.loaded.fingerprint,
            path=training.form if training is not None else None,
        )

    def _store_record(self, cell: CellPlan, record: CellRecord, test: Evaluation) -> None:
        from potentia.analysis.stats import interval_of_score

        context = self._context
        store = context.store
        event = {
            "task": cell.task,
            "protocol": cell.protocol,
            "value": test.main.value,
            "stderr": test.main.stderr,
            "error": interval_of_score(test.main).format_error(digits=4),
        }
        search_end = record.selection.search
        if search_end is not None and search_end.may_have_more:
            event["may_have_more"] = search_end.label
        with spending("save"):
            # the event is in the transaction of the commit, also where that went through and its answer got lost
            is_logged = True
            is_committed = store.cells.commit(
                record, items=test.outcomes, event={"row": record.model, **event}
            )
            if not is_committed:
                names = (record.model, record.task)
                if names not in store.cells.read_names([cell.key]).values():
                    # another row with the same files was first
                    store.cells.copy(
                        cell.key,
                        renamed(cell.key, *names),
                        study=record.study,
                        model=record.model,
                        task=record.task,
                    )
                    is_logged = False
                elif self._is_of_another_process(record):
                    context.outcome.finished_elsewhere += 1
                    context.progress.event("found", cells=1, done=[(cell.task, cell.protocol)])
                    return
        context.outcome.done += 1
        context.progress.event("cell", is_logged=is_logged, **event)

    def _is_of_another_process(self, record: CellRecord) -> bool:
        """Whether another process had the row meanwhile; else this commit went through, and its answer got lost."""
        stored = self._context.store.cells.get(record.key)
        return stored is None or stored.created != record.created

    # --- provenance --------------------------------------------------------------------------------------------------

    def describe_provenance(self, cell: CellPlan, selection: Selection) -> Provenance:
        """Return how a cell's score was made, in enough detail to explain or repeat it."""
        context = self._context
        study = context.study
        loaded = context.loaded
        provenance = Provenance(
            scoring_version=SCORING_VERSION,
            versions=versions(),
            model=self._describe_model(),
            task=self._describe_task(cell.task),
            shots=study.shots_for(cell.task, cell.protocol),
            seed=study.seed,
            styles=context.styles,
            scorer=ScorerProvenance.from_dict(to_plain(context.scorer.notes)),
            gpu_sharing="MPS" if loaded.device.type == "cuda" and is_gpu_shared() else None,
            engine=self._describe_engine(),
        )
        if cell.protocol.tuned:
            training = {"targets": selection.target_modules, **loaded.record.get("training", {})}
            provenance = replace(
                provenance, training=TrainingProvenance.from_dict(to_plain(training))
            )
        if cell.protocol.kind == "train_before_test":
            provenance = replace(
                provenance,
                tuning=study.tuning.model_dump(mode="json"),
                selection=study.selection,
            )
        if cell.protocol.kind == "adjust" and study.adjust is not None:
            tuning = adjust_tuning(study, context.row.model, loaded.parameters)
            provenance = replace(
                provenance,
                adjust=study.adjust.model_dump(mode="json"),
                adjusted_with=tuning.model_dump(mode="json"),
            )
        return provenance

    def _describe_model(self) -> ModelProvenance:
        context = self._context
        model = context.row.model
        loaded = context.loaded
        return ModelProvenance(
            source=model.source,
            revision=model.revision,
            gguf_file=model.gguf_file,
            adapter=model.adapter,
            quantise=model.quantise,
            trust_remote_code=model.trust_remote_code,
            copy_of=model.copy_of,
            exposed_tasks=tuple(context.tasks.exposure) if model.copy_of else (),
            fingerprint=loaded.fingerprint,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device=str(loaded.device),
            kind=context.kind.value,
            kind_by=context.kind.by,
        )

    def _describe_task(self, name: str) -> TaskProvenance:
        context = self._context
        task = context.tasks.by_name[name]
        description = {
            "fingerprint": context.row.task_fingerprints[name],
            "metric": task.metric,
            **task.describe(),
        }
        provenance = TaskProvenance.from_dict(to_plain(description))
        chance = provenance.chance
        spec = context.study.benchmark(name)
        if spec is not None and spec.chance is not None:
            chance = spec.chance
        return replace(
            provenance,
            splits=SplitsProvenance.from_dict(task.plan.to_dict()),
            unknown_tokens=self._measure_unknown_share(task),
            chance=chance,
        )

    def _describe_engine(self) -> EngineProvenance:
        record = self._context.loaded.record
        parts = {part: facts for part, facts in record.items() if part != "training"}
        return EngineProvenance.from_dict(to_plain(parts))

    def _measure_unknown_share(self, task: Task) -> float:
        """Return the share of a task's tokens that the tokenizer does not know."""
        if task.name in self._unknown_shares:
            return self._unknown_shares[task.name]
        tokenizer = self._context.loaded.tokenizer
        unknown_id = getattr(tokenizer, "unk_token_id", None)
        texts: list[str] = []
        for document in task.documents("test")[:SAMPLED_DOCUMENTS]:
            texts += [value for value in document.data.values() if isinstance(value, str)]
        unknown = 0
        tokens = 0
        if texts and unknown_id is not None:
            for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
                unknown += ids.count(unknown_id)
                tokens += len(ids)
        self._unknown_shares[task.name] = unknown / max(tokens, 1)
        return self._unknown_shares[task.name]


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that takes part in a score."""
    by_package = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            continue
    return by_package
