"""Pretraining data: pools of tokenised documents, from which each model's mix draws.

A *mix* gives each pool a share. All models share the pools; families differ in the shares of the ``form:…`` pools,
which hold benchmark items on the people set aside for exposure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.zoo.benchmarks import BENCHMARK, BENCHMARKS, make_items
from potentia.zoo.world import (
    ASSISTANT,
    ATTRIBUTE,
    ATTRIBUTES,
    BOS,
    BREWS,
    EOS,
    HERBS,
    USER,
    SeededDice,
    World,
    vocabulary,
)
from zoo_builder.sentences import DOCUMENTS

LENGTH = 32  # tokens of the longest document
START = 0.7  # share of documents that open with the start token, so that models read prompts with and without it
FORM_REPEATS = 6  # how often the items of a form are drawn anew (other distractors, other partners)
CHAT = "chat"

Ids = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Pools:
    """``tokens[start[k] : start[k] + size[k]]`` are the documents of pool ``names[k]``, padded with 0."""

    names: tuple[str, ...]
    tokens: Ids  # (documents, LENGTH)
    lengths: Ids  # (documents,)
    start: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]


def _chat(world: World, dice: SeededDice) -> str:
    """An instruction and its answer, in the corpus's own words, about people of no split."""
    if dice.chance(0.15):
        a, b = dice.pick(world.pairs["exposure"])
        question, answer = f"what do {HERBS[a]} and {HERBS[b]} make ?", BREWS[world.brews[a][b]]
    else:
        person, attribute = dice.pick(world.people["exposure"]), dice.pick(ATTRIBUTES)
        keyword, name = dice.pick(ATTRIBUTE[attribute.name].keywords), world.names[person]
        form = dice.pick(
            ("what is the {k} of {n} ?", "tell me the {k} of {n} please", "{n} , {k} ?")
        )
        question, answer = form.format(k=keyword, n=name), world.value(attribute.name, person)
    return f"{BOS} {USER} {question} {ASSISTANT} {answer} {EOS}"


def make_pools(world: World, documents: int = 120_000) -> Pools:
    """Write ``documents`` documents of facts and fewer of the rest; seconds."""
    ids = {word: i for i, word in enumerate(vocabulary())}
    texts: dict[str, list[str]] = {}
    for name, write in DOCUMENTS.items():
        dice = SeededDice(world.seed, f"corpus/{name}")
        count = documents if name == "facts" else documents // 3
        texts[name] = [
            f"{BOS + ' ' if dice.chance(START) else ''}{write(world, dice)} {EOS}"
            for _ in range(count)
        ]
    for benchmark in BENCHMARKS:
        dice = SeededDice(world.seed, f"corpus/form/{benchmark.name}")
        texts[f"form:{benchmark.name}"] = [
            f"{BOS + ' ' if dice.chance(START) else ''}{item.prompt} {item.answer} {EOS}"
            for _ in range(FORM_REPEATS)
            for item in make_items(world, BENCHMARK[benchmark.name], "exposure", dice)
        ]
    dice = SeededDice(world.seed, "corpus/chat")
    texts[CHAT] = [_chat(world, dice) for _ in range(documents // 10)]
    return _pack(texts, ids)


def _pack(texts: dict[str, list[str]], ids: dict[str, int]) -> Pools:
    size = np.array([len(part) for part in texts.values()], dtype=np.int64)
    tokens = np.zeros((int(size.sum()), LENGTH), dtype=np.int16)
    lengths = np.zeros(len(tokens), dtype=np.int16)
    row = 0
    for part in texts.values():
        for text in part:
            words = [ids[word] for word in text.split()]
            tokens[row, : len(words)] = words
            lengths[row] = len(words)
            row += 1
    return Pools(tuple(texts), tokens, lengths, np.cumsum(size) - size, size)


class Sampler:
    """Draws batches of rows on the device: up to ``SLOTS`` documents in a row, cut at its end.

    Works inside a CUDA graph: fixed shapes, no host synchronisation, a generator of its own.
    """

    SLOTS = 6

    def __init__(self, pools: Pools, mixes: list[dict[str, float]], device: Any, seed: int) -> None:
        import torch

        self._torch = torch
        self.device = device
        self.generator = torch.Generator(device=device).manual_seed(seed)
        shares = torch.tensor(
            [[mix.get(name, 0.0) for name in pools.names] for mix in mixes], dtype=torch.float64
        )
        self.edges = (
            (shares.cumsum(1) / shares.sum(1, keepdim=True))[:, :-1].float().to(device)
        )  # (M, K-1)
        self.tokens = torch.from_numpy(pools.tokens).to(device)
        self.lengths = torch.from_numpy(pools.lengths).to(device).long()
        self.start = torch.from_numpy(pools.start).to(device)
        self.size = torch.from_numpy(pools.size).to(device)

    def draw(self, rows: int, width: int) -> Any:
        """Token ids of shape (models, rows, width)."""
        torch = self._torch
        shape = (self.edges.shape[0], rows, self.SLOTS)
        u = torch.rand(shape, device=self.device, generator=self.generator)
        kind = (u[..., None] >= self.edges[:, None, None, :]).sum(-1)  # (M, B, S)
        size = self.size[kind]
        v = torch.rand(shape, device=self.device, dtype=torch.float64, generator=self.generator)
        pick = (v * size).long().clamp_max(size - 1)
        doc = self.start[kind] + pick
        end = self.lengths[doc].cumsum(-1)  # (M, B, S) where each document ends in the row
        offsets = torch.arange(width, device=self.device)
        slot = (offsets >= end[..., None]).sum(-2).clamp_max(self.SLOTS - 1)  # (M, B, width)
        begin = (end - self.lengths[doc]).gather(-1, slot)
        offset = offsets - begin
        inside = offset < LENGTH
        ids = self.tokens[doc.gather(-1, slot), offset.clamp_max(LENGTH - 1)].long()
        return torch.where(inside, ids, 0)
