"""The check that chooses a training form: the fastest code that computes what the model's own code computes.

A training form is a way to compute the gradients of many lanes (fine-tunings) at once. The forms, from fast to slow:

* **fused**: rows of all lanes, packed end to end, through layers written out by hand (``fused_layers``);
* **packed**: packed rows through the model's own layers;
* **padded**: padded rows of all lanes through the model's own layers;
* **one lane**: the same with one lane's rows a pass;
* **one row** a pass: the reference itself.

The reference is the model's own code on each row alone (``reference``), and torch's AdamW. Each form climbs the
``ladder`` of proof, on real rows of different lengths, up to the longest, in three lanes with random adapters
(``form_trial``). The first one is taken whose losses, gradients of every adapter and updates agree with the
reference's.

The float32 copy of a model in 16 bits computes by plain operations; the GPU kernels are compared with these one by one,
in the model's own dtype (``operations.compared``). The form taken is also tried with activations recomputed in the
backward pass, which a run may need when memory runs out. What only a real step has (all slots, all passes) is left to
``rehearsal``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from potentia.engine.models.float32_copy import TrialModel, open_trial_model
from potentia.engine.proof.form_trial import FormComparison, FormTrial, TrialSettings
from potentia.engine.proof.ladder import climb_ladder
from potentia.engine.proof.reference import check_scales, reference_loss
from potentia.engine.proof.refusal import Refusal, RefusalCause, cannot_tune_error
from potentia.engine.proof.training_rows import choose_training_rows
from potentia.values.engine_records import FormRecord, TrainingFacts
from potentia.values.training_form import TrainingForm

log = logging.getLogger(__name__)

COSTS = {  # of a form that is taken in place of the fastest
    TrainingForm.PACKED: "steps take about half as long again",
    TrainingForm.PADDED: "steps take two to four times as long on a GPU, and of small models up to forty times",
    TrainingForm.ONE_LANE: "a step takes as many passes as there are fine-tunings",
    TrainingForm.ONE_ROW: "a step takes a pass for every row",
}
FORMS = tuple(TrainingForm)  # from fast to slow


@dataclass(frozen=True)
class TrainingFormCheck:
    """The result of a check: the form to take, what that holds for, and the distances that were measured."""

    form: TrainingForm
    longest: int = 0  # tokens of the longest row that it holds for
    may_recompute: bool = False  # whether gradients are right with activations recomputed
    lacked_memory: bool = False  # whether a faster form might be right where there is more memory
    facts: TrainingFacts = field(default_factory=TrainingFacts)

    @property
    def was_full(self) -> bool:
        """Whether all trial rows were compared, so that other models of the same structure may rely on it."""
        return not self.facts.distances.few_rows

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the proof cache, which processes share."""
        return {
            "form": self.form.value,
            "may_recompute": self.may_recompute,
            "facts": self.facts.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingFormCheck:
        """Read a check from the proof cache."""
        return cls(
            TrainingForm(values["form"]),
            may_recompute=values["may_recompute"],
            facts=TrainingFacts.from_dict(values.get("facts", {})),
        )


def choose_training_form(
    model: nn.Module,
    settings: TrialSettings,
    *,
    may_pack: bool,
    refused: Mapping[TrainingForm, Refusal] | None = None,
    proof: TrainingFormCheck | None = None,
) -> TrainingFormCheck:
    """Choose the fastest form that agrees with the reference; raise an error where none does.

    Args:
        model: the model to train.
        settings: the adapters and lanes to train it with.
        may_pack: whether packed forms are tried.
        refused: forms that an earlier run could not use; all that are faster than one of them are not tried either.
        proof: the check of a model of the same structure: its form is tried first, on a few rows.
    """
    began = time.monotonic()
    refusals = dict(refused or {})
    forms = _list_forms_to_try(refusals, may_pack=may_pack)
    if proof is not None:
        forms = [
            proof.form,
            *(form for form in forms if FORMS.index(form) > FORMS.index(proof.form)),
        ]
    with _FormTrials(model, settings) as trials:
        path = _choose_first_right_form(trials, forms, refusals, proof)
    form_check = TrainingFormCheck(
        path.training_form,
        may_recompute=settings.recompute,
        lacked_memory=any(refusal.cause is RefusalCause.NO_MEMORY for refusal in refusals.values()),
        facts=TrainingFacts(
            form=path.training_form,
            not_taken=_list_reasons(refusals),
            distances=path.record,
        ),
    )
    if proof is not None and not form_check.was_full:
        form_check = _rely_on_proof(form_check, proof)
    elif not settings.recompute:
        form_check = _check_recomputation(model, settings, form_check)
    seconds = round(time.monotonic() - began, 3)
    return replace(form_check, facts=replace(form_check.facts, check_seconds=seconds))


def _list_forms_to_try(
    refused: Mapping[TrainingForm, Refusal], *, may_pack: bool
) -> Sequence[TrainingForm]:
    """List the forms slower than all refused ones, from fast to slow; without ``may_pack``, no packed ones."""
    fastest = 0 if may_pack else FORMS.index(TrainingForm.PADDED)
    slowest_refused = max((FORMS.index(form) for form in refused), default=-1)
    return FORMS[max(fastest, slowest_refused + 1) :]


def _choose_first_right_form(
    trials: _FormTrials,
    forms: Sequence[TrainingForm],
    refusals: dict[TrainingForm, Refusal],
    proof: TrainingFormCheck | None,
) -> _TrainingPath:
    """Return the first form that agrees with the reference, and add the reasons against the others to ``refusals``."""
    for training_form in forms:
        path = _TrainingPath(training_form, trials)
        was_proved = proof is not None and proof.form is training_form
        refusal = climb_ladder(path, was_proved=was_proved)
        if refusal is None:
            _log_slower_form(trials.model, training_form, refusals)
            return path
        refusals[training_form] = refusal
    raise cannot_tune_error(trials.model, list(refusals.values())[-1])


def _list_reasons(refusals: Mapping[TrainingForm, Refusal]) -> dict[TrainingForm, str]:
    """Return why forms are not taken that exist for the model's layers."""
    return {
        refused_form: refusal.reason
        for refused_form, refusal in refusals.items()
        if refusal.cause is not RefusalCause.ABSENT
    }


def _log_slower_form(
    model: nn.Module, training_form: TrainingForm, refusals: Mapping[TrainingForm, Refusal]
) -> None:
    """Log that a slower form is taken, and its cost, unless the others simply do not exist for the model's layers."""
    if all(refusal.cause is RefusalCause.ABSENT for refusal in refusals.values()):
        return
    reasons = "; ".join(
        f"{refused_form.words}: {refusal.reason}" for refused_form, refusal in refusals.items()
    )
    level = logging.INFO if training_form is TrainingForm.PACKED else logging.WARNING
    log.log(
        level,
        "%s: fine-tunings run as %s, %s (%s)",
        type(model).__name__,
        training_form.words,
        COSTS[training_form],
        reasons,
    )


def _rely_on_proof(form_check: TrainingFormCheck, proof: TrainingFormCheck) -> TrainingFormCheck:
    """Add what the full check of a model of the same structure showed."""
    facts = replace(
        form_check.facts,
        not_taken=proof.facts.not_taken,
        full_check=proof.facts.full_check or proof.facts.distances,
        recomputation_refused=proof.facts.recomputation_refused,
    )
    return replace(form_check, may_recompute=proof.may_recompute, facts=facts)


def _check_recomputation(
    model: nn.Module, settings: TrialSettings, form_check: TrainingFormCheck
) -> TrainingFormCheck:
    """Add whether the form's gradients are right with activations recomputed: few rows tell."""
    recomputing = replace(settings, recompute=True)
    refusal = _compare_on_few_rows(model, recomputing, form_check.form).refusal
    if refusal is None:
        return replace(form_check, may_recompute=True)
    facts = replace(form_check.facts, recomputation_refused=refusal.reason)
    return replace(form_check, facts=facts)


class _FormTrials:
    """The trials of one model's forms: on its float32 copy and on the model itself, each begun when it is needed."""

    def __init__(self, model: nn.Module, settings: TrialSettings) -> None:
        self.model = model
        self.settings = settings
        self._stack = ExitStack()

    def __enter__(self) -> _FormTrials:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def float32(self) -> FormTrial:
        """The trial on the float32 copy, or on the model itself where that is precise already."""
        trial_model = self._stack.enter_context(open_trial_model(self.model))
        trial = FormTrial(trial_model, self.settings)
        self._stack.callback(trial.bank.close)
        check_scales(trial.bank)
        return trial

    @cached_property
    def half(self) -> FormTrial:
        """The trial on the model itself in 16 bits, with rows that memory held for the copy.

        A copy without all blocks has other gradients than the model, whose reference is then computed in 16 bits.
        """
        settings = replace(self.settings, limit=self.float32.longest)
        float32_trial = self.float32 if self.float32.has_all_blocks else None
        trial = FormTrial(TrialModel.itself(self.model), settings, float32_trial=float32_trial)
        self._stack.callback(trial.bank.close)
        return trial


class _TrainingPath:
    """A training form of one model on the ladder of proof, with the record of its last comparisons."""

    def __init__(self, training_form: TrainingForm, trials: _FormTrials) -> None:
        self.training_form = training_form
        self.trials = trials
        self.record = FormRecord()

    def __str__(self) -> str:
        return f"{type(self.trials.model).__name__} as {self.training_form.words}"

    @property
    def is_in_16_bits(self) -> bool:
        """Whether the model is in 16 bits and has a float32 copy."""
        return self.trials.float32.is_float32_copy

    def compare_few_rows(self) -> Refusal | None:
        """Compare on two rows, and look whether the model's own loss is a number.

        Few rows can tell only whether the structure is right, and float32 tells it: 16 bits round the gradient of one
        row by a tenth of its size.
        """
        model, settings = self.trials.model, self.trials.settings
        shortest = min(
            choose_training_rows(settings.specs, settings.limit), key=lambda row: len(row.ids)
        )
        with torch.no_grad():
            loss = reference_loss(model, shortest, next(model.parameters()).device)
        if not math.isfinite(loss):
            return Refusal("its loss is not a number")
        comparison = _compare_on_few_rows(model, settings, self.training_form)
        self.record = comparison.record
        return comparison.refusal

    def compare_in_float32(self, draw_number: int) -> Refusal | None:
        """Compare in float32, or in the model's own precision where it has no float32 copy."""
        comparison = self.trials.float32.compare(self.training_form, draw_number)
        self.record = comparison.record
        return comparison.refusal

    def compare_in_16_bits(self, draw_number: int) -> Refusal | None:
        """Compare the model itself, in 16 bits."""
        comparison = self.trials.half.compare(self.training_form, draw_number)
        in_16_bits = comparison.record
        self.record = replace(
            self.record,
            gradients_in_16_bits=in_16_bits.gradients_in_16_bits or in_16_bits.gradients,
            reference_rounding=in_16_bits.reference_rounding,
            update=in_16_bits.update,
            kernels=in_16_bits.kernels,
        )
        return comparison.refusal


def _compare_on_few_rows(
    model: nn.Module, settings: TrialSettings, training_form: TrainingForm
) -> FormComparison:
    """Compare a form in float32 on one row of each of two lanes; an error is a refusal.

    The copy has two blocks of each kind: all blocks of a kind run the same code, whatever their weights are. A model
    that does not run without all its blocks is copied whole.
    """
    refusal = Refusal("")
    for all_blocks in (False, True):
        try:
            with open_trial_model(model, all_blocks=all_blocks) as trial_model:
                trial = FormTrial(trial_model, replace(settings, few_rows=True))
                with closing(trial.bank):
                    return trial.compare(training_form, draw_number=0)
        except Exception as error:  # whatever the model raises, the form is not known to be right
            refusal = Refusal.from_error(error)
    return FormComparison(refusal, FormRecord(few_rows=True))
