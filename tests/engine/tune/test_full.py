"""Full fine-tuning equals a plain torch loop, keeps the effective batch, and puts the weights back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from architectures.odd import ODD
from architectures.tiny import build
from lane_models import examples, tiny
from potentia.engine.tune.full import FullTrainer
from potentia.engine.tune.passes import LANE, ROW
from potentia.engine.tune.schedule import LaneSpec, Schedule, data_order
from potentia.errors import TuningError

RECIPE = Schedule(
    epochs=3,
    batch=16,
    learning_rate=2e-4,
    weight_decay=0.1,
    betas=(0.9, 0.95),
    decay="cosine",
    warmup_steps=4,
    floor=0.1,
    clip=0.5,
)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def largest(one, other) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def plain_loop(model, data, recipe: Schedule, seed: int) -> dict[str, torch.Tensor]:
    lane = LaneSpec("x", data, recipe, seed=seed)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.eps)
    total = lane.total_steps

    def rate(step: int) -> float:
        if step < 4:
            return step / 4
        return 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (step - 4) / (total - 4)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for epoch in range(recipe.epochs):
        order = data_order(seed, epoch, len(data))
        for at in range(0, len(order), recipe.batch):
            rows = [lane.text(int(i))[0] for i in order[at : at + recipe.batch]]
            width = max(map(len, rows))
            ids = torch.tensor([row.tolist() + [0] * (width - len(row)) for row in rows])
            labels = torch.tensor([row.tolist() + [-100] * (width - len(row)) for row in rows])
            model(input_ids=ids, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_full_tuning_equals_a_plain_loop(kind: str) -> None:
    data = examples(60)
    theirs = plain_loop(tiny(kind), data, RECIPE, seed=5)
    model = tiny(kind)
    before = weights(model)
    seen = []
    with FullTrainer(model) as trainer:
        steps = trainer.tune(
            data, RECIPE, seed=5, checkpoints={1, 6}, on_checkpoint=lambda step: seen.append(step.step)
        )
        ours = weights(model)
    assert len(steps) == 12
    assert seen == [1, 6]
    assert steps[-1].loss < steps[0].loss
    assert largest(ours, theirs) < 1e-5
    assert largest(ours, before) > 3e-4
    assert largest(weights(model), before) == 0


def test_smaller_passes_leave_the_weights_the_same() -> None:
    data = examples(40)
    out = []
    for budget in (None, 64):
        model = tiny("llama")
        with FullTrainer(model, token_budget=budget) as trainer:
            trainer.tune(data, RECIPE)
            out.append(weights(model))
    assert largest(*out) < 1e-5


def test_half_precision_learns_through_masters() -> None:
    model = tiny("llama").to(torch.bfloat16)
    with FullTrainer(model) as trainer:
        steps = trainer.tune(examples(64), Schedule(epochs=4, batch=16, learning_rate=1e-3, decay="constant"))
    assert steps[-1].loss < steps[0].loss - 0.1


def test_divergence_is_an_error_and_the_weights_come_back() -> None:
    model = tiny("llama")
    before = weights(model)
    with FullTrainer(model) as trainer, pytest.raises(TuningError, match="diverged"):
        trainer.tune(examples(32), Schedule(learning_rate=1e30, decay="constant"))
    assert largest(weights(model), before) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_interrupted_job_goes_on_bit_for_bit(dtype: torch.dtype, tmp_path) -> None:
    data = examples(60)

    def run(workspace=None, until: int | None = None):
        model = tiny("llama").to(dtype)
        seen: list[int] = []
        stop = None if until is None else lambda: len(seen) >= until
        with FullTrainer(model, workspace=workspace) as trainer:
            done = trainer.tune(
                data, RECIPE, seed=1, on_step=lambda step: seen.append(step.step), checkpoints={3, 9},
                on_checkpoint=lambda step: reached.append(step.step), stop=stop,
            )  # fmt: skip
            return done, seen, weights(model)

    reached: list[int] = []
    whole, _, wanted = run()
    assert reached == [3, 9]
    reached.clear()
    first, *_ = run(tmp_path, until=5)
    again, computed, found = run(tmp_path)
    assert len(first) == 5
    assert computed == list(range(6, len(whole) + 1)), "only what was missing"
    assert reached == [3, 9], "no checkpoint is scored twice"
    assert again == whole
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    _, computed, found = run(tmp_path)
    assert not computed, "a finished job is finished"
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_broken_state_file_is_found_out_and_the_job_starts_over(tmp_path) -> None:
    data, model = examples(40), tiny("llama")
    with FullTrainer(model, workspace=tmp_path) as trainer:
        whole = trainer.tune(data, RECIPE)
    (file,) = tmp_path.rglob("snapshot-*")
    file.write_bytes(file.read_bytes()[:-7])
    with FullTrainer(model, workspace=tmp_path) as trainer:
        seen: list[int] = []
        assert trainer.tune(data, RECIPE, on_step=lambda step: seen.append(step.step)) == whole
    assert len(seen) == len(whole)


def test_a_head_that_reads_tokens_is_tuned_by_its_own_forward() -> None:
    """Found before: the tail ran at target positions without their tokens, silently."""
    data, recipe = examples(24, high=40), Schedule(epochs=1, batch=8, learning_rate=2e-4, warmup_steps=1)
    with FullTrainer(ODD["a head that reads tokens"]()) as trainer:
        trainer.tune(data, recipe)
        assert (trainer.form, trainer.record["training"]["form"]) == (LANE, LANE)
        assert trainer.record["training"]["distance"]["lane"] < 1e-4


def test_rows_that_change_others_are_kept_apart_in_full_tuning() -> None:
    with FullTrainer(build("phi3+longrope").to(torch.bfloat16)) as trainer:
        trainer.tune(examples(24, high=40), Schedule(epochs=1, batch=8, learning_rate=2e-4, warmup_steps=1))
        assert trainer.form == ROW
