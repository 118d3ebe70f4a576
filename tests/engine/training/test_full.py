"""Full fine-tuning equals a plain torch loop, keeps the effective batch, and puts the weights back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from architectures.odd import ODD
from architectures.tiny import build
from lane_models import NO_ADAPTERS, examples, tiny
from potentia.engine.lane_spec import LaneSpec, TokenisedExamples, data_order
from potentia.engine.proof import full_rehearsal
from potentia.engine.proof.rehearsal import RehearsalResult
from potentia.engine.training import FullLanes, full, full_lanes
from potentia.errors import TuningError
from potentia.values.recipe import Schedule
from potentia.values.training_form import TrainingForm

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
    loss="text",
)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def largest(first_state, second_state) -> float:
    return max(float((first_state[name] - second_state[name]).abs().max()) for name in first_state)


def tuned(trainer: FullLanes, data, recipe: Schedule, seed: int = 0, **watch):
    return trainer.train([LaneSpec("x", data, recipe, NO_ADAPTERS, seed)], **watch).values()


def plain_loop(model, data, recipe: Schedule, seed: int) -> dict[str, torch.Tensor]:
    lane = LaneSpec("x", data, recipe, NO_ADAPTERS, seed)
    groups = [
        {
            "params": [p for p in model.parameters() if p.dim() > 1],
            "weight_decay": recipe.weight_decay,
        },
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.eps
    )
    total = lane.total_steps

    def rate(step: int) -> float:
        if step < 4:
            return step / 4
        return 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (step - 4) / (total - 4)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for epoch in range(recipe.epochs):
        order = data_order(seed, epoch, len(data))
        for at in range(0, len(order), recipe.batch):
            rows = [lane.text_of_example(int(i))[0] for i in order[at : at + recipe.batch]]
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
    with FullLanes(model) as trainer:
        (lane,) = tuned(trainer, data, RECIPE, seed=5, on_step=lambda info: seen.append(info.step))
        ours = weights(model)
    assert lane.status == "done"
    assert seen == list(range(1, 13))
    assert len(trainer.steps) == 12
    assert trainer.steps[-1].loss < trainer.steps[0].loss
    assert largest(ours, theirs) < 1e-5
    assert largest(ours, before) > 3e-4
    assert largest(weights(model), before) == 0


def test_smaller_passes_leave_the_weights_the_same() -> None:
    data = examples(40)
    out = []
    for budget in (None, 64):
        model = tiny("llama")
        with FullLanes(model, token_budget=budget) as trainer:
            tuned(trainer, data, RECIPE)
            out.append(weights(model))
    assert largest(*out) < 1e-5


def test_half_precision_learns_through_masters() -> None:
    model = tiny("llama").to(torch.bfloat16)
    with FullLanes(model) as trainer:
        tuned(
            trainer,
            examples(64),
            Schedule(epochs=4, batch=16, learning_rate=1e-3, decay="constant", loss="text"),
        )
    assert trainer.steps[-1].loss < trainer.steps[0].loss - 0.1


def test_a_lane_that_diverges_fails_and_the_weights_come_back() -> None:
    model = tiny("llama")
    before = weights(model)
    with FullLanes(model) as trainer:
        (lane,) = tuned(
            trainer, examples(32), Schedule(learning_rate=1e30, decay="constant", loss="text")
        )
    assert lane.status == "failed"
    assert "diverged at step" in lane.reason
    assert largest(weights(model), before) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_interrupted_job_goes_on_bit_for_bit(dtype: torch.dtype, tmp_path) -> None:
    data = examples(60)

    def run(workspace=None, until: int = 10**9):
        model = tiny("llama").to(dtype)
        seen: list[int] = []
        with FullLanes(model, workspace=workspace) as trainer:
            tuned(
                trainer,
                data,
                RECIPE,
                seed=1,
                on_step=lambda info: seen.append(info.step),
                on_epoch=lambda ended: trainer.keep_only_states(
                    [(e.key, reached.append(e.epoch) or e.epoch) for e in ended]
                ),
                stop=lambda: len(seen) >= until,
            )
            if until > 12:
                trainer.restore("x", 3)
            return trainer.steps, seen, weights(model)

    reached: list[int] = []
    undisturbed, _, expected = run()
    assert reached == [1, 2, 3]
    reached.clear()
    first, *_ = run(tmp_path, until=5)
    again, computed, resumed_state = run(tmp_path)
    assert len(first) == 5
    assert computed == list(range(6, len(undisturbed) + 1)), "only what was missing"
    assert reached == [1, 2, 3], "no epoch is told twice"
    assert again == undisturbed
    assert all(torch.equal(resumed_state[name], expected[name]) for name in expected)
    _, computed, resumed_state = run(tmp_path)
    assert not computed, "a finished job is finished"
    assert all(torch.equal(resumed_state[name], expected[name]) for name in expected)


def test_a_broken_state_file_is_found_out_and_the_job_starts_over(tmp_path) -> None:
    data = examples(40)

    def run(until: int) -> tuple[int, list]:
        seen: list[int] = []
        with FullLanes(tiny("llama"), workspace=tmp_path) as trainer:
            tuned(
                trainer,
                data,
                RECIPE,
                on_step=lambda info: seen.append(info.step),
                stop=lambda: len(seen) >= until,
            )
        return len(seen), trainer.steps

    _, first = run(7)
    (file,) = tmp_path.rglob("snapshot-*")
    file.write_bytes(file.read_bytes()[:-7])
    made, steps = run(10**9)
    assert made == len(steps) == 9
    assert steps[:7] == first


def test_a_head_that_reads_tokens_is_tuned_by_its_own_forward() -> None:
    """Found before: the tail ran at target positions without their tokens, silently."""
    data, recipe = (
        examples(24, high=40),
        Schedule(epochs=1, batch=8, learning_rate=2e-4, warmup_steps=1, loss="text"),
    )
    with FullLanes(ODD["a head that reads tokens"]()) as trainer:
        tuned(trainer, data, recipe)
        assert trainer.form is trainer.training_facts.form is TrainingForm.ONE_LANE
        assert trainer.training_facts.gradient_error < 1e-4


def test_rows_that_change_others_are_kept_apart_in_full_tuning() -> None:
    with FullLanes(build("phi3+longrope").to(torch.bfloat16)) as trainer:
        tuned(
            trainer,
            examples(24, high=40),
            Schedule(epochs=1, batch=8, learning_rate=2e-4, warmup_steps=1, loss="text"),
        )
        assert trainer.form == TrainingForm.ONE_ROW


def test_a_form_that_raises_an_error_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = full.run_passes

    def refuse_padded(split: Any, rows: Any, plan: Any, form: TrainingForm) -> Any:
        if form == TrainingForm.PADDED:
            raise NotImplementedError("a layer of another kind")
        yield from right(split, rows, plan, form)

    monkeypatch.setattr(full, "run_passes", refuse_padded)
    with FullLanes(tiny("llama")) as trainer:
        (lane,) = tuned(trainer, examples(16), Schedule(epochs=1, learning_rate=1e-3, loss="text"))
        assert trainer.form == TrainingForm.ONE_LANE
    assert lane.status == "done"
    assert "a layer of another kind" in caplog.text


REHEARSED = Schedule(epochs=2, batch=8, learning_rate=1e-3, weight_decay=0.1, clip=0.5, loss="text")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_step_is_rehearsed_and_leaves_no_trace(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for is_rehearsed in (True, False):
        if not is_rehearsed:
            monkeypatch.setattr(
                full_lanes, "rehearse_full_step", lambda *_, **__: RehearsalResult()
            )
        model = tiny("llama").to(dtype)
        with FullLanes(model, token_budget=64) as trainer:
            tuned(trainer, examples(30), REHEARSED)
            results.append(weights(model))
            facts = trainer.training_facts.rehearsal
        assert (facts.update is not None) == is_rehearsed
    assert largest(*results) == 0


def break_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose the seventh row of a batch, which the check of a few rows does not have."""
    right = full.run_passes

    def lose_seventh(split: Any, rows: Any, plan: Any, form: Any) -> Any:
        return right(split, [*rows[:6], *rows[7:]], plan, form)

    monkeypatch.setattr(full, "run_passes", lose_seventh)


def break_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    def decay_all(parameters: list[torch.Tensor], schedule: Schedule) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            parameters, betas=schedule.betas, eps=schedule.eps, weight_decay=schedule.weight_decay
        )

    monkeypatch.setattr(full, "make_adamw", decay_all)


def break_betas(monkeypatch: pytest.MonkeyPatch) -> None:
    right = full.make_adamw
    monkeypatch.setattr(
        full, "make_adamw", lambda all_, schedule: right(all_, replace(schedule, betas=(0.9, 0.99)))
    )


def break_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    right = full.clip_gradients
    monkeypatch.setattr(
        full, "clip_gradients", lambda all_, schedule: right(all_, replace(schedule, clip=0.0))
    )


def break_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    right = full.step_optimizer
    monkeypatch.setattr(full, "step_optimizer", lambda optimizer, rate: right(optimizer, 2 * rate))


@pytest.mark.parametrize(
    "break_it", [break_pass, break_decay, break_betas, break_clipping, break_rate]
)
def test_a_wrong_first_step_ends_the_job_before_it(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    steps: list[Any] = []
    model = tiny("llama")
    before = weights(model)
    with (
        FullLanes(model, token_budget=64) as trainer,
        pytest.raises(TuningError, match="of full fine-tuning"),
    ):
        tuned(trainer, examples(30), REHEARSED, on_step=steps.append)
    assert not steps
    assert largest(weights(model), before) == 0


RARE = 90  # a token that only the last batch of the first epoch has


def with_a_weight_that_learns_late(model: torch.nn.Module) -> torch.nn.Module:
    """Add a weight to the embedding of one token: without that token in a step it has no gradient there."""
    model.model.late = torch.nn.Parameter(torch.zeros(model.config.hidden_size))

    def add_late(_: Any, inputs: tuple[torch.Tensor], embedded: torch.Tensor) -> torch.Tensor:
        is_rare = inputs[0] == RARE
        return embedded + is_rare.unsqueeze(-1) * model.model.late if is_rare.any() else embedded

    model.model.embed_tokens.register_forward_hook(add_late)
    return model


def texts_with_the_rare_token_last(recipe: Schedule, seed: int) -> TokenisedExamples:
    common = examples(24)
    order = data_order(seed, 0, len(common)).tolist()
    texts = [[token % RARE for token in common.cut_text(i, 99)[0].tolist()] for i in range(24)]
    for index in order[-recipe.batch :]:
        texts[index][1] = RARE
    return TokenisedExamples.from_lists(texts)


@pytest.mark.parametrize("stop_at", [2, 4])
def test_a_weight_that_learned_late_is_resumed_with_its_own_count_of_steps(
    stop_at: int, tmp_path: Path
) -> None:
    """All weights were given the job's count: its moments were corrected as if they were older than they are."""
    recipe = replace(REHEARSED, batch=8)
    data = texts_with_the_rare_token_last(recipe, seed=0)

    def run(workspace: Path | None, stop_at: int = 99) -> dict[str, torch.Tensor]:
        model = with_a_weight_that_learns_late(tiny("llama"))
        asked = iter(range(100))
        with FullLanes(model, workspace=workspace) as trainer:
            tuned(trainer, data, recipe, stop=lambda: next(asked) >= stop_at)
            return weights(model)

    undisturbed = run(None)
    run(tmp_path, stop_at)
    resumed = run(tmp_path)
    assert float(undisturbed["model.late"].abs().max()) > 0
    assert largest(undisturbed, resumed) == 0


@pytest.mark.parametrize("fault", ["step", "moments"])
def test_a_job_that_is_resumed_wrongly_does_not_go_on(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter(range(100))
    with FullLanes(tiny("llama"), workspace=tmp_path) as trainer:
        tuned(trainer, examples(30), REHEARSED, stop=lambda: next(asked) >= 3)
    right = full.FullTuningJob._restore_weights

    def restore_badly(self: Any, tensors: Any, step_count: int) -> None:
        right(self, tensors, step_count)
        if fault == "step":
            for state in self.optimizer.state.values():
                state["step"].zero_()
        else:
            self.optimizer.state.clear()

    monkeypatch.setattr(full.FullTuningJob, "_restore_weights", restore_badly)
    with (
        FullLanes(tiny("llama"), workspace=tmp_path) as trainer,
        pytest.raises(TuningError, match="of full fine-tuning"),
    ):
        tuned(trainer, examples(30), REHEARSED)


def test_a_slower_form_is_taken_where_the_rehearsal_refuses_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = full.run_passes

    def wrong_if_padded(split: Any, rows: Any, plan: Any, form: TrainingForm) -> Any:
        if form == TrainingForm.PADDED and plan.slots != 1:
            rows = [replace(rows[0], weight=2 * rows[0].weight), *rows[1:]]
        yield from right(split, rows, plan, form)

    plan_passes = FullLanes.plan_passes
    monkeypatch.setattr(full, "run_passes", wrong_if_padded)
    monkeypatch.setattr(
        FullLanes,
        "plan_passes",
        lambda self, *a, **options: replace(plan_passes(self, *a, **options), slots=2),
    )
    with FullLanes(tiny("llama")) as trainer:
        (lane,) = tuned(trainer, examples(30), REHEARSED)
        assert trainer.training_facts.form is TrainingForm.ONE_LANE
    assert lane.status == "done"


def test_without_memory_for_the_reference_full_tuning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory (simulated)")

    monkeypatch.setattr(full_rehearsal, "transformers_loss", refuse)
    with FullLanes(tiny("llama")) as trainer:
        (lane,) = tuned(trainer, examples(16), REHEARSED)
        assert trainer.training_facts.rehearsal.lacked_memory
    assert lane.status == "done"
    assert "no memory to rehearse" in caplog.text
