"""Compare Potentia with plain transformers and PEFT: scores, texts, gradients, updates and adapters of one model.

The comparison covers what the check of every run covers, and three things that need PEFT itself: the adapters that it
trains for the same lanes, the scores that it gives to our adapters, and how far its own 16 bits are from its float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, LoraConfig, Schedule, TokenisedExamples
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.models.float32_copy import open_float32_copy
from potentia.engine.models.split_model import asking
from potentia.engine.proof.reference import reference_loss
from potentia.engine.scoring import Scorer
from potentia.engine.training.lanes import LaneTrainer
from potentia.errors import TuningError
from potentia.values.requests import Generation
from potentia.values.training_form import TrainingForm

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel

State = dict[str, Tensor]
Pair = tuple[list[int], list[int]]  # the ids of a question and of one of its choices
Computed = TypeVar("Computed")

# three lanes of four steps each
LANES = 3
EXAMPLES = 8
BATCH = 4
EPOCHS = 2
LONGEST = 192  # tokens of a text; a model that reads fewer has fewer
FIRST_WORD = 8  # below are special tokens, as a rule
EXACT = {"score": 1e-3, "adapter": 2e-3}
TIMES = 1.5  # in 16 bits: PEFT's own distance from its float32


@dataclass(frozen=True)
class Comparison:
    """One thing compared: how far off it is, what would still be right, and by which form Potentia computed it."""

    quantity: str
    off: float
    limit: float
    computed_by: str
    note: str = ""

    @property
    def right(self) -> bool:
        """Whether the distance is small enough; one that is not a number is not."""
        return self.off <= self.limit


@dataclass(frozen=True)
class LogLikelihoods:
    """Log-likelihoods as Potentia computed them, and by which paths."""

    values: list[float]
    paths: str


@dataclass(frozen=True)
class ComparedLanes:
    """The lanes that Potentia trained: their adapters before and after, how they score, and the record of the check."""

    specs: list[LaneSpec]
    bank: AdapterBank
    starts: list[State]
    adapters: list[State]
    scores: LogLikelihoods
    record: dict[str, Any]

    @property
    def form(self) -> str:
        """The words for the form that the lanes were trained in."""
        return TrainingForm(self.record["form"]).words


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
    """Train made-up lanes, and score questions with their adapters in turn."""
    specs = make_comparison_lanes(lora, loaded)
    with LaneTrainer(loaded) as trainer:
        for lane in trainer.train(specs).values():
            if lane.status != "done":
                raise TuningError(f"a lane failed: {lane.reason}")
        assert trainer.plan is not None
        bank = trainer.bank(lora, trainer.plan.slots)
        adapters = [trainer.adapter_state(spec.key) for spec in specs]
        starts = [bank.peft_state(bank.fresh_row(spec.seed)) for spec in specs]
        slots = [trainer.restore(spec.key, EPOCHS) for spec in specs]
        owners = [slots[number % LANES] for number in range(len(pairs))]
        return ComparedLanes(
            specs=specs,
            bank=bank,
            starts=starts,
            adapters=adapters,
            scores=_score_by_potentia(loaded, pairs, trainer, owners),
            record=trainer.record["training"],
        )


def _list_recorded_distances(lanes: ComparedLanes) -> list[Comparison]:
    """Return the distances of gradients and updates that the check of the training recorded."""
    record = lanes.record
    comparisons = [
        Comparison(
            quantity="gradients, float32",
            off=record["distance"]["lane"],
            limit=1e-3,
            computed_by=lanes.form,
            note="of a lane, as a share of its size",
        )
    ]
    if "distance_in_few_bits" in record:
        comparisons.append(
            Comparison(
                quantity="gradients, 16 bits",
                off=record["distance_in_few_bits"]["lane"],
                limit=max(0.02, 3 * record["own_rounding"]["lane"]),
                computed_by=lanes.form,
            )
        )
    comparisons.append(
        Comparison(
            quantity="updates",
            off=record["update"],
            limit=1e-4,
            computed_by=lanes.form,
            note="three of AdamW's",
        )
    )
    return comparisons


def _compare_adapters(loaded: LoadedModel, lanes: ComparedLanes) -> Comparison:
    """Compare trained adapters with those that PEFT trains in float32."""

    def train(model: nn.Module) -> list[State]:
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
        limit=max(EXACT["adapter"], TIMES * peft_rounding),
        computed_by=lanes.form,
        note=note,
    )


def _score_adapters_by_peft(
    model: nn.Module, lanes: ComparedLanes, pairs: Sequence[Pair]
) -> list[float]:
    """Score every third question with the same adapter, one adapter at a time."""
    scores = [0.0] * len(pairs)
    with wrapped_by_peft(model, lanes.bank) as wrapped:
        for number, adapter in enumerate(lanes.adapters):
            _load_adapter(wrapped, adapter)
            scores[number::LANES] = _score_by_transformers(wrapped, pairs[number::LANES])
    return scores


def make_comparison_lanes(lora: LoraConfig, loaded: LoadedModel) -> list[LaneSpec]:
    """Make lanes of made-up texts: two tokens up to as long as the model reads, here at most 192."""
    vocabulary = int(loaded.model.get_input_embeddings().weight.shape[0])
    longest = min(LONGEST, loaded.max_length)
    specs: list[LaneSpec] = []
    for number in range(LANES):
        stream = np.random.default_rng(number)
        lengths = [longest, *stream.integers(2, max(3, longest // 3), EXAMPLES - 1).tolist()]
        ids = [stream.integers(FIRST_WORD, vocabulary, length).tolist() for length in lengths]
        prompts = [int(stream.integers(1, length)) for length in lengths]
        schedule = Schedule(
            epochs=EPOCHS,
            batch=BATCH,
            learning_rate=1e-3 * (1 + number),
            loss="completion" if number % 2 else "text",
        )
        spec = LaneSpec(
            key=f"lane-{number}",
            examples=TokenisedExamples.from_lists(ids, prompts),
            schedule=schedule,
            lora=lora,
            seed=number,
        )
        specs.append(spec)
    return specs


# ---- transformers ---------------------------------------------------------------------------------------------------


def _make_pairs(loaded: LoadedModel) -> list[Pair]:
    """Make questions with choices: short and long, some that begin alike."""
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
        ids = torch.tensor([question + choice], device=device)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        choice_logits = logits[0, -len(choice) :].float()
        choice_ids = ids[0, -len(choice) :, None]
        token_scores = torch.log_softmax(choice_logits, -1).gather(1, choice_ids)
        scores.append(float(token_scores.sum()))
    return scores


def _compute_in_both_precisions(
    model: nn.Module, compute: Callable[[nn.Module], Computed]
) -> tuple[Computed, Computed]:
    """Compute something with a model, and with its float32 copy where the model is in 16 bits."""
    in_own_precision = compute(model)
    with open_float32_copy(model) as reference:
        if not (reference.copied and reference.whole):
            return in_own_precision, in_own_precision
        return in_own_precision, compute(reference.model)


def _compare_log_likelihoods(
    quantity: str,
    ours: LogLikelihoods,
    loaded: LoadedModel,
    compute: Callable[[nn.Module], list[float]],
    whose: str,
) -> Comparison:
    """Compare log-likelihoods with the model's own: in 16 bits by how far these are off float32."""
    reference, exact = _compute_in_both_precisions(loaded.model, compute)
    rounding = _largest_difference(reference, exact)
    note = "nats"
    if rounding:
        note = f"nats; {whose} own 16 bits are off by {rounding:.2g}"
    return Comparison(
        quantity=quantity,
        off=_largest_difference(ours.values, exact),
        limit=max(EXACT["score"], 2 * rounding),
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
    return LogLikelihoods(values, " and ".join(scorer.notes["rows_by_path"]))


def _compare_greedy_texts(loaded: LoadedModel) -> Comparison:
    """Compare greedy texts with the model's own; in 16 bits a near tie may fall otherwise."""
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
        computed_by=" and ".join(scorer.notes["writing"]),
        note="of 3 differ",
    )


def _write_by_transformers(loaded: LoadedModel, scorer: Scorer, request: Generation) -> str:
    """Return the text that the model's own forward writes, up to the end of text."""
    prompt = loaded.encoder.prompt(request.context)
    tokens = scorer.network.reference_tokens(prompt, 8, -1)
    text = str(loaded.tokenizer.decode(tokens, skip_special_tokens=True))
    end = loaded.tokenizer.eos_token
    if not end:
        return text
    return text.split(end)[0]


# ---- PEFT -----------------------------------------------------------------------------------------------------------


@contextmanager
def wrapped_by_peft(model: nn.Module, bank: AdapterBank) -> Iterator[Any]:
    """Put PEFT's adapters of the bank's shape on a model, and take them off again."""
    from peft import get_peft_model

    with asking(model, False):
        wrapped: Any = get_peft_model(model, bank.peft_config(inference=False))
        wrapped.eval()  # the base's own dropout is off in lanes
        try:
            yield wrapped
        finally:
            wrapped.unload()


def _load_adapter(wrapped: Any, state: State) -> None:
    """Copy an adapter's weights into PEFT's layers; layers that differ are an error."""
    parameters: State = {}
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            state_name = name.replace(".default", "").replace("_vector.weight", "_vector")
            parameters[state_name] = parameter
    if parameters.keys() != state.keys():
        extra = sorted(parameters.keys() - state.keys())
        missing = sorted(state.keys() - parameters.keys())
        raise TuningError(f"PEFT adapts other layers: it has {extra[:3]}, we have {missing[:3]}")
    with torch.no_grad():
        for name, value in state.items():
            parameters[name].copy_(value)


def train_by_peft(wrapped: Any, spec: LaneSpec, start: State) -> State:
    """Train one lane with PEFT and torch's AdamW, every example alone in its pass."""
    from peft import get_peft_model_state_dict

    _load_adapter(wrapped, start)
    parameters = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    device = parameters[0].device
    schedule = spec.schedule
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
    for step in range(spec.total_steps):
        for row in spec.rows_of_step(step):
            with torch.autocast(device.type, dtype=base_dtype, enabled=is_in_16_bits):
                loss = reference_loss(wrapped, row, device)
            torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, max_norm)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * schedule.rate_share(step, spec.total_steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    adapter = get_peft_model_state_dict(wrapped)
    return {name: value.detach().float().cpu().clone() for name, value in adapter.items()}


def _dtype_of_base(wrapped: Any) -> torch.dtype:
    """Return the dtype of the weights under PEFT's adapters."""
    for name, parameter in wrapped.named_parameters():
        if "lora_" not in name and parameter.is_floating_point():
            dtype: torch.dtype = parameter.dtype
            return dtype
    raise TuningError("the model has no weights of its own")


def adapter_distance(ours: State, theirs: State, start: State) -> float:
    """Return how far two adapters are from each other, as a share of how far the second moved."""
    names = sorted(theirs)
    if sorted(ours) != names:
        raise TuningError("the adapters have different layers")
    gap = torch.cat([(ours[name] - theirs[name]).flatten() for name in names]).norm()
    moved = torch.cat([(theirs[name] - start[name]).flatten() for name in names]).norm()
    return float(gap / moved)
