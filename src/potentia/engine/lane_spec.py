"""What a lane learns, in numbers alone: its examples, its schedule, its adapter's shape and the order of its data.

A lane is one fine-tuning of a model; many lanes of the model train beside each other (``training.lanes``). A
:class:`LaneSpec` describes a lane, and cuts its examples into the :class:`TrainingRow` objects of each update.
Everywhere here ``limit`` is the longest text that the model reads, in tokens; None where the model names none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError
from potentia.values.recipe import LoraConfig, Schedule

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenisedExamples:
    """Training texts as token ids, laid end to end in one array, with the length of each text's prompt.

    ``start_id`` is the start-of-text token of a model that needs one: a text that is cut at the front keeps it.
    """

    token_ids: IntArray
    starts: IntArray  # (n + 1,): where each text begins, and where the last one ends
    prompt_lengths: IntArray  # (n,): how many tokens at a text's beginning are its prompt
    start_id: int | None = None

    @classmethod
    def from_lists(
        cls,
        token_ids: Iterable[Sequence[int]],
        prompts: Iterable[int] | None = None,
        start_id: int | None = None,
    ) -> TokenisedExamples:
        """Lay texts end to end; ``prompts`` counts the tokens of each text's prompt, zero by default."""
        rows = [np.asarray(row, dtype=np.int64) for row in token_ids]
        if not rows:
            raise InputError("a fine-tuning needs at least one example")
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        if lengths.min() < 2:
            raise InputError(
                f"example {int(lengths.argmin())} has fewer than two tokens: there is nothing to predict"
            )
        if prompts is None:
            prompt_lengths = np.zeros(len(rows), np.int64)
        else:
            prompt_lengths = np.asarray(list(prompts), dtype=np.int64)
        if prompt_lengths.shape != lengths.shape:
            raise InputError(f"{len(rows)} examples but {len(prompt_lengths)} prompt lengths")
        return cls(
            token_ids=np.concatenate(rows),
            starts=_starts_of_texts(lengths),
            prompt_lengths=prompt_lengths,
            start_id=start_id,
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> IntArray:
        """The number of tokens of each text, before any cut."""
        return np.diff(self.starts)

    def cut_text(self, index: int, max_tokens: int) -> tuple[IntArray, int]:
        """Return one text, cut to ``max_tokens`` tokens, and the length of what is left of its prompt.

        A text with a prompt loses the beginning of the prompt, since what is learned comes after it; a text without
        one loses its end.
        """
        begin = int(self.starts[index])
        end = int(self.starts[index + 1])
        prompt_length = int(self.prompt_lengths[index])
        excess = end - begin - max_tokens
        if excess <= 0:
            return self.token_ids[begin:end], prompt_length
        has_prompt = prompt_length > 1  # the first token, which is often the start token, is none
        if not has_prompt:
            return self.token_ids[begin : begin + max_tokens], prompt_length
        if self.start_id is not None and self.token_ids[begin] == self.start_id:
            start_token = self.token_ids[begin : begin + 1]
            text_end = self.token_ids[end - max_tokens + 1 : end]
            text_ids = np.concatenate([start_token, text_end])
        else:
            text_ids = self.token_ids[end - max_tokens : end]
        return text_ids, max(0, prompt_length - excess)

    def repeat(self, times: int) -> TokenisedExamples:
        """Return all texts ``times`` times over, so that one epoch reads each of them so often."""
        return TokenisedExamples(
            token_ids=np.tile(self.token_ids, times),
            starts=_starts_of_texts(np.tile(self.lengths, times)),
            prompt_lengths=np.tile(self.prompt_lengths, times),
            start_id=self.start_id,
        )

    def fingerprint(self) -> str:
        """Return a hash of the token ids, of where texts begin and of where prompts end."""
        digest = hashlib.sha256(f"{self.start_id}".encode())
        for array in (self.token_ids, self.starts, self.prompt_lengths):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def _starts_of_texts(lengths: IntArray) -> IntArray:
    """Return where each text begins when texts are laid end to end, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)])


@dataclass(frozen=True)
class TrainingRow:
    """One example in one update of one lane.

    Every token from ``first_target`` on is a target: its loss counts. Lane seed, step and batch index are what the
    row's dropout is drawn from.
    """

    ids: IntArray
    first_target: int
    slot: int  # where the lane's adapter lies
    seed: int
    step: int
    batch_index: int
    weight: float  # of each target: 1 / all targets of the update, which may take several passes


@dataclass(frozen=True)
class LaneSpec:
    """A lane, one fine-tuning, in numbers: a key, its examples, its schedule, its adapter's shape and its seed."""

    key: str
    examples: TokenisedExamples
    schedule: Schedule
    lora: LoraConfig
    seed: int = 0

    @property
    def total_steps(self) -> int:
        """The number of updates of this lane, all epochs together."""
        return self.schedule.total_steps(len(self.examples))

    @property
    def steps_per_epoch(self) -> int:
        """The number of updates of one epoch."""
        return self.schedule.steps_per_epoch(len(self.examples))

    @property
    def longest_text(self) -> int:
        """The tokens of the longest example as it is trained on, unless the model reads fewer."""
        return min(self.schedule.max_tokens, int(self.examples.lengths.max()))

    def count_cut_examples(self, limit: int | None = None) -> int:
        """Return how many examples are too long and lose a part."""
        return int((self.examples.lengths > self.max_text_length(limit)).sum())

    def text_of_example(self, index: int, limit: int | None = None) -> tuple[IntArray, int]:
        """Return the tokens of one example as it is trained on, and the position of the first target.

        The first token is never a target: nothing comes before it that could predict it.
        """
        token_ids, prompt_length = self.examples.cut_text(index, self.max_text_length(limit))
        if self.schedule.loss == "completion":
            return token_ids, max(1, prompt_length)
        return token_ids, 1

    def max_text_length(self, limit: int | None = None) -> int:
        """Return the number of tokens that examples are cut to."""
        if not limit:
            return self.schedule.max_tokens
        return min(self.schedule.max_tokens, limit)

    def rows_of_step(self, step: int, limit: int | None = None, slot: int = 0) -> list[TrainingRow]:
        """Return the examples of the update number ``step`` (from 0): their targets share one loss, a mean."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        order = data_order(self.seed, epoch, len(self.examples))
        first = step_in_epoch * self.schedule.batch
        batch = order[first : first + self.schedule.batch]
        texts = [self.text_of_example(int(index), limit) for index in batch]
        target_count = sum(len(token_ids) - first_target for token_ids, first_target in texts)
        weight = 1.0 / max(1, target_count)
        return [
            TrainingRow(
                ids=token_ids,
                first_target=first_target,
                slot=slot,
                seed=self.seed,
                step=step,
                batch_index=batch_index,
                weight=weight,
            )
            for batch_index, (token_ids, first_target) in enumerate(texts)
        ]

    def tokens_by_step(self, limit: int | None = None) -> IntArray:
        """Return the number of tokens of every update, prompts included."""
        lengths = np.minimum(self.examples.lengths, self.max_text_length(limit))
        example_count = len(self.examples)
        batch_starts = np.arange(0, example_count, self.schedule.batch)
        tokens_by_epoch = []
        for epoch in range(self.schedule.epochs):
            order = data_order(self.seed, epoch, example_count)
            tokens_by_epoch.append(np.add.reduceat(lengths[order], batch_starts))
        return np.concatenate(tokens_by_epoch)

    def fingerprint(self) -> str:
        """Return a hash of everything that can change this lane's adapter, the model aside."""
        facts = {
            "key": self.key,
            "schedule": asdict(self.schedule),
            "lora": asdict(self.lora),
            "seed": self.seed,
        }
        text = json.dumps(facts, sort_keys=True) + self.examples.fingerprint()
        return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=128)
def data_order(seed: int, epoch: int, examples: int) -> IntArray:
    """Return the order in which a lane reads its examples in one epoch (from 0): the same for every model."""
    seeds = np.random.SeedSequence([seed & 0xFFFFFFFF, epoch])
    stream = np.random.Generator(np.random.PCG64(seeds))
    return stream.permutation(examples).astype(np.int64)
