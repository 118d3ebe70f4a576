"""Bases of few bits: scored and tuned as they are, equal to PEFT on the same base, named in keys, never tuned whole."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import lane_models
import tiny
from potentia import engine
from potentia.engine.models.quantization import (
    compute_plainly,
    count_parameters,
    quantise_model,
    unpacked,
)
from potentia.engine.scoring import Scorer
from potentia.engine.training import FullLanes, LaneTrainer
from potentia.errors import InputError, StudyError, TuningError
from potentia.run import plan_study, run_study
from potentia.run.cost import FEW_BYTES
from potentia.store import Store
from potentia.study import make_study
from potentia.values.requests import Continuation

pytest.importorskip("bitsandbytes")
WAYS = ["8bit", "4bit"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few-bits")
    tiny.save_model(folder / "base", width=64)
    tiny.save_questions(folder / "colours.jsonl", n=120)
    return folder


def few(kind: str, quantise: str) -> torch.nn.Module:
    """Return a tiny model in few bits."""
    model = quantise_model(lane_models.tiny(kind), quantise, torch.float32, {"": "cpu"})
    assert compute_plainly(model) > 0
    return model.eval().requires_grad_(False)


def study(world: Path, store: Path, quantise: str | None, **changes: Any) -> Any:
    body = {
        "name": "few",
        "models": [
            {
                "name": "base",
                "path": str(world / "base"),
                **({"quantise": quantise} if quantise else {}),
            }
        ],
        "tasks": [{"name": "colours", "file": str(world / "colours.jsonl")}],
        "tuning": {
            "learning_rates": [5e-3],
            "epochs": 1,
            "dropout": 0.0,
            "targets": ["all-linear"],
        },
        "selection": "tuned",
        "device": "cpu",
        "store": str(store),
    }
    return make_study(body | changes)


def with_peft(
    model: torch.nn.Module, lane: Any, initial: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Train the lane's steps by PEFT and torch's AdamW on the same quantised base."""
    from peft import (
        LoraConfig,
        get_peft_model,
        get_peft_model_state_dict,
        set_peft_model_state_dict,
    )

    names = sorted({name.split(".lora_")[0].removeprefix("base_model.model.") for name in initial})
    config = LoraConfig(
        r=lane.lora.r,
        lora_alpha=lane.lora.alpha,
        lora_dropout=0.0,
        target_modules=names,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config)
    set_peft_model_state_dict(adapted, initial)
    trained = [p for p in adapted.parameters() if p.requires_grad]
    plan = lane.schedule
    optimizer = torch.optim.AdamW(
        trained,
        lr=plan.learning_rate,
        betas=plan.betas,
        eps=plan.eps,
        weight_decay=plan.weight_decay,
    )
    from potentia.engine.lane_spec import data_order

    for step in range(lane.total_steps):
        epoch, at = divmod(step, lane.steps_per_epoch)
        chosen = data_order(lane.seed, epoch, len(lane.examples))[
            at * plan.batch : (at + 1) * plan.batch
        ]
        texts = [lane.text_of_example(int(i), None) for i in chosen]
        targets = sum(len(ids) - first for ids, first in texts)
        for ids, first in texts:
            row = torch.as_tensor(ids)[None]
            losses = torch.nn.functional.cross_entropy(
                adapted(input_ids=row).logits[0, first - 1 : -1].float(),
                row[0, first:],
                reduction="sum",
            )
            (losses / targets).backward()
        torch.nn.utils.clip_grad_norm_(trained, plan.clip)
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * plan.rate_share(step, lane.total_steps)
        optimizer.step()
        optimizer.zero_grad()
    return get_peft_model_state_dict(adapted)


@pytest.mark.parametrize("quantise", WAYS)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_lane_on_a_quantised_base_equals_pefts_on_the_same_base(kind: str, quantise: str) -> None:
    model = few(kind, quantise)
    lane = lane_models.spec("lane", data=lane_models.examples(24))
    with LaneTrainer(model) as trainer:
        trainer.train([lane])
        ours, bank = trainer.adapter_state("lane"), trainer._bank
        initial = bank.peft_state(bank.fresh_row(lane.seed))
    theirs = with_peft(model, lane, initial)
    moved = max(float((ours[name] - initial[name]).abs().max()) for name in ours)
    assert moved > 1e-3
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=0, atol=2e-3 * moved), name


@pytest.mark.parametrize("quantise", WAYS)
def test_lanes_do_not_meet_in_a_quantised_layer_though_rows_have_outliers(quantise: str) -> None:
    model = few("llama", quantise)
    layer = model.model.layers[0].mlp.up_proj
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    beside = torch.cat([x[:1], 50 * x[1:]])  # far beyond what bitsandbytes takes apart
    assert torch.equal(layer(x)[0], layer(beside)[0])


def test_a_gradient_comes_through_after_a_pass_without_one() -> None:
    model = few("llama", "4bit")
    layer = model.model.layers[0].mlp.up_proj
    x = torch.randn(3, 32, requires_grad=True)
    with torch.no_grad():
        layer(x.detach())
    layer(x).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, unpacked(layer, torch.float32).sum(0).expand(3, -1), atol=1e-5)


def test_few_bits_are_near_the_whole_and_smaller_and_counted_whole(world: Path) -> None:
    unquantised = engine.load(str(world / "base"), device="cpu")
    ask = [Continuation("the red cat", f" {word}") for word in ("is", "was", "river")]
    result = torch.tensor(
        [likelihood.logprob for likelihood in Scorer(unquantised).loglikelihood(ask)]
    )
    size = sum(p.numel() * p.element_size() for p in unquantised.model.parameters())
    off = {}
    for quantise in WAYS:
        loaded = engine.load(str(world / "base"), device="cpu", quantise=quantise)
        few_told = torch.tensor(
            [likelihood.logprob for likelihood in Scorer(loaded).loglikelihood(ask)]
        )
        off[quantise] = float((few_told - result).abs().max())
        assert loaded.parameters == unquantised.parameters == count_parameters(unquantised.model)
        assert sum(p.numel() * p.element_size() for p in loaded.model.parameters()) < size / 2
        assert loaded.fingerprint != unquantised.fingerprint
    assert 0 < off["8bit"] < off["4bit"]
    assert FEW_BYTES["4bit"] < FEW_BYTES["8bit"] < 2


def test_a_study_runs_on_few_bits_under_keys_of_its_own_and_says_so(
    world: Path, tmp_path: Path
) -> None:
    from potentia.integrations import export_adapter
    from potentia.show.how import _model_table

    asked = {how: study(world, tmp_path / "s.db", how, name=str(how)) for how in (None, *WAYS)}
    keys = {
        how: {cell.key for cell in plan_study(one).iterate_cells()} for how, one in asked.items()
    }
    assert len(set.union(*keys.values())) == sum(map(len, keys.values()))
    assert run_study(asked["4bit"]).computed == 2
    assert run_study(asked["4bit"]).reused == 2
    with Store.open(str(tmp_path / "s.db"), readonly=True) as store:
        cell = next(cell for cell in store.cells.read() if cell.protocol == "train_before_test")
        assert cell.provenance.model.quantise == "4bit"
        assert "float32, 4bit" in _model_table([cell]).rows[0]
        written = export_adapter(store, cell, tmp_path / "out")
    room: dict[str, Any] = {}
    exec("\n".join(written.lines), room)  # the card's own words
    again = room["model"].base_model.model.model.layers[0].mlp.up_proj
    assert "Linear4bit" in str(type(again.base_layer))
    # the adapter goes on the base, whole or in few bits
    for how in (None, "4bit"):
        adapted = engine.load(
            str(world / "base"), device="cpu", quantise=how, adapters=[str(tmp_path / "out")]
        )
        assert adapted.parameters > 0


def test_what_adapters_made_of_the_weights_is_quantised_as_if_it_had_been_saved(
    world: Path, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(world / "base")
    adapted = get_peft_model(
        base, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    )
    adapted.save_pretrained(str(tmp_path / "adapter"))
    merged = copy.deepcopy(adapted).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    tiny.tokenizer().save_pretrained(tmp_path / "merged")
    first = engine.load(
        str(world / "base"), device="cpu", quantise="4bit", adapters=[str(tmp_path / "adapter")]
    )
    second = engine.load(str(tmp_path / "merged"), device="cpu", quantise="4bit")
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_treated_copies_and_adjust_run_on_few_bits(world: Path, tmp_path: Path) -> None:
    asked = study(
        world,
        tmp_path / "t.db",
        "8bit",
        protocols=["direct", "adjust"],
        adjust={"data": str(world / "colours.jsonl"), "cap": 16},
        treat={"data": ["colours"]},
        caps={"train": 24, "test": 24},
    )
    result = run_study(asked)
    assert (result.computed, result.failed) == (4, 0), result.reasons
    with Store.open(str(tmp_path / "t.db"), readonly=True) as store:
        prints = {cell.model: cell.provenance.model.fingerprint for cell in store.cells.read()}
        assert {cell.provenance.model.quantise for cell in store.cells.read()} == {"8bit"}
    assert len(set(prints.values())) == 2


def test_all_weights_of_a_quantised_base_are_never_tuned(world: Path, tmp_path: Path) -> None:
    with pytest.raises(
        StudyError, match=r"train_before_test tunes all weights.*base are quantised \(4bit\)"
    ):
        study(world, tmp_path / "f.db", "4bit", tuning={"method": "full"})
    with pytest.raises(TuningError, match="cannot be tuned themselves"):
        FullLanes(few("llama", "8bit"))


def test_weights_that_lie_quantised_are_not_quantised_again(world: Path, tmp_path: Path) -> None:
    loaded = engine.load(str(world / "base"), device="cpu", quantise="4bit")
    loaded.model.save_pretrained(tmp_path / "small")
    loaded.tokenizer.save_pretrained(tmp_path / "small")
    twice = study(
        world,
        tmp_path / "q.db",
        "8bit",
        models=[{"name": "s", "path": str(tmp_path / "small"), "quantise": "8bit"}],
    )
    with pytest.raises(InputError, match=r"quantised already \(bitsandbytes\)"):
        plan_study(twice)
    again = engine.load(str(tmp_path / "small"), device="cpu")  # its layers compute plainly too
    assert torch.equal(
        unpacked(again.model.model.layers[0].mlp.up_proj, torch.float32),
        unpacked(loaded.model.model.layers[0].mlp.up_proj, torch.float32),
    )
