"""The checks of ``gpu.py`` for models larger than a GPU: laid out over several devices, and kept in 8 or 4 bits.

    python3 bench/gpu.py --only large --carry carry                # a GPU and the processor; two GPUs, where there are
    python bench/gpu.py --only large --device cpu --tiny           # tries the script itself

``carry`` holds ``tokenizer/`` and ``gsm8k.json``. Bits are checked where bitsandbytes is installed; from its wheel:

    python3 -m zipfile -e carry/bitsandbytes-*.whl /tmp/bits
    PYTHONPATH=/tmp/bits python3 bench/gpu.py --only large --carry carry
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpu_checks import attempt, off, with_peft

if TYPE_CHECKING:
    from gpu import Bench


def large(bench: Bench) -> None:
    """Lay a model out over devices, and keep one in few bits; compare with one device, and with PEFT."""
    home = torch.device(bench.device, 0) if bench.device == "cuda" else torch.device("cpu")
    kinds = ["float32"] if home.type == "cpu" else ["float32", "bfloat16"]
    home_by_name = {"the processor": torch.device("cpu")}
    if home.type == "cuda" and torch.cuda.device_count() > 1:
        home_by_name["another GPU"] = torch.device("cuda", 1)
    for home_name, home_device in home_by_name.items():
        for dtype in kinds:
            attempt(
                bench,
                f"half on {home_name}, {dtype}",
                lambda d=dtype, o=home_device: half(bench, home, o, d),
            )
    attempt(bench, "device: spread", lambda: by_name(bench, home))
    for bits in ("8bit", "4bit"):
        attempt(bench, f"{bits} and PEFT", lambda b=bits: few_bits(bench, home, b))


def jobs(vocabulary: int) -> list[Any]:
    """Make some lanes with dropout, of several lengths."""
    import numpy as np

    from potentia.engine.training import LaneSpec, LoraConfig, Schedule, TokenisedExamples

    specs_made = []
    for n in range(4):
        stream = np.random.default_rng(n)
        ids = [stream.integers(3, vocabulary, stream.integers(8, 60)).tolist() for _ in range(24)]
        schedule = Schedule(epochs=1, batch=8, learning_rate=1e-3, loss="text")
        specs_made.append(
            LaneSpec(
                f"l{n}",
                TokenisedExamples.from_lists(ids),
                schedule,
                LoraConfig(dropout=0.1, targets=None),
                seed=n,
            )
        )
    return specs_made


def everything(bench: Bench, loaded: Any) -> dict[str, Any]:
    """Score, write, train lanes and tune fully with a model."""
    from gpu import problems
    from potentia.engine.scoring import Scorer
    from potentia.engine.training import FullLanes, LaneTrainer
    from potentia.values.requests import Continuation, Generation

    count = 6 if bench.tiny else 32
    texts = problems(bench)[:count]
    asks = [
        Continuation(text, f" {answer}")
        for text in texts
        for answer in ("18", "20 and more", "none")
    ]
    scorer = Scorer(loaded)
    scores = torch.tensor([likelihood.logprob for likelihood in scorer.loglikelihood(asks)])
    written = scorer.generate([Generation(text, (), 12) for text in texts])
    specs = jobs(1000)
    with LaneTrainer(loaded) as trainer:
        trainer.train(specs)
        stepper_name = type(trainer.run_under_way.stepper).__name__ if trainer.run_under_way else ""
        bank = trainer.install_bank(specs[0].lora, trainer.plan.slots if trainer.plan else 1)
        first = [bank.peft_state(bank.fresh_row(spec.seed)) for spec in specs]
        states = [trainer.adapter_state(spec.key) for spec in specs]
    update = torch.cat(
        [(s[k] - f[k]).flatten() for s, f in zip(states, first, strict=True) for k in sorted(s)]
    )
    with FullLanes(loaded) as full:
        before = [weight.float().cpu().clone() for weight in full.current_weights()]
        full.train(specs[:1])
        losses = [step.loss for step in full.steps]
        after = [weight.float().cpu().clone() for weight in full.current_weights()]
    moved = torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)])
    notes = {
        "way": stepper_name,
        "losses": losses,
        "paths": dict(scorer.notes.rows_by_route),
        "fallbacks": list(scorer.notes.fallbacks),
    }
    return {"scores": scores, "texts": written, "adapters": update, "weights": moved, **notes}


def half(
    bench: Bench, home: torch.device, other_device: torch.device, dtype: str
) -> dict[str, Any]:
    """Compare a model with half of its blocks elsewhere with the same model on one device."""
    from gpu import make_loaded
    from potentia.engine.models.device_layout import Layout, find_blocks, is_spread, spread

    alone = everything(bench, make_loaded(bench, "135m", dtype))
    loaded = make_loaded(bench, "135m", dtype)
    count = len(find_blocks(loaded.model))
    spread(
        loaded.model,
        Layout(home, tuple(home if k < count // 2 else other_device for k in range(count))),
    )
    divided = is_spread(loaded.model)
    ours = everything(bench, loaded)
    exact = dtype == "float32"
    facts = {
        "divided": divided,
        "scores_off": off(ours["scores"], alone["scores"]),
        "texts_same": sum(a == b for a, b in zip(ours["texts"], alone["texts"], strict=True))
        / len(alone["texts"]),
        "adapters_off": off(ours["adapters"], alone["adapters"]),
        "adapters_cosine": float(
            torch.cosine_similarity(ours["adapters"], alone["adapters"], dim=0)
        ),
        "weights_cosine": float(torch.cosine_similarity(ours["weights"], alone["weights"], dim=0)),
        **{name: [ours[name], alone[name]] for name in ("way", "losses", "paths", "fallbacks")},
    }
    right = facts["scores_off"] < (1e-4 if exact else 2e-2) and facts["adapters_cosine"] > (
        0.999 if exact else 0.9
    )
    right = (
        right
        and facts["weights_cosine"] > (0.99 if exact else 0.8)
        and (divided or home == other_device)
    )
    return {"right": right and (not exact or facts["texts_same"] > 0.95), **facts}


def by_name(bench: Bench, home: torch.device) -> dict[str, Any]:
    """Load a model from a folder over all devices with a GPU that is nearly full, and ask it something."""
    import tempfile

    from gpu import make_loaded
    from potentia.engine import load
    from potentia.engine.models import device_layout as spread
    from potentia.engine.scoring import Scorer
    from potentia.values.requests import Continuation

    loaded_alone = make_loaded(bench, "135m", "float32")
    asks = [Continuation("Question: how many?\nAnswer:", f" {n}") for n in range(20)]
    alone = torch.tensor([answer.logprob for answer in Scorer(loaded_alone).loglikelihood(asks)])
    room = spread._room_for_weights
    weight_bytes = spread.count_weight_bytes(loaded_alone.model)
    with tempfile.TemporaryDirectory() as folder:
        loaded_alone.model.save_pretrained(folder)
        loaded_alone.tokenizer.save_pretrained(folder)
        try:
            spread._room_for_weights = lambda device: (
                weight_bytes * 6 // 10 if device.type == "cuda" else room(device)
            )
            loaded = load(folder, device="spread", dtype="float32")
        finally:
            spread._room_for_weights = room
    ours = torch.tensor([answer.logprob for answer in Scorer(loaded).loglikelihood(asks)])
    places = [str(next(block.parameters()).device) for block in spread.find_blocks(loaded.model)]
    counts = {device_name: places.count(device_name) for device_name in places}
    divided = len(counts) > 1 or home.type == "cpu"
    return {"right": off(ours, alone) < 1e-4 and divided, "off": off(ours, alone), "blocks": counts}


def few_bits(bench: Bench, home: torch.device, bits: str) -> dict[str, Any]:
    """Train a lane on a base of few bits, and PEFT on the same base."""
    if find_spec("bitsandbytes") is None:
        return {"right": None, "skipped": "bitsandbytes is not installed here"}
    from gpu import make_loaded
    from potentia.engine.models.quantization import compute_plainly, quantise_model
    from potentia.engine.training import LaneTrainer

    whole_model = make_loaded(bench, "135m", "float32").model
    model = quantise_model(whole_model, bits, torch.float32, {"": home})
    layers = compute_plainly(model)
    model.eval().requires_grad_(False)
    ids = torch.arange(3, 40, device=home)[None]
    with torch.no_grad():
        apart = off(model(input_ids=ids).logits, whole_model(input_ids=ids).logits)
    from dataclasses import replace

    lane = replace(jobs(1000)[0], lora=replace(jobs(1000)[0].lora, dropout=0.0))
    with LaneTrainer(model) as trainer:
        trainer.train([lane])
        bank = trainer.install_bank(lane.lora, trainer.plan.slots if trainer.plan else 1)
        initial = bank.peft_state(bank.fresh_row(lane.seed))
        ours = trainer.adapter_state(lane.key)
        stepper_name = type(trainer.run_under_way.stepper).__name__ if trainer.run_under_way else ""
    theirs = with_peft(model, lane, initial)
    names = sorted(ours)

    def update(state: dict[str, Tensor]) -> Tensor:
        return torch.cat([(state[name].float().cpu() - initial[name]).flatten() for name in names])

    gap = off(update(ours), update(theirs))
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return {
        "right": gap < 1e-2 and layers > 0,
        "off": gap,
        "way": stepper_name,
        "layers": layers,
        "bytes": size,
        "apart": apart,
    }
