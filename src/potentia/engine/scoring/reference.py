"""The slow, plain path: one sequence at a time, full logits, nothing shared. What the fast path is checked against."""

from __future__ import annotations

import torch

from potentia.engine.scoring.forest import Strand
from potentia.engine.scoring.network import Network, log_softmax

# |difference| <= absolute + relative × |log-likelihood|; rounding differs between kernels, a wrong mask differs by more
TOLERANCE = {
    torch.float64: (1e-6, 1e-8),
    torch.float32: (1e-3, 1e-4),
    torch.float16: (0.05, 0.01),
    torch.bfloat16: (0.25, 0.03),
}


def reference_likelihood(network: Network, strand: Strand) -> tuple[float, bool]:
    """Return the log-likelihood of a strand's scored tokens and whether each was the most likely one."""
    ids = torch.tensor([strand.ids], device=network.device)
    network.route([strand.owner])
    logits = network.model(ids[:, :-1], use_cache=False).logits[0, -strand.scored :]  # (scored, vocabulary)
    wanted = ids[0, -strand.scored :]
    logprobs = log_softmax(logits).gather(1, wanted[:, None])[:, 0]
    return float(logprobs.double().sum()), bool((logits.argmax(dim=-1) == wanted).all())


def agrees(fast: float, slow: float, dtype: torch.dtype) -> bool:
    """Say whether two log-likelihoods differ by rounding alone."""
    absolute, relative = TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16])
    return abs(fast - slow) <= absolute + relative * abs(slow)
