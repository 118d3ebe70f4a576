"""A model beside plain transformers and PEFT: scores, texts, gradients and updates, each with how far it is off.

The same questions as the check of every run asks, and three more that need PEFT itself: what it makes of the same
lanes, of our saved adapters, and how far its own 16 bits are from its float32.
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
Pair = tuple[list[int], list[int]]
Said = tuple[list[float], str]  # log-likelihoods, and the way they were computed
Found = TypeVar("Found")

LANES, EXAMPLES, BATCH, EPOCHS = 3, 8, 4, 2  # four steps
LONGEST = 192  # tokens of a text; a model that reads fewer has fewer
FIRST_WORD = 8  # below are special tokens, as a rule
EXACT = {"score": 1e-3, "adapter": 2e-3}
TIMES = 1.5  # in 16 bits: PEFT's own distance from its float32


@dataclass(frozen=True)
class Comparison:
    """One thing compared: how far off, what would still be right, and by what way Potentia computed it."""

    what: str
    off: float
    most: float
    way: str
    note: str = ""

    @property
    def right(self) -> bool:
        """Whether it is within what is right; what is not a number is not."""
        return self.off <= self.most


def compare_with_peft(loaded: LoadedModel, lora: LoraConfig) -> list[Comparison]:
    """Compare a loaded model's scores, texts, gradients and updates with plain transformers' and PEFT's."""
    pairs, specs = _pairs(loaded), make_comparison_lanes(lora, loaded)
    found = [
        _nats(
            "log-likelihoods",
            _said(loaded, pairs),
            loaded,
            lambda model: _plainly(model, pairs),
            "its",
        )
    ]
    found.append(_texts(loaded))
    with LaneTrainer(loaded) as trainer:
        failed = [
            result.reason for result in trainer.train(specs).values() if result.status != "done"
        ]
        if failed:
            raise TuningError(f"a lane failed: {failed[0]}")
        facts = trainer.record["training"]
        assert trainer.plan is not None
        bank = trainer.bank(lora, trainer.plan.slots)
        ours = [trainer.adapter_state(spec.key) for spec in specs]
        starts = [bank.peft_state(bank.fresh_row(spec.seed)) for spec in specs]
        owners = [trainer.restore(spec.key, EPOCHS) for spec in specs]
        tuned = _said(
            loaded, pairs, trainer, [owners[number % LANES] for number in range(len(pairs))]
        )

    def train(model: nn.Module) -> list[State]:
        with wrapped_by_peft(model, bank) as wrapped:
            return [
                train_by_peft(wrapped, spec, start)
                for spec, start in zip(specs, starts, strict=True)
            ]

    def score(model: nn.Module) -> list[float]:
        """Score questions to several adapters, one adapter at a time."""
        said = [0.0] * len(pairs)
        with wrapped_by_peft(model, bank) as wrapped:
            for place, state in enumerate(ours):
                _put(wrapped, state)
                said[place::LANES] = _plainly(wrapped, pairs[place::LANES])
        return said

    form, gradients = TrainingForm(facts["form"]).words, facts["distance"]
    found.append(
        Comparison(
            "gradients, float32", gradients["lane"], 1e-3, form, "of a lane, as a share of its size"
        )
    )
    if "distance_in_few_bits" in facts:
        most = max(0.02, 3 * facts["own_rounding"]["lane"])
        found.append(
            Comparison("gradients, 16 bits", facts["distance_in_few_bits"]["lane"], most, form)
        )
    found.append(Comparison("updates", facts["update"], 1e-4, form, "three of AdamW's"))
    theirs, exact = _own_and_exact(loaded.model, train)
    off, own = (max(map(adapter_distance, some, exact, starts)) for some in (ours, theirs))
    note = "of their movement" + (f"; PEFT's own 16 bits are off by {own:.2g}" if own else "")
    found.append(
        Comparison("adapters after four steps", off, max(EXACT["adapter"], TIMES * own), form, note)
    )
    found.append(_nats("log-likelihoods, 3 adapters", tuned, loaded, score, "PEFT's"))
    return found


def make_comparison_lanes(lora: LoraConfig, loaded: LoadedModel) -> list[LaneSpec]:
    """Make lanes of made-up texts: two tokens up to as long as the model reads, here at most 192."""
    vocabulary = int(loaded.model.get_input_embeddings().weight.shape[0])
    longest = min(LONGEST, loaded.max_length)
    specs = []
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
        specs.append(
            LaneSpec(
                f"lane-{number}", TokenisedExamples.from_lists(ids, prompts), schedule, lora, number
            )
        )
    return specs


# ---- transformers ---------------------------------------------------------------------------------------------------


def _pairs(loaded: LoadedModel) -> list[Pair]:
    """Make questions with choices: short and long, some that begin alike."""
    stream = np.random.default_rng(0)
    vocabulary = int(loaded.model.get_input_embeddings().weight.shape[0])
    longest = min(LONGEST, loaded.max_length) - 6
    pairs = []
    for length in (3, 9, longest // 2, longest):
        stem = stream.integers(FIRST_WORD, vocabulary, max(1, length)).tolist()
        pairs += [
            (stem, stream.integers(FIRST_WORD, vocabulary, count).tolist()) for count in (1, 2, 5)
        ]
    return pairs


@torch.no_grad()
def _plainly(model: Any, pairs: Sequence[Pair]) -> list[float]:
    """Return log-likelihoods by the model's own forward, one text at a time."""
    device = next(model.parameters()).device
    said = []
    for stem, rest in pairs:
        ids = torch.tensor([stem + rest], device=device)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0, -len(rest) :].float()
        said.append(
            float(torch.log_softmax(logits, -1).gather(1, ids[0, -len(rest) :, None]).sum())
        )
    return said


def _own_and_exact(model: nn.Module, compute: Callable[[nn.Module], Found]) -> tuple[Found, Found]:
    """Compute something with a model, and with its float32 copy where it is in 16 bits."""
    own = compute(model)
    with open_float32_copy(model) as judge:
        return own, compute(judge.model) if judge.copied and judge.whole else own


def _nats(
    what: str,
    ours: Said,
    loaded: LoadedModel,
    compute: Callable[[nn.Module], list[float]],
    whose: str,
) -> Comparison:
    """Compare log-likelihoods with the model's own: in 16 bits by how far these are off float32."""
    own, exact = _own_and_exact(loaded.model, compute)
    rounding, off = (
        max(abs(a - b) for a, b in zip(some, exact, strict=True)) for some in (own, ours[0])
    )
    note = f"nats; {whose} own 16 bits are off by {rounding:.2g}" if rounding else "nats"
    return Comparison(what, off, max(EXACT["score"], 2 * rounding), ours[1], note)


def _said(
    loaded: LoadedModel,
    pairs: Sequence[Pair],
    router: Any = None,
    owners: Sequence[int] | None = None,
) -> Said:
    """Return log-likelihoods as Potentia computes them, and by which paths."""
    scorer = Scorer(loaded, router=router)
    said = [entry.logprob for entry in scorer.loglikelihood_ids(pairs, owners=owners)]
    return said, " and ".join(scorer.notes["rows_by_path"])


def _texts(loaded: LoadedModel) -> Comparison:
    """Compare greedy texts with the model's own; in 16 bits a near tie may fall otherwise."""
    requests = [
        Generation(text, (), 8)
        for text in ("The river is", "Answer:", "One, two, three and then the next is")
    ]
    scorer = Scorer(loaded)
    ours = scorer.generate(requests)
    wrong = 0
    for request, text in zip(requests, ours, strict=True):
        prompt = loaded.encoder.prompt(request.context)
        own = str(
            loaded.tokenizer.decode(
                scorer.network.reference_tokens(prompt, 8, -1), skip_special_tokens=True
            )
        )
        end = loaded.tokenizer.eos_token
        wrong += text != (own.split(end)[0] if end else own)
    few = loaded.dtype not in (torch.float32, torch.float64)
    return Comparison(
        "greedy texts", wrong, 1 if few else 0, " and ".join(scorer.notes["writing"]), "of 3 differ"
    )


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


def _put(wrapped: Any, state: State) -> None:
    adapted = [(name, value) for name, value in wrapped.named_parameters() if "lora_" in name]
    own = {
        n.replace(".default", "").replace("_vector.weight", "_vector"): value
        for n, value in adapted
    }
    if own.keys() != state.keys():
        extra, missing = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        raise TuningError(f"PEFT adapts other layers: it has {extra[:3]}, we have {missing[:3]}")
    with torch.no_grad():
        for name, value in state.items():
            own[name].copy_(value)


def train_by_peft(wrapped: Any, spec: LaneSpec, start: State) -> State:
    """Train one lane with PEFT and torch's AdamW, every example alone in its pass."""
    from peft import get_peft_model_state_dict

    _put(wrapped, start)
    parameters = [p for p in wrapped.parameters() if p.requires_grad]
    device, schedule = parameters[0].device, spec.schedule
    few = next(
        p for n, p in wrapped.named_parameters() if "lora_" not in n and p.is_floating_point()
    ).dtype
    optimizer = torch.optim.AdamW(
        parameters, schedule.learning_rate, schedule.betas, schedule.eps, schedule.weight_decay
    )
    for step in range(spec.total_steps):
        for row in spec.rows_of_step(step):
            with torch.autocast(
                device.type, dtype=few, enabled=few in (torch.float16, torch.bfloat16)
            ):
                loss = reference_loss(wrapped, row, device)
            torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, schedule.clip if schedule.clip > 0 else math.inf)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * schedule.rate_share(step, spec.total_steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {
        n: v.detach().float().cpu().clone() for n, v in get_peft_model_state_dict(wrapped).items()
    }


def adapter_distance(ours: State, theirs: State, start: State) -> float:
    """Return how far two adapters are from each other, as a share of how far the second moved."""
    names = sorted(theirs)
    if sorted(ours) != names:
        raise TuningError("the adapters have different layers")
    gap = torch.cat([(ours[name] - theirs[name]).flatten() for name in names]).norm()
    moved = torch.cat([(theirs[name] - start[name]).flatten() for name in names]).norm()
    return float(gap / moved)
