"""What other methods say of the same copies: Min-K%++ (2404.02936), LLM-DI (2406.06443) and CoDeC.

Each gives one number of a model and a task, higher where it speaks for exposure. They read the same texts as the probe:
those it learns from, and validation texts.

- *Min-K%++*: the mean of the lowest fifth of the tokens' standardised log-likelihoods, over the texts.
- *LLM-DI*: several such measures of each text, weighted by a regression on one half of the texts (learned from or held
  out); −log10 p of a t test of the weighted sum on the other half.
- *CoDeC*: the share of texts that become less likely with another text of the task before them. A model that knows
  them gains nothing from an example.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import mannwhitneyu, ttest_ind

LOWEST_SHARE = 0.2  # of the tokens, for Min-K% and Min-K%++
MOST_TOKENS = 512
RIVALS = ("Min-K%++", "LLM-DI", "CoDeC")


@dataclass(frozen=True)
class TextMeasures:
    """What the tokens of one text say."""

    mean_logprob: float
    lowest_logprob: float  # Min-K%
    lowest_standardised: float  # Min-K%++
    logprob_per_zlib_byte: float

    def as_features(self) -> list[float]:
        """Return the measures as LLM-DI weights them."""
        return [
            self.mean_logprob,
            self.lowest_logprob,
            self.lowest_standardised,
            self.logprob_per_zlib_byte,
        ]


@torch.inference_mode()
def measure_text(model: Any, tokenizer: Any, text: str) -> TextMeasures:
    """Measure one text under a model."""
    logprobs, tokens = _read_logprobs(model, tokenizer, text)
    of_tokens = logprobs.gather(1, tokens[:, None])[:, 0]
    probabilities = logprobs.exp()
    expected = (probabilities * logprobs).sum(dim=1)
    variance = (probabilities * logprobs**2).sum(dim=1) - expected**2
    standardised = (of_tokens - expected) / variance.clamp(min=1e-6).sqrt()
    return TextMeasures(
        mean_logprob=float(of_tokens.mean()),
        lowest_logprob=_mean_of_lowest(of_tokens),
        lowest_standardised=_mean_of_lowest(standardised),
        logprob_per_zlib_byte=float(of_tokens.sum()) / len(zlib.compress(text.encode())),
    )


@torch.inference_mode()
def measure_logprob_after(model: Any, tokenizer: Any, before: str, text: str) -> float:
    """Return the mean log-likelihood of the tokens of a text that stands after another."""
    logprobs, tokens = _read_logprobs(model, tokenizer, f"{before}\n\n{text}")
    own_tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    return float(logprobs.gather(1, tokens[:, None])[-own_tokens:, 0].mean())


def _read_logprobs(model: Any, tokenizer: Any, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of all tokens at every place of a text but the first, and its tokens there."""
    device = next(model.parameters()).device
    encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=MOST_TOKENS)
    ids = encoded["input_ids"].to(device)
    logits = model(input_ids=ids).logits[0, :-1].float()
    return torch.log_softmax(logits, dim=-1), ids[0, 1:]


def _mean_of_lowest(values: torch.Tensor) -> float:
    """Return the mean of the lowest fifth of the values."""
    count = max(1, int(LOWEST_SHARE * len(values)))
    return float(values.sort().values[:count].mean())


def measure_rivals(
    model: Any, tokenizer: Any, learned: Sequence[str], held_out: Sequence[str]
) -> dict[str, float]:
    """Return what every rival says of a model on texts that the probe learns from, and on others like them."""
    of_learned = [measure_text(model, tokenizer, text) for text in learned]
    of_held_out = [measure_text(model, tokenizer, text) for text in held_out]
    is_less_likely = []
    for position, (text, alone) in enumerate(zip(learned, of_learned, strict=True)):
        after = measure_logprob_after(model, tokenizer, learned[position - 1], text)
        is_less_likely.append(after < alone.mean_logprob)
    return {
        "Min-K%++": float(np.mean([rival.lowest_standardised for rival in of_learned])),
        "LLM-DI": infer_dataset(of_learned, of_held_out),
        "CoDeC": float(np.mean(is_less_likely)),
    }


def infer_dataset(learned: Sequence[TextMeasures], held_out: Sequence[TextMeasures]) -> float:
    """Return −log10 p that texts learned from are no better known than held-out ones, by weighted measures."""
    features = np.array([text_scores.as_features() for text_scores in (*learned, *held_out)])
    spread = features.std(axis=0)
    features = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    is_learned = np.repeat([1.0, 0.0], [len(learned), len(held_out)])
    fits = np.arange(len(features)) % 2 == 0
    design = np.column_stack([features, np.ones(len(features))])
    weights, *_ = np.linalg.lstsq(design[fits], is_learned[fits], rcond=None)
    scores = design[~fits] @ weights
    of_tested = is_learned[~fits] > 0
    test = ttest_ind(scores[of_tested], scores[~of_tested], equal_var=False, alternative="greater")
    return -math.log10(max(float(test.pvalue), 1e-300))


def tabulate_rivals(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int, float]]:
    """Return, by rival and way, the cells and the area under the ROC curve beside clean cells of the same tasks.

    What a rival says is taken less the median of the clean cells of the task, so that tasks may differ.
    """
    rows = []
    for rival in RIVALS:
        clean_by_task: dict[str, list[float]] = {}
        for line in lines:
            if not line["seen"]:
                clean_by_task.setdefault(line["task"], []).append(line["rivals"][rival])
        values_by_way: dict[str, list[float]] = {}
        for line in lines:
            clean = clean_by_task.get(line["task"])
            if clean:
                centred = line["rivals"][rival] - float(np.median(clean))
                values_by_way.setdefault(line["seen"], []).append(centred)
        clean_values = values_by_way.pop("", [])
        for exposure, values in sorted(values_by_way.items()):
            area = math.nan
            if clean_values:
                statistic = mannwhitneyu(values, clean_values).statistic
                area = float(statistic / (len(values) * len(clean_values)))
            rows.append((rival, exposure, len(values), area))
    return rows
