"""The slow, plain path: one sequence at a time, full logits, nothing shared. What fast paths are tried against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from potentia.engine.score.forest import Strand
from potentia.engine.score.network import Network, log_softmax

if TYPE_CHECKING:
    from potentia.engine.tokens import Ids

# Of each token: |difference| <= absolute + relative × |log-probability|, and the mean over tokens. Rounding differs
# between kernels, a wrong mask differs by more.
TOLERANCE = {
    torch.float64: (1e-6, 1e-8, 1e-7),
    torch.float32: (1e-3, 1e-4, 2e-4),
    torch.float16: (0.05, 0.01, 0.02),
    torch.bfloat16: (0.5, 0.05, 0.1),
}


def reference_likelihood(network: Network, strand: Strand) -> tuple[float, bool]:
    """Return the log-likelihood of a strand's scored tokens and whether each was the most likely one."""
    logprobs, hits = _score(network, strand)
    return float(logprobs.double().sum()), bool(hits.all())


def reference_logprobs(network: Network, strand: Strand) -> list[float]:
    """Return the log-probability of each of a strand's scored tokens."""
    return _score(network, strand)[0].tolist()


def _score(network: Network, strand: Strand) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor([strand.ids], device=network.device)
    network.route([strand.owner])
    logits = network.model(input_ids=ids[:, :-1], use_cache=False).logits[0, -strand.scored :]  # (scored, vocabulary)
    wanted = ids[0, -strand.scored :]
    return log_softmax(logits).gather(1, wanted[:, None])[:, 0], logits.argmax(dim=-1) == wanted


def own_tokens(network: Network, prompt: Ids, room: int, owner: int) -> Ids:
    """Return what the model's own ``generate`` writes after a prompt, greedily."""
    network.route([owner])
    ids = torch.tensor([prompt], device=network.device)
    out = network.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=room,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def close_enough(fast: Sequence[float], slow: Sequence[float], dtype: torch.dtype) -> bool:
    """Say whether the log-probabilities of some tokens differ by rounding alone."""
    absolute, relative, mean = TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16])
    gaps = [abs(one - other) for one, other in zip(fast, slow, strict=True)]
    within = all(gap <= absolute + relative * abs(value) for gap, value in zip(gaps, slow, strict=True))
    return within and sum(gaps) <= len(gaps) * mean + relative * sum(map(abs, slow))
