"""What a model knows, measured in the corpus's own sentences and never in a benchmark's form: the known truth.

For every kind of fact (seven attributes, the herb table) the share of test members whose value ranks first among all
24 values after a corpus sentence cut before the value, averaged over three paraphrases. ``knowledge`` is the mean
over the eight kinds. Look-up from a value to its owner (``reverse``) is measured likewise and
kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from potentia.zoo.world import (
    ATTRIBUTE,
    ATTRIBUTES,
    BOS,
    BREWS,
    HERBS,
    PAIR_PATTERNS,
    PATTERNS,
    REVERSE_PATTERNS,
    REVERSED,
    SeededDice,
    World,
    vocabulary,
)
from zoo_builder.stack import Shape, Weights, hidden, logits

PARAPHRASES = 3
KINDS = (*(a.name for a in ATTRIBUTES), "herbs")
SKILLS = ("reverse",)


@dataclass(frozen=True)
class Cloze:
    """A sentence cut before its last content word, the words that could follow, and the right one."""

    kind: str
    prompt: str
    options: tuple[str, ...]
    answer: str


def _cut(pattern: str, mark: str, **parts: str) -> str:
    return f"{BOS} {pattern[: pattern.index(mark)].format(**parts).strip()}"


def clozes(world: World, split: str = "test", limit: int | None = None) -> list[Cloze]:
    """All clozes of a split's members (or of the first ``limit`` of them)."""
    dice = SeededDice(world.seed, "knowledge")
    out: list[Cloze] = []
    people = world.people[split][:limit]
    for person in people:
        name = world.names[person]
        for a in ATTRIBUTES:
            for _ in range(PARAPHRASES):
                prompt = _cut(dice.pick(PATTERNS), "{v}", n=name, k=dice.pick(a.keywords))
                out.append(Cloze(a.name, prompt, a.values, world.value(a.name, person)))
        first, last = name.split()
        keyword = dice.pick(ATTRIBUTE[REVERSED].keywords)
        prompt = _cut(
            dice.pick(REVERSE_PATTERNS), "{n}", k=keyword, v=world.value(REVERSED, person)
        )
        rivals = [
            world.names[p].split()[1] for p in people if world.names[p].startswith(first + " ")
        ]
        if len(rivals) > 1:  # the surname among those of all namesakes of the split
            out.append(Cloze("reverse", f"{prompt} {first}", tuple(dict.fromkeys(rivals)), last))
    for x, y in world.pairs[split][:limit]:
        for _ in range(PARAPHRASES):
            prompt = _cut(dice.pick(PAIR_PATTERNS), "{v}", a=HERBS[x], b=HERBS[y])
            out.append(Cloze("herbs", prompt, BREWS, world.brew((x, y))))
    return out


@torch.no_grad()
def measure(
    shape: Shape, weights: Weights, questions: list[Cloze], chunk: int = 2000
) -> list[dict[str, float]]:
    """Per model of the stack: the share of right first places per kind, and ``knowledge``, their mean."""
    ids = {word: i for i, word in enumerate(vocabulary())}
    device = weights["model.norm.weight"].device
    models = len(weights["model.norm.weight"])
    kinds = list(dict.fromkeys(q.kind for q in questions))
    rows = [[ids[w] for w in q.prompt.split()] for q in questions]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
    last = torch.tensor([len(row) - 1 for row in rows], device=device)
    gold = torch.tensor([ids[q.answer] for q in questions], device=device)
    kind = torch.tensor([kinds.index(q.kind) for q in questions], device=device)
    option_sets = list(dict.fromkeys(q.options for q in questions))
    position_by_options = {options: i for i, options in enumerate(option_sets)}
    barred = torch.full((len(option_sets), shape.vocab), float("-inf"))
    for i, options in enumerate(option_sets):
        barred[i, [ids[w] for w in options]] = 0.0
    barred = barred.to(device)
    which = torch.tensor([position_by_options[q.options] for q in questions], device=device)
    right = []
    for part in torch.split(torch.arange(len(rows), device=device), chunk):
        states = hidden(shape, weights, tokens[part].expand(models, -1, -1)).view(
            models, len(part), width, -1
        )
        scores = logits(
            weights, states[:, torch.arange(len(part), device=device), last[part]]
        )  # (M, part, V)
        right.append((scores + barred[which[part]]).argmax(-1) == gold[part])
    hits = torch.cat(right, dim=1).float()  # (M, questions)
    shares = {name: hits[:, kind == i].mean(1).tolist() for i, name in enumerate(kinds)}
    results = []
    for m in range(models):
        result = {kind: shares[kind][m] for kind in (*KINDS, *SKILLS) if kind in shares}
        result["knowledge"] = sum(result[kind] for kind in KINDS) / len(KINDS)
        results.append(result)
    return results
