"""What a lane is to learn: its examples, its schedule, its adapter's shape and the order of its data. Numbers only."""

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
        """From one list of ids per example and, if any, the number of leading prompt tokens of each."""
        rows = [np.asarray(row, dtype=np.int64) for row in ids]
        if not rows:
            raise InputError("a lane needs at least one example")
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        if lengths.min() < 2:
            raise InputError(
                f"example {int(lengths.argmin())} has fewer than two tokens: there is nothing to predict"
            )
        front = (
            np.zeros(len(rows), np.int64)
            if prompts is None
            else np.asarray(list(prompts), dtype=np.int64)
        )
        if front.shape != lengths.shape:
            raise InputError(f"{len(rows)} examples but {len(front)} prompt lengths")
        return cls(np.concatenate(rows), np.concatenate([[0], np.cumsum(lengths)]), front, start_id)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> IntArray:
        """Tokens of each text, uncut."""
        return np.diff(self.starts)

    def cut_text(self, index: int, most: int) -> tuple[IntArray, int]:
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

    def repeat_texts(self, times: int) -> TokenisedExamples:
        """Return every text so many times: an epoch of several passes."""
        lengths = np.tile(self.lengths, times)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return TokenisedExamples(
            np.tile(self.flat, times), starts, np.tile(self.prompts, times), self.start_id
        )

    def fingerprint(self) -> str:
        """Return a hash of the ids and of where they begin."""
        digest = hashlib.sha256(f"{self.start_id}".encode())
        for part in (self.flat, self.starts, self.prompts):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


def encode_examples(
    encoder: Encoder, examples: Sequence[Example], end_id: int | None = None
) -> TokenisedExamples:
    """Tokenise training texts exactly as the scorer does its requests; ``end_id`` closes those that ask for it."""
    pairs = encoder.continuations([(example.context, example.continuation) for example in examples])
    ids, prompts = [], []
    for example, (context, rest) in zip(examples, pairs, strict=True):
        if example.end and end_id is None:
            raise InputError(
                "an example asks for the end-of-text token, but the tokenizer has none"
            )
        ids.append([*context, *rest, *([end_id] if example.end and end_id is not None else [])])
        prompts.append(len(context))
    return TokenisedExamples.from_lists(
        ids, prompts, encoder.bos.prefix_id if encoder.bos.required else None
    )


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
        """All steps of a lane with this many examples."""
        return self.epochs * self.steps_per_epoch(examples)

    def rate_share(self, step: int, total: int) -> float:
        """Return the share of the peak learning rate used by the update number ``step`` (from 0) of ``total``."""
        if step < self.warmup_steps:
            return step / max(1, self.warmup_steps)
        if self.decay == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / max(1, total - self.warmup_steps))
        left = 1.0 - done if self.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.floor + (1.0 - self.floor) * left


@dataclass(frozen=True)
class TrainingRow:
    """One example in one step of one lane."""

    ids: IntArray
    first_target: int
    slot: int
    seed: int
    step: int
    place: int
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

    def text_of_example(self, index: int, limit: int | None = None) -> tuple[IntArray, int]:
        """Return the ids of one example as trained on, and the first position that is a target."""
        most = min(self.schedule.max_tokens, limit) if limit else self.schedule.max_tokens
        ids, prompt = self.examples.cut_text(index, most)
        return ids, max(1, prompt) if self.schedule.loss == "completion" else 1

    def rows_of_step(self, step: int, limit: int | None = None, slot: int = 0) -> list[TrainingRow]:
        """Return the examples of the update number ``step`` (from 0), each weighted by all their target tokens."""
        epoch, at = divmod(step, self.steps_per_epoch)
        batch = self.schedule.batch
        chosen = data_order(self.seed, epoch, len(self.examples))[at * batch : (at + 1) * batch]
        texts = [self.text_of_example(int(i), limit) for i in chosen]
        weight = 1.0 / max(1, sum(len(ids) - first for ids, first in texts))
        return [
            TrainingRow(ids, first, slot, self.seed, step, place, weight)
            for place, (ids, first) in enumerate(texts)
        ]

    def tokens_by_step(self, limit: int | None = None) -> IntArray:
        """Return the tokens of every update."""
        most = min(self.schedule.max_tokens, limit) if limit else self.schedule.max_tokens
        lengths, count = np.minimum(self.examples.lengths, most), len(self.examples)
        starts = np.arange(0, count, self.schedule.batch)
        orders = (data_order(self.seed, epoch, count) for epoch in range(self.schedule.epochs))
        return np.concatenate([np.add.reduceat(lengths[order], starts) for order in orders])

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
    stream = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([seed & 0xFFFFFFFF, epoch]))
    )
    return stream.permutation(examples).astype(np.int64)
