"""Training texts become the tokens of lm-evaluation-harness's rule, closed by the end token where that is asked for.

What a model is fine-tuned on is what it is scored on: a prompt that ends elsewhere, a lost end token or another start
would teach it something else. A few examples of every task are tokenised again from their texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from potentia.engine.proof.plan_check import REPORT
from potentia.engine.proof.request_check import HarnessRule, choose_prompts
from potentia.errors import TuningError

if TYPE_CHECKING:
    from potentia.engine.lane_spec import TokenisedExamples
    from potentia.engine.models.tokenization import Encoder
    from potentia.values.requests import Example


def check_encoded_examples(
    encoder: Encoder,
    examples: Sequence[Example],
    encoded: TokenisedExamples,
    end_id: int | None,
) -> None:
    """Raise an error where an example did not become the tokens of the harness's rule, or ends elsewhere."""
    rule = HarnessRule(encoder)
    for index in _choose_examples(examples):
        example = examples[index]
        expected = rule.encode_continuation(example.context, example.continuation)
        if expected is None:
            continue
        ending = [end_id] if example.end else []
        ids = encoded.flat[encoded.starts[index] : encoded.starts[index + 1]].tolist()
        prompt = int(encoded.prompts[index])
        expected_prompt = len(expected.ids) - expected.scored
        if ids != [*expected.ids, *ending] or prompt != expected_prompt:
            raise TuningError(
                f"a training example became the tokens {ids} with a prompt of {prompt}, where lm-evaluation-harness's "
                f"rule gives {[*expected.ids, *ending]} with {expected_prompt}",
                hint=REPORT,
            )


def _choose_examples(examples: Sequence[Example]) -> list[int]:
    """Choose long, short and middle examples, and the longest ones with an end, without one, and without a prompt."""
    lengths = [len(example.context) + len(example.continuation) for example in examples]
    chosen = choose_prompts(lengths)
    by_length = sorted(range(len(examples)), key=lengths.__getitem__)
    with_end = [index for index in by_length if examples[index].end]
    without_end = [index for index in by_length if not examples[index].end]
    without_prompt = [index for index in by_length if not examples[index].context]
    return list(dict.fromkeys([*chosen, *with_end[-1:], *without_end[-1:], *without_prompt[-1:]]))
