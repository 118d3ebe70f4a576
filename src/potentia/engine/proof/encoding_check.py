"""The check that training texts become the tokens that lm-evaluation-harness's rule gives, and end as they should.

A model has to be fine-tuned on the same tokens that it is scored on: a prompt that ends elsewhere, a lost end token or
another start would teach it something else. So a few examples of every task are tokenised again from their texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from potentia.engine.proof.constants import REPORT_HINT
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
    """Raise an error where an example has other tokens than the harness's rule gives, or a prompt of other length.

    ``end_id`` closes the examples that ask for an end token. A few examples are looked at.
    """
    rule = HarnessRule(encoder)
    for index in _choose_examples(examples):
        example = examples[index]
        expected = rule.encode_continuation(example.context, example.continuation)
        if expected is None:  # Potentia differs from the rule on purpose
            continue
        ending = [end_id] if example.end else []
        token_ids = encoded.token_ids[encoded.starts[index] : encoded.starts[index + 1]].tolist()
        expected_ids = [*expected.ids, *ending]
        prompt_length = int(encoded.prompt_lengths[index])
        expected_length = len(expected.ids) - expected.scored
        if token_ids != expected_ids or prompt_length != expected_length:
            raise TuningError(
                f"a training example became the tokens {token_ids} with a prompt of {prompt_length},"
                f" where lm-evaluation-harness's rule gives {expected_ids} with {expected_length}",
                hint=REPORT_HINT,
            )


def _choose_examples(examples: Sequence[Example]) -> list[int]:
    """Return the numbers of a few examples: of several lengths, with an end token and without, and without a prompt."""
    lengths = [len(example.context) + len(example.continuation) for example in examples]
    chosen = choose_prompts(lengths)
    by_length = sorted(range(len(examples)), key=lengths.__getitem__)
    with_end = [index for index in by_length if examples[index].end]
    without_end = [index for index in by_length if not examples[index].end]
    without_prompt = [index for index in by_length if not examples[index].context]
    return list(dict.fromkeys([*chosen, *with_end[-1:], *without_end[-1:], *without_prompt[-1:]]))
