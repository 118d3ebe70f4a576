"""Training texts as token ids: cut where the scorer cuts, laid end to end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError

if TYPE_CHECKING:
    from potentia.engine.tokens import Encoder
    from potentia.values.requests import Example

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenisedExamples:
    """Training texts as token ids, laid end to end, with the length of each text's prompt.

    ``start_id`` names the start-of-text token of a model that needs it: a text cut at the front keeps it.
    """

    flat: Ints
    starts: Ints  # (n + 1,)
    prompts: Ints  # (n,)
    start_id: int | None = None

    @classmethod
    def of(
        cls, ids: Iterable[Sequence[int]], prompts: Iterable[int] | None = None, start_id: int | None = None
    ) -> TokenisedExamples:
        """From one list of ids per example and, if any, the number of leading prompt tokens of each."""
        rows = [np.asarray(row, dtype=np.int64) for row in ids]
        if not rows:
            raise InputError("a lane needs at least one example")
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        if lengths.min() < 2:
            raise InputError(f"example {int(lengths.argmin())} has fewer than two tokens: there is nothing to predict")
        front = np.zeros(len(rows), np.int64) if prompts is None else np.asarray(list(prompts), dtype=np.int64)
        if front.shape != lengths.shape:
            raise InputError(f"{len(rows)} examples but {len(front)} prompt lengths")
        return cls(np.concatenate(rows), np.concatenate([[0], np.cumsum(lengths)]), front, start_id)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Ints:
        """Tokens of each text, uncut."""
        return np.diff(self.starts)

    def cut(self, index: int, most: int) -> tuple[Ints, int]:
        """Return one text of at most ``most`` ids and its prompt's length. Prompts lose the start, texts the end."""
        begin, end = int(self.starts[index]), int(self.starts[index + 1])
        prompt = int(self.prompts[index])
        over = end - begin - most
        if over <= 0:
            return self.flat[begin:end], prompt
        if prompt <= 1:
            return self.flat[begin : begin + most], prompt
        if self.start_id is not None and self.flat[begin] == self.start_id:
            kept = np.concatenate([self.flat[begin : begin + 1], self.flat[end - most + 1 : end]])
        else:
            kept = self.flat[end - most : end]
        return kept, max(0, prompt - over)

    def repeated(self, times: int) -> TokenisedExamples:
        """Return every text so many times: an epoch of several passes."""
        lengths = np.tile(self.lengths, times)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return TokenisedExamples(np.tile(self.flat, times), starts, np.tile(self.prompts, times), self.start_id)

    def fingerprint(self) -> str:
        """Return a hash of the ids and of where they begin."""
        digest = hashlib.sha256(f"{self.start_id}".encode())
        for part in (self.flat, self.starts, self.prompts):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


def encode_examples(encoder: Encoder, examples: Sequence[Example], end_id: int | None = None) -> TokenisedExamples:
    """Tokenise training texts exactly as the scorer does its requests; ``end_id`` closes those that ask for it."""
    pairs = encoder.continuations([(example.context, example.continuation) for example in examples])
    ids, prompts = [], []
    for example, (context, rest) in zip(examples, pairs, strict=True):
        if example.end and end_id is None:
            raise InputError("an example asks for the end-of-text token, but the tokenizer has none")
        ids.append([*context, *rest, *([end_id] if example.end and end_id is not None else [])])
        prompts.append(len(context))
    return TokenisedExamples.of(ids, prompts, encoder.bos.prefix_id if encoder.bos.required else None)
