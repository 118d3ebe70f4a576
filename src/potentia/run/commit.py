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
from potentia.study import SCORING_VERSION, renamed_cell_key, tuning_for_adjust
from potentia.timing import spending
from potentia.values.engine_records import TrainingFacts
from potentia.values.metric import Origin, fingerprint_recipe
from potentia.values.provenance import (
    ModelProvenance,
    Provenance,
    TaskProvenance,
)
from potentia.values.selection import CutPrompts, ProbeResult, Selection

if TYPE_CHECKING:
    from potentia.run.plan import CellPlan
    from potentia.run.row_context import RowContext
    from potentia.store import CellRecord
    from potentia.study import Adjust, Study
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
        test_evaluation = result.test
        if not math.isfinite(test_evaluation.main.value):
            raise ModelError(
                f"the {test_evaluation.metric} on the test split is {test_evaluation.main.value}"
            )
        if test_evaluation.says_nothing:
            raise ModelError(
                f"every choice got the same log-probability in {test_evaluation.tied:,}"
                f" of {test_evaluation.compared:,} examples",
                hint="the tokenizer may turn most words into the unknown token, or the model cannot read"
                " this text: take another model",
            )
        record = self._make_record(cell, result)
        self._store_record(cell, record, test_evaluation)

    def _make_record(self, cell: CellPlan, result: CellResult) -> CellRecord:
        from potentia.store import CellRecord

        row = self._context.row
        test_evaluation = result.test
        selection = result.selection
        provenance = self.describe_provenance(cell, selection)
        if provenance.task.unknown_tokens >= UNKNOWN_SHARE:
            selection = replace(selection, unknown_tokens=provenance.task.unknown_tokens)
        if test_evaluation.cut:
            selection = replace(
                selection, cut_prompts=CutPrompts(test_evaluation.cut, test_evaluation.requests)
            )
        origin = self._find_origin(provenance)
        gain_score = None
        if result.direct_value is not None:
            gain_score = test_evaluation.main.value - result.direct_value
        return CellRecord(
            key=cell.key,
            study=row.study_key,
            model=row.model.name,
            task=cell.task,
            protocol=cell.protocol,
            scores={
                metric_name: replace(score, origin=origin)
                for metric_name, score in test_evaluation.scores.items()
            },
            metric=test_evaluation.metric,
            provenance=provenance,
            seconds=result.seconds,
            selection=selection,
            direct_value=result.direct_value,
            gain=gain_score,
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
            recipe=fingerprint_recipe(recipe),
            shots=provenance.shots,
            model=self._context.loaded.fingerprint,
            path=training.form.value if training is not None and training.form else None,
        )

    def _store_record(
        self, cell: CellPlan, record: CellRecord, test_evaluation: Evaluation
    ) -> None:
        from potentia.analysis.stats import interval_of_score

        context = self._context
        store = context.store
        event = {
            "task": cell.task,
            "protocol": cell.protocol,
            "value": test_evaluation.main.value,
            "stderr": test_evaluation.main.stderr,
            "error": interval_of_score(test_evaluation.main).format_error(),
        }
        search_end = record.selection.search
        if search_end is not None and search_end.may_have_more:
            event["may_have_more"] = search_end.label
        with spending("save"):
            # the event is in the transaction of the commit, also where that went through and its answer got lost
            is_logged = True
            is_committed = store.cells.commit(
                record, items=test_evaluation.outcomes, event={"row": record.model, **event}
            )
            if not is_committed:
                names = (record.model, record.task)
                if names not in store.cells.read_names([cell.key]).values():
                    # another row with the same files was first
                    store.cells.copy(
                        cell.key,
                        renamed_cell_key(cell.key, *names),
                        study=record.study,
                        model=record.model,
                        task=record.task,
                    )
                    is_logged = False
                elif self._is_of_another_process(record):
                    context.outcome.finished_elsewhere += 1
                    context.progress.log_event("found", cells=1, done=[(cell.task, cell.protocol)])
                    return
        context.outcome.done += 1
        context.progress.log_event("cell", is_logged=is_logged, **event)

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
            shots=study.count_shots(cell.task, cell.protocol),
            seed=study.seed,
            styles=context.styles,
            scorer=context.scorer.notes,
            gpu_sharing="MPS" if loaded.device.type == "cuda" and is_gpu_shared() else None,
            engine=replace(loaded.record, training=None),
        )
        if cell.protocol.tuned:
            training = loaded.record.training or TrainingFacts()
            if not training.targets:
                training = replace(training, targets=selection.target_modules)
            provenance = replace(provenance, training=training)
        if cell.protocol.kind == "train_before_test":
            provenance = replace(
                provenance,
                tuning=study.tuning.model_dump(mode="json"),
                selection=study.selection,
            )
        if cell.protocol.kind == "adjust" and study.adjust is not None:
            tuning = tuning_for_adjust(study, context.row.model, loaded.parameters)
            provenance = replace(
                provenance,
                selection=study.selection,
                adjust=describe_adjust(study, study.adjust),
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

    def _describe_task(self, task_name: str) -> TaskProvenance:
        context = self._context
        task = context.tasks.by_name[task_name]
        description = task.describe()
        chance = description.chance
        task_spec = context.study.find_task_spec(task_name)
        if task_spec is not None and task_spec.chance is not None:
            chance = task_spec.chance
        return replace(
            description,
            fingerprint=context.row.task_fingerprints[task_name],
            unknown_tokens=self._measure_unknown_share(task),
            chance=chance,
        )

    def _measure_unknown_share(self, task: Task) -> float:
        """Return the share of a task's tokens that the tokenizer does not know."""
        if task.name in self._unknown_shares:
            return self._unknown_shares[task.name]
        tokenizer = self._context.loaded.tokenizer
        unknown_id = getattr(tokenizer, "unk_token_id", None)
        texts: list[str] = []
        for document in task.documents("test")[:SAMPLED_DOCUMENTS]:
            texts += [
                column_value
                for column_value in document.data.values()
                if isinstance(column_value, str)
            ]
        unknown = 0
        tokens = 0
        if texts and unknown_id is not None:
            for token_ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
                unknown += token_ids.count(unknown_id)
                tokens += len(token_ids)
        self._unknown_shares[task.name] = unknown / max(tokens, 1)
        return self._unknown_shares[task.name]


def describe_adjust(study: Study, adjust: Adjust) -> dict[str, object]:
    """Return the section of a study, with the tuning that it inherits where it has none of its own.

    A recipe by name is the rule for all models, and stays a name.
    """
    if adjust.recipe is None:
        adjust = adjust.model_copy(update={"tuning": tuning_for_adjust(study)})
    return adjust.model_dump(mode="json")


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
