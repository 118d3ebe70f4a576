"""Rebuild every zoo model from nothing: ``python -m zoo_builder.build --out DIR --device cuda``.

Writes ``DIR/<model>/{config.json, model.safetensors}``, ``DIR/facts.csv`` and, with ``--check``, ``DIR/check.json``:
direct and train-before-test scores of every base model on every benchmark.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from potentia.zoo.benchmarks import BENCHMARKS
from potentia.zoo.world import World, make_world, vocabulary
from zoo_builder import recipe
from zoo_builder.agreement import summary
from zoo_builder.check import check_stack, prepare
from zoo_builder.corpus import CHAT, Pools, make_pools
from zoo_builder.knowledge import KINDS, SKILLS, clozes, measure
from zoo_builder.pretrain import Run, StackTraining, pretrain
from zoo_builder.stack import Shape, unflatten

log = logging.getLogger("zoo_builder.build")
FACTS = (
    "name",
    "family",
    "kind",
    "base_model",
    "parameters",
    "tokens",
    "flops",
    "date",
    "width",
    "layers",
    "seed",
    "mix",
    "steps",
    "exposure",
    "knowledge",
    *KINDS,
    *SKILLS,
)


@dataclass
class Built:
    """One finished model: its facts and its weights, rounded to half precision."""

    facts: dict[str, Any]
    shape: Shape
    flat: Tensor  # (parameters,) float16


def _shape(width: int) -> Shape:
    return Shape(recipe.LAYERS, width, 2 * width, recipe.HEADS[width], len(vocabulary()))


def _facts(plan: recipe.Plan, name: str, kind: str, base: str, steps: int) -> dict[str, Any]:
    tokens = steps * recipe.STEP_TOKENS
    parameters = recipe.parameters(plan.width)
    mix = plan.name.removeprefix("lab-mix-") if plan.name.startswith("lab-mix-") else "ordinary"
    return {
        "name": name,
        "family": plan.family,
        "kind": kind,
        "base_model": base,
        "parameters": parameters,
        "tokens": tokens,
        "flops": 6 * parameters * tokens,
        "date": plan.date,
        "width": plan.width,
        "layers": recipe.LAYERS,
        "seed": plan.seed,
        "mix": mix,
        "steps": steps,
        "exposure": " ".join(plan.forms),
    }


def train_all(pools: Pools, full: int, device: str, widths: Sequence[int]) -> list[Built]:
    """Pretrain every plan, then give the chat family its instruction tuning."""
    plans = [plan for plan in recipe.plans(full) if plan.width in widths]
    runs = {
        p.name: Run(p.name, dict(p.mix), p.steps, p.seed, recipe.RATES[p.width], p.keep)
        for p in plans
    }
    stacks = []
    for width in widths:
        for kind in ("base", "lab"):
            if chosen := [runs[p.name] for p in plans if p.width == width and p.kind == kind]:
                stacks.append(StackTraining(_shape(width), chosen, pools, device))
    pretrain(stacks, report=max(1, full // 5))
    chats = instruct(
        {p: runs[p.name].kept[p.steps] for p in plans if p.family == recipe.CHAT_FAMILY},
        pools,
        device,
    )
    built = []
    for plan in plans:
        shape = _shape(plan.width)
        for step, flat in sorted(runs[plan.name].kept.items()):
            last = step == plan.steps
            name = plan.name if last else f"{plan.name}-step{step:04d}"
            kind = plan.kind if last else "checkpoint"
            built.append(
                Built(_facts(plan, name, kind, "" if last else plan.name, step), shape, flat.half())
            )
        if plan.name in chats:
            facts = _facts(
                plan, f"{plan.name}-chat", "instruct", plan.name, plan.steps + recipe.CHAT_STEPS
            )
            built.append(Built(facts, shape, chats[plan.name].half()))
    return built


def instruct(bases: dict[recipe.Plan, Tensor], pools: Pools, device: str) -> dict[str, Tensor]:
    """Go on from base models with instructions in most of the mix, their answers as targets; base name → weights."""
    runs = {}
    for plan, begin in bases.items():
        mix = {name: part * (1 - recipe.CHAT_SHARE) for name, part in plan.mix} | {
            CHAT: recipe.CHAT_SHARE
        }
        runs[plan] = Run(
            plan.name, mix, recipe.CHAT_STEPS, plan.seed + 50, recipe.CHAT_RATE, begin=begin
        )
    pretrain(
        [StackTraining(_shape(plan.width), [run], pools, device) for plan, run in runs.items()]
    )
    return {plan.name: run.kept[run.steps] for plan, run in runs.items()}


def stack_of(models: list[Built], device: str) -> tuple[Shape, dict[str, Tensor]]:
    """The weights of models of one shape, stacked again as they will be shipped."""
    shape = models[0].shape
    return shape, unflatten(shape, torch.stack([m.flat for m in models]).float().to(device))


def by_shape(models: list[Built]) -> list[list[Built]]:
    """Group models by shape."""
    groups: dict[Shape, list[Built]] = {}
    for model in models:
        groups.setdefault(model.shape, []).append(model)
    return list(groups.values())


def save(models: list[Built], out: Path) -> None:
    """Write one folder per model, and the facts."""
    from safetensors.torch import save_file

    for model in models:
        folder = out / model.facts["name"]
        folder.mkdir(parents=True, exist_ok=True)
        weights = {
            n: w[0].contiguous().cpu() for n, w in unflatten(model.shape, model.flat[None]).items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(model.shape.config(), indent=1) + "\n")
    with (out / "facts.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FACTS, lineterminator="\n")
        writer.writeheader()
        for model in models:
            writer.writerow(
                {k: f"{v:.4f}" if isinstance(v, float) else v for k, v in model.facts.items()}
            )


def check_all(
    models: list[Built], world: World, device: str, examples: int, epochs: int
) -> dict[str, Any]:
    """Direct and tuned scores of all models, with the summary over the base models."""
    rows: dict[str, dict[str, list[float]]] = {}
    data = prepare(world, device)
    for group in by_shape(models):
        shape, weights = stack_of(group, device)
        checked = check_stack(shape, weights, data, examples, epochs)
        for i, model in enumerate(group):
            rows[model.facts["name"]] = {
                part: [round(x, 5) for x in getattr(checked, part)[i].tolist()]
                for part in ("direct", "tuned", "rate", "epoch")
            }
    facts = {m.facts["name"]: {k: m.facts[k] for k in FACTS} for m in models}
    return {"tasks": [b.name for b in BENCHMARKS], "rows": rows, "facts": facts}


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, measure, save, and check if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--check", action="store_true", help="also score the base models directly and after tuning"
    )
    parser.add_argument(
        "--full", type=int, default=recipe.FULL, help="steps of the largest budget (for trials)"
    )
    parser.add_argument(
        "--documents", type=int, default=120_000, help="fact documents in the corpus (for trials)"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=list(recipe.WIDTHS))
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)8d ms  %(message)s")
    torch.backends.cuda.matmul.allow_tf32 = True
    start = time.monotonic()
    world = make_world()
    pools = make_pools(world, options.documents)
    log.info("corpus of %d documents", len(pools.tokens))
    models = train_all(pools, options.full, options.device, options.widths)
    log.info("trained %d models", len(models))
    questions = clozes(world)
    for group in by_shape(models):
        for model, result in zip(
            group, measure(*stack_of(group, options.device), questions), strict=True
        ):
            model.facts.update(result)
            log.info(
                "%-20s knowledge %.3f  %s",
                model.facts["name"],
                result["knowledge"],
                " ".join(f"{k} {result[k]:.2f}" for k in (*KINDS, *SKILLS)),
            )
    options.out.mkdir(parents=True, exist_ok=True)
    save(models, options.out)
    log.info("built in %.0f s", time.monotonic() - start)
    if options.check:
        result = check_all(
            [m for m in models if m.facts["kind"] == "base"],
            world,
            options.device,
            options.examples,
            options.epochs,
        )
        (options.out / "check.json").write_text(json.dumps(result))
        log.info("\n%s", summary(result))
        log.info("checked; %.0f s in all", time.monotonic() - start)


if __name__ == "__main__":
    main()
