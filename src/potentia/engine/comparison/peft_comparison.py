"""Compare Potentia with plain transformers and PEFT: scores, texts, gradients, updates and adapters of one model.

``potentia doctor MODEL`` shows the result. The comparison covers what the check of every run covers, and three things
that need PEFT itself: the adapters that PEFT trains for the same lanes (fine-tunings), the scores that it gives with
adapters trained here, and how far its own results in 16 bits are from its results in float32.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, TokenisedExamples
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.models.float32_copy import open_trial_model
from potentia.engine.models.split_model import requiring_gradients
from potentia.engine.proof.reference import reference_loss
from potentia.engine.proof.tolerance import FLOAT32_TOLERANCE, ROUNDING_FACTOR, UPDATE_TOLERANCE
from potentia.engine.scoring import Scorer
from potentia.engine.training.lanes import LaneTrainer
from potentia.errors import TuningError
from potentia.values.engine_records import TrainingFacts
from potentia.values.fine_tuning import LaneStatus
from potentia.values.recipe import LoraConfig, Schedule
from potentia.values.requests import Generation

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel

AdapterTensors = dict[str, Tensor]  # an adapter's weights by their names in PEFT's state
Pair = tuple[list[int], list[int]]  # the tokens of a question and of one of its choices
Computed = TypeVar("Computed")

# three lanes of four steps each
LANES = 3
EXAMPLES = 8
BATCH = 4
EPOCHS = 2
LONGEST = 192  # tokens of the longest text; fewer where the model reads fewer
FIRST_WORD = 8  # smaller token ids are special tokens, as a rule
SCORE_LIMIT = 1e-3  # nats that scores may be off in float32
GRADIENT_LIMIT_16_BITS = (
    0.02  # how far a gradient may be off in 16 bits, as a share, where rounding is smaller
)
ADAPTER_LIMIT = 2e-3  # how far adapters may be off in float32, as a share of their movement
ADAPTER_ROUNDING_FACTOR = 1.5  # in 16 bits: times PEFT's own distance from its float32
SCORE_ROUNDING_FACTOR = 2.0  # in 16 bits: times the distance of the model's own scores from float32


@dataclass(frozen=True)
class Comparison:
    """One quantity compared with the other tool's."""

    quantity: str
    off: float  # the distance
    limit: float  # the largest distance that counts as rounding
    computed_by: str  # the form or path by which Potentia computed it
    note: str = ""  # the distance's unit, and what it is to be seen beside

    @property
    def right(self) -> bool:
        """Whether the distance is small enough; a distance that is not a number is not."""
        return self.off <= self.limit


@dataclass(frozen=True)
class LogLikelihoods:
    """Log-likelihoods as Potentia computed them, and by which paths."""

    values: list[float]
    paths: str


@dataclass(frozen=True)
class ComparedLanes:
    """The lanes that Potentia trained for the comparison."""

    specs: list[LaneSpec]
    bank: AdapterBank
    starts: list[AdapterTensors]  # their adapters before
    adapters: list[AdapterTensors]  # and after training
    scores: LogLikelihoods  # of questions that belong to the adapters in turn
    facts: TrainingFacts  # its form, and the distances that its check measured

    @property
    def form(self) -> str:
        """The training form, in words."""
        assert self.facts.form is not None
        return self.facts.form.words


def compare_with_peft(loaded: LoadedModel, lora: LoraConfig) -> list[Comparison]:
    """Compare a loaded model's scores, texts, gradients and updates with plain transformers' and PEFT's."""
    pairs = _make_pairs(loaded)
    base_scores = _compare_log_likelihoods(
        "log-likelihoods",
        _score_by_potentia(loaded, pairs),
        loaded,
        lambda model: _score_by_transformers(model, pairs),
        "its",
    )
    texts = _compare_greedy_texts(loaded)
    lanes = _train_lanes(loaded, lora, pairs)
    adapters = _compare_adapters(loaded, lanes)
    adapter_scores = _compare_log_likelihoods(
        "log-likelihoods, 3 adapters",
        lanes.scores,
        loaded,
        lambda model: _score_adapters_by_peft(model, lanes, pairs),
        "PEFT's",
    )
    return [base_scores, texts, *_list_recorded_distances(lanes), adapters, adapter_scores]


def _train_lanes(loaded: LoadedModel, lora: LoraConfig, pairs: Sequence[Pair]) -> ComparedLanes:
    """Train lanes on made-up texts, and score questions with their adapters in turn."""
    specs = make_comparison_lanes(lora, loaded)
    with LaneTrainer(loaded) as trainer:
        for lane in trainer.train(specs).values():
            if lane.status != LaneStatus.DONE:
                raise TuningError(f"a fine-tuning failed: {lane.reason}")
        assert trainer.plan is not None
        adapter_bank = trainer.install_bank(lora, trainer.plan.slots)
        adapters = [trainer.adapter_state(spec.key) for spec in specs]
        starts = [adapter_bank.peft_state(adapter_bank.fresh_row(spec.seed)) for spec in specs]
        slots = [trainer.restore(spec.key, EPOCHS) for spec in specs]
        owners = [slots[number % LANES] for number in range(len(pairs))]
        return ComparedLanes(
            specs=specs,
            bank=adapter_bank,
            starts=starts,
            adapters=adapters,
            scores=_score_by_potentia(loaded, pairs, trainer, owners),
            facts=trainer.training_facts,
        )


def _list_recorded_distances(lanes: ComparedLanes) -> list[Comparison]:
    """Return the comparisons of gradients and updates, which the check of the training recorded."""
    record = lanes.facts.distances
    assert record.gradients is not None
    assert record.update is not None
    comparisons = [
        Comparison(
            quantity="gradients, float32",
            off=record.gradients.lane,
            limit=FLOAT32_TOLERANCE.lane,
            computed_by=lanes.form,
            note="of a fine-tuning, as a share of its size",
        )
    ]
    rounding = record.reference_rounding
    if record.gradients_in_16_bits is not None and rounding is not None:
        comparisons.append(
            Comparison(
                quantity="gradients, 16 bits",
                off=record.gradients_in_16_bits.lane,
                limit=max(GRADIENT_LIMIT_16_BITS, ROUNDING_FACTOR * rounding.lane),
                computed_by=lanes.form,
            )
        )
    comparisons.append(
        Comparison(
            quantity="updates",
            off=record.update,
            limit=UPDATE_TOLERANCE,
            computed_by=lanes.form,
            note="two of AdamW's",
        )
    )
    return comparisons


def _compare_adapters(loaded: LoadedModel, lanes: ComparedLanes) -> Comparison:
    """Compare trained adapters with those that PEFT trains for the same lanes in float32."""

    def train(model: nn.Module) -> list[AdapterTensors]:
        with wrapped_by_peft(model, lanes.bank) as wrapped:
            jobs = zip(lanes.specs, lanes.starts, strict=True)
            return [train_by_peft(wrapped, spec, start) for spec, start in jobs]

    peft_adapters, exact_adapters = _compute_in_both_precisions(loaded.model, train)
    distance = max(map(adapter_distance, lanes.adapters, exact_adapters, lanes.starts))
    peft_rounding = max(map(adapter_distance, peft_adapters, exact_adapters, lanes.starts))
    note = "of their movement"
    if peft_rounding:
        note += f"; PEFT's own 16 bits are off by {peft_rounding:.2g}"
    return Comparison(
        quantity="adapters after four steps",
        off=distance,
        limit=max(ADAPTER_LIMIT, ADAPTER_ROUNDING_FACTOR * peft_rounding),
        computed_by=lanes.form,
        note=note,
    )


def _score_adapters_by_peft(
    model: nn.Module, lanes: ComparedLanes, pairs: Sequence[Pair]
) -> list[float]:
    """Return log-likelihoods by PEFT: the questions belong to the adapters in turn, and each is loaded once."""
    scores = [0.0] * len(pairs)
    with wrapped_by_peft(model, lanes.bank) as wrapped:
        for number, adapter in enumerate(lanes.adapters):
            _load_adapter(wrapped, adapter)
            scores[number::LANES] = _score_by_transformers(wrapped, pairs[number::LANES])
    return scores


def make_comparison_lanes(lora: LoraConfig, loaded: LoadedModel) -> list[LaneSpec]:
    """Make lanes of made-up texts, of two tokens up to :data:`LONGEST` or what the model reads."""
    vocabulary = int(loaded.model.get_input_embeddings().weight.shape[0])
    longest = min(LONGEST, loaded.max_length)
    specs: list[LaneSpec] = []
    for number in range(LANES):
        stream = np.random.default_rng(number)
        lengths = [longest, *stream.integers(2, max(3, longest // 3), EXAMPLES - 1).tolist()]
        token_ids = [stream.integers(FIRST_WORD, vocabulary, length).tolist() for length in lengths]
        prompts = [int(stream.integers(1, length)) for length in lengths]
        schedule = Schedule(
            epochs=EPOCHS,
            batch=BATCH,
            learning_rate=1e-3 * (1 + number),
            loss="completion" if number % 2 else "text",
        )
        lane_spec = LaneSpec(
            key=f"lane-{number}",
            examples=TokenisedExamples.from_lists(token_ids, prompts),
            schedule=schedule,
            lora=lora,
            seed=number,
        )
        specs.append(lane_spec)
    return specs


# ---- transformers ---------------------------------------------------------------------------------------------------


def _make_pairs(loaded: LoadedModel) -> list[Pair]:
    """Make pairs of a question and a choice: questions short and long, each with three choices."""
    stream = np.random.default_rng(0)
    vocabulary = int(loaded.model.get_input_embeddings().weight.shape[0])
    longest = min(LONGEST, loaded.max_length) - 6
    pairs: list[Pair] = []
    for length in (3, 9, longest // 2, longest):
        question = stream.integers(FIRST_WORD, vocabulary, max(1, length)).tolist()
        for choice_length in (1, 2, 5):
            choice = stream.integers(FIRST_WORD, vocabulary, choice_length).tolist()
            pairs.append((question, choice))
    return pairs


@torch.no_grad()
def _score_by_transformers(model: Any, pairs: Sequence[Pair]) -> list[float]:
    """Return log-likelihoods by the model's own forward, one text at a time."""
    device = next(model.parameters()).device
    scores: list[float] = []
    for question, choice in pairs:
        token_ids = torch.tensor([question + choice], device=device)
        logits = model(input_ids=token_ids[:, :-1], use_cache=False).logits
        choice_logits = logits[0, -len(choice) :].float()
        choice_ids = token_ids[0, -len(choice) :, None]
        token_scores = torch.log_softmax(choice_logits, -1).gather(1, choice_ids)
        scores.append(float(token_scores.sum()))
    return scores


def _compute_in_both_precisions(
    model: nn.Module, compute: Callable[[nn.Module], Computed]
) -> tuple[Computed, Computed]:
    """Return what ``compute`` gives for a model, and for its float32 copy.

    Both are the same where the model is no model in 16 bits, or memory does not hold a whole copy.
    """
    in_own_precision = compute(model)
    with open_trial_model(model) as trial_model:
        if not (trial_model.is_float32_copy and trial_model.has_all_blocks):
            return in_own_precision, in_own_precision
        return in_own_precision, compute(trial_model.model)


def _compare_log_likelihoods(
    quantity: str,
    ours: LogLikelihoods,
    loaded: LoadedModel,
    compute: Callable[[nn.Module], list[float]],
    whose: str,
) -> Comparison:
    """Compare log-likelihoods with those of another tool, ``compute``, in float32.

    In 16 bits a multiple of that tool's own rounding is allowed; ``whose`` rounding it is stands in the note.
    """
    in_own_precision, in_float32 = _compute_in_both_precisions(loaded.model, compute)
    rounding = _largest_difference(in_own_precision, in_float32)
    note = "nats"
    if rounding:
        note = f"nats; {whose} own 16 bits are off by {rounding:.2g}"
    return Comparison(
        quantity=quantity,
        off=_largest_difference(ours.values, in_float32),
        limit=max(SCORE_LIMIT, SCORE_ROUNDING_FACTOR * rounding),
        computed_by=ours.paths,
        note=note,
    )


def _largest_difference(values: Sequence[float], exact_values: Sequence[float]) -> float:
    pairs = zip(values, exact_values, strict=True)
    return max(abs(value - exact) for value, exact in pairs)


def _score_by_potentia(
    loaded: LoadedModel,
    pairs: Sequence[Pair],
    router: LaneTrainer | None = None,
    owners: Sequence[int] | None = None,
) -> LogLikelihoods:
    """Return log-likelihoods as Potentia computes them."""
    scorer = Scorer(loaded, router=router)
    values = [entry.logprob for entry in scorer.loglikelihood_ids(pairs, owners=owners)]
    return LogLikelihoods(values, " and ".join(scorer.notes.rows_by_route))


def _compare_greedy_texts(loaded: LoadedModel) -> Comparison:
    """Compare greedy texts with the model's own; in 16 bits one may differ, where rounding decides a near tie."""
    prompts = ("The river is", "Answer:", "One, two, three and then the next is")
    requests = [Generation(prompt, (), 8) for prompt in prompts]
    scorer = Scorer(loaded)
    texts = scorer.generate(requests)
    different_texts = 0
    for request, text in zip(requests, texts, strict=True):
        if text != _write_by_transformers(loaded, scorer, request):
            different_texts += 1
    is_in_16_bits = loaded.dtype not in (torch.float32, torch.float64)
    return Comparison(
        quantity="greedy texts",
        off=different_texts,
        limit=1 if is_in_16_bits else 0,
        computed_by=" and ".join(scorer.notes.writing),
        note="of 3 differ",
    )


def _write_by_transformers(loaded: LoadedModel, scorer: Scorer, request: Generation) -> str:
    """Return the text that the model's own forward writes, up to the end-of-text token."""
    prompt = loaded.encoder.prompt(request.context)
    tokens = scorer.network.reference_tokens(prompt, 8, -1)
    text = str(loaded.tokenizer.decode(tokens, skip_special_tokens=True))
    end_token = loaded.tokenizer.eos_token
    if not end_token:
        return text
    return text.split(end_token)[0]


# ---- PEFT -----------------------------------------------------------------------------------------------------------


@contextmanager
def wrapped_by_peft(model: nn.Module, adapter_bank: AdapterBank) -> Iterator[Any]:
    """Put PEFT's adapters, shaped like the bank's, on a model inside the block."""
    from peft import get_peft_model

    with requiring_gradients(model, False):
        with warnings.catch_warnings():
            # PEFT warns because it looks for these names among modules alone; it applies them to parameters too
            warnings.filterwarnings("ignore", r".*(rank|alpha)_pattern keys did not match")
            wrapped: Any = get_peft_model(model, adapter_bank.peft_config(inference=False))
        wrapped.eval()  # the base's own dropout is off in lanes
        _keep_projections_apart(wrapped, adapter_bank)
        try:
            yield wrapped
        finally:
            wrapped.unload()


def _keep_projections_apart(wrapped: Any, adapter_bank: AdapterBank) -> None:
    """Let the B of a layer that holds several projections learn within each projection alone, as the bank's does."""
    parameters = _adapter_parameters(wrapped)
    for site_name, mask in adapter_bank.block_masks().items():
        parameter = parameters[site_name]
        device_mask = mask.to(parameter.device, parameter.dtype)
        parameter.register_hook(functools.partial(torch.mul, device_mask))  # type: ignore[no-untyped-call]


def _adapter_parameters(wrapped: Any) -> AdapterTensors:
    """Return the adapters' parameters by their names in PEFT's state."""
    parameters: AdapterTensors = {}
    for parameter_name, parameter in wrapped.named_parameters():
        if "lora_" in parameter_name:
            state_name = parameter_name.replace(".default", "").replace("_vector.weight", "_vector")
            parameters[state_name] = parameter
    return parameters


def _load_adapter(wrapped: Any, state: AdapterTensors) -> None:
    """Copy an adapter's weights into PEFT's layers; raise an error where PEFT adapts other layers."""
    parameters = _adapter_parameters(wrapped)
    if parameters.keys() != state.keys():
        extra = sorted(parameters.keys() - state.keys())
        missing = sorted(state.keys() - parameters.keys())
        raise TuningError(f"PEFT adapts other layers: it has {extra[:3]}, we have {missing[:3]}")
    with torch.no_grad():
        for tensor_name, value in state.items():
            parameters[tensor_name].copy_(value)


def train_by_peft(wrapped: Any, lane_spec: LaneSpec, start: AdapterTensors) -> AdapterTensors:
    """Train one lane with PEFT and torch's AdamW, every example alone in its pass; return the adapter.

    An adapter that no token of a step reaches has a gradient of zero here, as in Potentia's lanes. Left to itself,
    torch would skip a parameter without a gradient: its moments and its count of steps would stand still.
    """
    from peft import get_peft_model_state_dict

    _load_adapter(wrapped, start)
    parameters = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    device = parameters[0].device
    schedule = lane_spec.schedule
    base_dtype = _dtype_of_base(wrapped)
    is_in_16_bits = base_dtype in (torch.float16, torch.bfloat16)
    max_norm = schedule.clip if schedule.clip > 0 else math.inf
    optimizer = torch.optim.AdamW(
        parameters,
        lr=schedule.learning_rate,
        betas=schedule.betas,
        eps=schedule.eps,
        weight_decay=schedule.weight_decay,
    )
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for step in range(lane_spec.total_steps):
        for row in lane_spec.rows_of_step(step):
            with torch.autocast(device.type, dtype=base_dtype, enabled=is_in_16_bits):
                loss = reference_loss(wrapped, row, device)
            torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, max_norm)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * schedule.rate_share(step, lane_spec.total_steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    adapter = get_peft_model_state_dict(wrapped)
    return {
        tensor_name: value.detach().float().cpu().clone() for tensor_name, value in adapter.items()
    }


def _dtype_of_base(wrapped: Any) -> torch.dtype:
    """Return the dtype of the weights under PEFT's adapters."""
    for parameter_name, parameter in wrapped.named_parameters():
        if "lora_" not in parameter_name and parameter.is_floating_point():
            dtype: torch.dtype = parameter.dtype
            return dtype
    raise TuningError("the model has no weights of its own")


def adapter_distance(
    our_state: AdapterTensors, theirs: AdapterTensors, start: AdapterTensors
) -> float:
    """Return how far two adapters are from each other, as a share of how far the second moved from its start."""
    names = sorted(theirs)
    if sorted(our_state) != names:
        raise TuningError("the adapters have different layers")
    gaps = torch.cat([(our_state[name] - theirs[name]).flatten() for name in names])
    movements = torch.cat([(theirs[name] - start[name]).flatten() for name in names])
    return float(gaps.norm() / movements.norm())
