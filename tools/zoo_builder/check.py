"""The recipe's own check: direct and train-before-test scores of every model on every benchmark, in one batched pass.

This is a miniature of the protocol on stacks (all models × tasks × learning rates at once, for an accelerator), used
while designing the zoo and after a rebuild; the tool's own engine is what ``potentia demo`` runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from potentia.zoo.benchmarks import BENCHMARKS, Item, ZooBenchmark, make_items
from potentia.zoo.world import BOS, EOS, SPLITS, World, vocabulary
from zoo_builder.adam import Adam
from zoo_builder.stack import Shape, Weights, hidden, logits

WIDTH = 32
RANK, ALPHA = 8, 16.0
RATES = (1e-3, 3e-3)
BATCH, EPOCHS = 8, 5
EXAMPLES = 500
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Rows:
    """Tokenised items: ``mask`` marks the tokens of the answer; the gold option comes as ``gold``."""

    kind: str
    tokens: Tensor  # (docs, options, WIDTH)
    mask: Tensor  # (docs, options, WIDTH) bool
    gold: Tensor  # (docs,)


def encode(benchmark: ZooBenchmark, part: list[Item], device: str) -> Rows:
    """Rows of all options of the items (of the answer alone where nothing is chosen)."""
    ids = {word: i for i, word in enumerate(vocabulary())}
    options = max(1, len(part[0].options))
    tokens = torch.zeros(len(part), options, WIDTH, dtype=torch.long)
    mask = torch.zeros(len(part), options, WIDTH, dtype=torch.bool)
    gold = torch.zeros(len(part), dtype=torch.long)
    for i, item in enumerate(part):
        choices = item.options or (
            item.answer + (f" {EOS}" if benchmark.kind == "generate" else ""),
        )
        gold[i] = choices.index(item.answer) if item.options else 0
        for j, choice in enumerate(choices):
            prompt = [ids[w] for w in (BOS, *item.prompt.split())]
            answer = [ids[w] for w in choice.split()]
            tokens[i, j, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            mask[i, j, len(prompt) : len(prompt) + len(answer)] = True
    return Rows(benchmark.kind, tokens.to(device), mask.to(device), gold.to(device))


@torch.no_grad()
def score(shape: Shape, weights: Weights, rows: Rows, chunk: int = 250) -> Tensor:
    """Mean score per model of the stack: accuracy, exact match, or minus the loss per token of a text."""
    models = len(weights["model.norm.weight"])
    end = vocabulary().index(EOS)
    stop = vocabulary().index(".")
    totals = torch.zeros(models, device=rows.tokens.device)
    for start in range(0, len(rows.gold), chunk):
        tokens, mask = rows.tokens[start : start + chunk], rows.mask[start : start + chunk]
        docs, options, width = tokens.shape
        flat_tokens, flat_mask = tokens.view(-1, width), mask.view(-1, width)
        states = hidden(shape, weights, flat_tokens.expand(models, -1, -1)).view(
            models, -1, width, shape.width
        )
        row, positions = flat_mask.nonzero(as_tuple=True)
        out = logits(weights, states[:, row, positions - 1])  # (M, answer tokens, V)
        target = flat_tokens[row, positions]
        if rows.kind == "generate":
            guess = out.argmax(-1)
            ok = (guess == target) | ((target == end) & (guess == stop))
            wrong = torch.zeros(models, docs, device=tokens.device).index_add_(
                1, row, (~ok).float()
            )
            totals += (wrong == 0).sum(1)
            continue
        right = out.log_softmax(-1).gather(-1, target.expand(models, -1)[..., None])[..., 0]
        sums = torch.zeros(models, docs * options, device=tokens.device).index_add_(1, row, right)
        if rows.kind == "text":
            totals += (sums / flat_mask.sum(-1)).sum(1)
        else:
            guess = sums.view(models, docs, options).argmax(-1)
            totals += (guess == rows.gold[start : start + chunk]).sum(1)
    return totals / len(rows.gold)


class Lanes:
    """All low-rank adapters of one stack: model × task × rate, held as one flat tensor and merged for each pass."""

    def __init__(
        self, shape: Shape, weights: Weights, tasks: int, rates: tuple[float, ...]
    ) -> None:
        device = weights["model.norm.weight"].device
        models = len(weights["model.norm.weight"])
        grid = torch.cartesian_prod(
            torch.arange(tasks), torch.arange(models), torch.arange(len(rates))
        ).to(device)
        self.task, self.model, self.lr = (
            grid[:, 0],
            grid[:, 1],
            torch.tensor(rates, device=device)[grid[:, 2]],
        )
        self.base = {name: weight[self.model] for name, weight in weights.items()}
        self.slots = [
            (n, s) for n, s in shape.slots() if any(f"{part}.weight" in n for part in LINEAR)
        ]
        self.sizes = [size for _, (out, inn) in self.slots for size in (RANK * inn, out * RANK)]
        generator = torch.Generator().manual_seed(0)
        parts = []
        for _, (out, inn) in self.slots:
            parts += [
                (torch.rand(RANK * inn, generator=generator) * 2 - 1) / inn**0.5,
                torch.zeros(out * RANK),
            ]
        self.flat = torch.cat(parts).to(device).repeat(len(grid), 1)

    def merged(self, flat: Tensor, lanes: Tensor | None = None) -> Weights:
        """Base weights plus the scaled low-rank products, of all or some lanes."""
        if lanes is not None:
            flat = flat[lanes]
        parts = iter(torch.split(flat, self.sizes, dim=1))
        out = {name: w if lanes is None else w[lanes] for name, w in self.base.items()}
        for name, (rows, columns) in self.slots:
            a, b = next(parts).view(-1, RANK, columns), next(parts).view(-1, rows, RANK)
            out[name] = torch.baddbmm(out[name], b, a, alpha=ALPHA / RANK)
        return out


@dataclass
class Checked:
    """Scores (models, tasks) of one stack, and the chosen rate and epoch of every tuned cell."""

    direct: Tensor
    tuned: Tensor
    rate: Tensor
    epoch: Tensor


def prepare(world: World, device: str) -> list[dict[str, Rows]]:
    """All benchmarks' splits as rows."""
    return [{s: encode(b, make_items(world, b, s), device) for s in SPLITS} for b in BENCHMARKS]


def check_stack(
    shape: Shape,
    weights: Weights,
    data: list[dict[str, Rows]],
    examples: int = EXAMPLES,
    epochs: int = EPOCHS,
) -> Checked:
    """Score all benchmarks directly and after tuning on each one's train split; selection on validation only."""
    device = str(weights["model.norm.weight"].device)
    models, tasks = len(weights["model.norm.weight"]), len(data)
    direct = torch.stack([score(shape, weights, d["test"]) for d in data], dim=1)
    lanes = Lanes(shape, weights, tasks, RATES)
    flat = lanes.flat.requires_grad_()
    adam = Adam(flat.detach())
    index = torch.arange(examples, device=device)
    tokens = torch.stack(
        [d["train"].tokens[index, d["train"].gold[:examples]] for d in data]
    )  # (tasks, examples, WIDTH)
    mask = torch.stack([d["train"].mask[index, d["train"].gold[:examples]] for d in data])
    best = torch.full((len(lanes.task),), -1e9, device=device)
    best_flat, best_epoch = flat.detach().clone(), torch.zeros(len(lanes.task), device=device)
    steps, done = epochs * (examples // BATCH), 0
    generator = torch.Generator().manual_seed(1)
    for epoch in range(epochs + 1):
        if epoch:
            order = torch.randperm(examples, generator=generator).to(device)
            for start in range(0, examples - BATCH + 1, BATCH):
                chosen = order[start : start + BATCH]
                batch, target_mask = tokens[:, chosen][lanes.task], mask[:, chosen][lanes.task]
                merged = lanes.merged(flat)
                out = logits(merged, hidden(shape, merged, batch))[:, :-1]
                target = torch.where(target_mask, batch, -100).flatten(1)[:, 1:]
                nll = functional.cross_entropy(
                    out.flatten(0, 1), target.flatten(), reduction="none"
                ).view(target.shape)
                loss = nll.sum(1) / (target >= 0).sum(1)
                (grad,) = torch.autograd.grad(loss.sum(), [flat])
                done += 1
                ramp = min(1.0, done / (0.1 * steps)) * min(1.0, (steps - done + 1) / (0.9 * steps))
                adam.update(flat, grad, lanes.lr * ramp)
        value = torch.empty_like(best)
        for t, d in enumerate(data):
            lanes_of_task = (lanes.task == t).nonzero()[:, 0]
            value[lanes_of_task] = score(
                shape, lanes.merged(flat.detach(), lanes_of_task), d["validation"]
            )
        better = value > best
        best = torch.where(better, value, best)
        best_epoch = torch.where(better, float(epoch), best_epoch)
        best_flat = torch.where(better[:, None], flat.detach(), best_flat)
    test = torch.empty_like(best)
    for t, d in enumerate(data):
        lanes_of_task = (lanes.task == t).nonzero()[:, 0]
        test[lanes_of_task] = score(shape, lanes.merged(best_flat, lanes_of_task), d["test"])
    grid = (tasks, models, len(RATES))
    winner = best.view(grid).argmax(-1, keepdim=True)

    def chosen_of(x: Tensor) -> Tensor:
        return x.view(grid).gather(-1, winner)[..., 0].T

    return Checked(direct, chosen_of(test), chosen_of(lanes.lr), chosen_of(best_epoch))
