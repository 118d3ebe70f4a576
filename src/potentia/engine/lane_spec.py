"""What a lane learns, in numbers alone: its examples, its schedule, its adapter's shape and the order of its data."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError

if TYPE_CHECKING:
    from potentia.engine.models.tokenization import Encoder
    from potentia.values.requests import Example


IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenisedExamples:
    """Training texts as token ids, laid end to end, with the length of each text's prompt.

    ``start_id`` names the start-of-text token of a model that needs it: a text cut at the front keeps it.
    """

    flat: IntArray
    starts: IntArray  # (n + 1,)
    prompts: IntArray  # (n,)
    start_id: int | None = None

    @classmethod
    def from_lists(
        cls,
        ids: Iterable[Sequence[int]],
        prompts: Iterable[int] | None = None,
        start_id: int | None = None,
    ) -> TokenisedExamples:
        """Lay the ids of examples end to end; ``prompts`` are the leading tokens of each that are its prompt."""
        rows = [np.asarray(row, dtype=np.int64) for row in ids]
        if not rows:
            raise InputError("a lane needs at least one example")
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
            flat=np.concatenate(rows),
            starts=_starts_of_texts(lengths),
            prompts=prompt_lengths,
            start_id=start_id,
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> IntArray:
        """Tokens of each text, uncut."""
        return np.diff(self.starts)

    def cut_text(self, index: int, max_tokens: int) -> tuple[IntArray, int]:
        """Return one text of at most ``most`` ids and its prompt's length. Prompts lose the start, texts the end."""
        begin = int(self.starts[index])
        end = int(self.starts[index + 1])
        prompt = int(self.prompts[index])
        excess = end - begin - max_tokens
        if excess <= 0:
            return self.flat[begin:end], prompt
        if prompt <= 1:
            return self.flat[begin : begin + max_tokens], prompt
        if self.start_id is not None and self.flat[begin] == self.start_id:
            start_token = self.flat[begin : begin + 1]
            ids = np.concatenate([start_token, self.flat[end - max_tokens + 1 : end]])
        else:
            ids = self.flat[end - max_tokens : end]
        return ids, max(0, prompt - excess)

    def repeat_texts(self, times: int) -> TokenisedExamples:
        """Return every text so many times: an epoch of several passes."""
        return TokenisedExamples(
            flat=np.tile(self.flat, times),
            starts=_starts_of_texts(np.tile(self.lengths, times)),
            prompts=np.tile(self.prompts, times),
            start_id=self.start_id,
        )

    def fingerprint(self) -> str:
        """Return a hash of the ids, of where texts begin and of where prompts end."""
        digest = hashlib.sha256(f"{self.start_id}".encode())
        for array in (self.flat, self.starts, self.prompts):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def _starts_of_texts(lengths: IntArray) -> IntArray:
    """Return where each text begins when texts are laid end to end, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)])


def encode_examples(
    encoder: Encoder, examples: Sequence[Example], end_id: int | None = None
) -> TokenisedExamples:
    """Tokenise training texts exactly as the scorer does its requests; ``end_id`` closes those that ask for it."""
    from potentia.engine.proof.encoding_check import check_encoded_examples

    texts = [(example.context, example.continuation) for example in examples]
    ids_of_examples: list[list[int]] = []
    prompt_lengths: list[int] = []
    for example, token_pair in zip(examples, encoder.continuations(texts), strict=True):
        context_ids, continuation_ids = token_pair
        ids = [*context_ids, *continuation_ids]
        if example.end:
            if end_id is None:
                raise InputError(
                    "an example asks for the end-of-text token, but the tokenizer has none"
                )
            ids.append(end_id)
        ids_of_examples.append(ids)
        prompt_lengths.append(len(context_ids))
    start_id = encoder.bos.prefix_id if encoder.bos.required else None
    encoded = TokenisedExamples.from_lists(ids_of_examples, prompt_lengths, start_id)
    check_encoded_examples(encoder, examples, encoded, end_id)
    return encoded


@dataclass(frozen=True)
class LoraConfig:
    """A low-rank adapter's shape (train-before-test, appendix A.2: r 8, α 32, dropout 0.1).

    ``targets`` are endings of module names, as in PEFT; ``None`` means PEFT's default for the architecture, and
    every linear layer but the head where PEFT names none. ``"all-linear"`` as the only target asks for the latter.
    ``kind`` names an adapter method (``layers/adapter_methods.py``); its scale is that method's.
    """

    r: int = 8
    alpha: float = 32
    dropout: float = 0.1
    targets: tuple[str, ...] | None = None
    kind: str = "lora"

    def __post_init__(self) -> None:
        if self.r < 1:
            raise InputError(f"LoRA rank must be at least 1, not {self.r}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"LoRA dropout must lie in [0, 1), not {self.dropout}")


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to learn; the defaults are the train-before-test recipe, with Trainer's conventions.

    The learning rate rises linearly over ``warmup_steps`` from zero, then falls to ``floor`` (a share of the peak)
    along ``decay``. ``loss`` is taken over the whole text or over the completion alone; either way it is the mean
    over all target tokens of the effective batch. ``max_tokens`` cuts longer examples: a prompt loses its beginning,
    a document its end.
    """

    epochs: int = 5
    batch: int = 8
    learning_rate: float = 2e-5
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float = 1.0
    decay: Literal["linear", "cosine", "constant"] = "linear"
    warmup_steps: int = 0
    floor: float = 0.0
    loss: Literal["text", "completion"] = "text"
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or self.max_tokens < 2:
            raise InputError("epochs and batch must be at least 1 and max_tokens at least 2")
        if self.decay not in ("linear", "cosine", "constant"):
            raise InputError(f"unknown decay {self.decay!r}", hint="use linear, cosine or constant")
        if self.loss not in ("text", "completion"):
            raise InputError(f"unknown loss {self.loss!r}", hint="use text or completion")

    def steps_per_epoch(self, examples: int) -> int:
        """Count the updates of an epoch; its last batch may be smaller and is a step all the same."""
        return math.ceil(examples / self.batch)

    def total_steps(self, examples: int) -> int:
        """Count the updates of a lane with this many examples."""
        return self.epochs * self.steps_per_epoch(examples)

    def rate_share(self, step: int, total: int) -> float:
        """Return the share of the peak learning rate used by the update number ``step`` (from 0) of ``total``."""
        if step < self.warmup_steps:
            return step / max(1, self.warmup_steps)
        if self.decay == "constant":
            return 1.0
        decay_steps = max(1, total - self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / decay_steps)
        if self.decay == "linear":
            share = 1.0 - progress
        else:
            share = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.floor + (1.0 - self.floor) * share


@dataclass(frozen=True)
class TrainingRow:
    """One example in one step of one lane."""

    ids: IntArray
    first_target: int
    slot: int
    seed: int
    step: int
    batch_index: int
    weight: float  # 1 / target tokens of the lane's effective batch


@dataclass(frozen=True)
class LaneSpec:
    """One fine-tuning job: a key, its examples, its schedule, its adapter's shape and its seed."""

    key: str
    examples: TokenisedExamples
    schedule: Schedule = field(default_factory=Schedule)
    lora: LoraConfig = field(default_factory=LoraConfig)
    seed: int = 0

    @property
    def total_steps(self) -> int:
        """Updates of this lane, all epochs together."""
        return self.schedule.total_steps(len(self.examples))

    @property
    def steps_per_epoch(self) -> int:
        """Updates of one epoch."""
        return self.schedule.steps_per_epoch(len(self.examples))

    @property
    def longest_text(self) -> int:
        """Tokens of the longest example as trained on, where the model sets no limit."""
        return min(self.schedule.max_tokens, int(self.examples.lengths.max()))

    def count_cut_examples(self, limit: int | None = None) -> int:
        """Return how many examples are longer than what is read of them."""
        return int((self.examples.lengths > self.most_tokens(limit)).sum())

    def text_of_example(self, index: int, limit: int | None = None) -> tuple[IntArray, int]:
        """Return the ids of one example as trained on, and the first position that is a target."""
        ids, prompt = self.examples.cut_text(index, self.most_tokens(limit))
        if self.schedule.loss == "completion":
            return ids, max(1, prompt)
        return ids, 1

    def most_tokens(self, limit: int | None = None) -> int:
        """Return the tokens that an example may have, where the model reads at most ``limit``."""
        if not limit:
            return self.schedule.max_tokens
        return min(self.schedule.max_tokens, limit)

    def rows_of_step(self, step: int, limit: int | None = None, slot: int = 0) -> list[TrainingRow]:
        """Return the examples of the update number ``step`` (from 0), each weighted by all their target tokens."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        order = data_order(self.seed, epoch, len(self.examples))
        first = step_in_epoch * self.schedule.batch
        chosen = order[first : first + self.schedule.batch]
        texts = [self.text_of_example(int(index), limit) for index in chosen]
        target_tokens = sum(len(ids) - first_target for ids, first_target in texts)
        weight = 1.0 / max(1, target_tokens)
        return [
            TrainingRow(
                ids=ids,
                first_target=first_target,
                slot=slot,
                seed=self.seed,
                step=step,
                batch_index=batch_index,
                weight=weight,
            )
            for batch_index, (ids, first_target) in enumerate(texts)
        ]

    def tokens_by_step(self, limit: int | None = None) -> IntArray:
        """Return the tokens of every update."""
        lengths = np.minimum(self.examples.lengths, self.most_tokens(limit))
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
