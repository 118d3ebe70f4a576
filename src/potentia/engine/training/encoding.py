"""Turn training texts into tokens, in the same way as the scorer tokenises its requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from potentia.engine.lane_spec import TokenisedExamples
from potentia.engine.proof.encoding_check import check_encoded_examples
from potentia.errors import InputError

if TYPE_CHECKING:
    from potentia.engine.models.tokenization import Encoder
    from potentia.values.requests import Example


def encode_examples(
    encoder: Encoder, examples: Sequence[Example], end_id: int | None = None
) -> TokenisedExamples:
    """Tokenise training texts exactly as the scorer does; ``end_id`` is appended to those that ask for an end token."""
    texts = [(example.context, example.continuation) for example in examples]
    ids_of_examples: list[list[int]] = []
    prompt_lengths: list[int] = []
    for example, token_pair in zip(examples, encoder.continuations(texts), strict=True):
        context_ids, continuation_ids = token_pair
        token_ids = [*context_ids, *continuation_ids]
        if example.end:
            if end_id is None:
                raise InputError(
                    "an example asks for the end-of-text token, but the tokenizer has none"
                )
            token_ids.append(end_id)
        ids_of_examples.append(token_ids)
        prompt_lengths.append(len(context_ids))
    start_id = encoder.bos.prefix_id if encoder.bos.required else None
    encoded = TokenisedExamples.from_lists(ids_of_examples, prompt_lengths, start_id)
    check_encoded_examples(encoder, examples, encoded, end_id)
    return encoded
