"""Measure what each kind of adapter costs in lanes: ms a step of all lanes, and as a multiple of LoRA's.

    python bench/adapters.py                          # a small Llama on the processor
    python bench/adapters.py --device cuda --lanes 12

Kinds take turns for several rounds on the same model and rows, with all linear layers adapted; the median counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from potentia.engine.training import LaneSpec, LaneTrainer, LoraConfig, Schedule, TokenisedExamples

KINDS = ("lora", "rslora", "dora")


def main() -> None:
    """Time every kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    clock = (
        time.process_time if given.device == "cpu" else time.monotonic
    )  # others may use the processor
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2000,
        hidden_size=given.width,
        intermediate_size=3 * given.width,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config).eval().to(given.device)
    stream = np.random.default_rng(0)
    ids = [
        stream.integers(3, 2000, int(length)).tolist()
        for length in stream.integers(20, 60, 8 * given.steps)
    ]
    data, schedule = TokenisedExamples.of(ids), Schedule(epochs=1, learning_rate=1e-3)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(given.rounds):
        for kind in KINDS:
            lora = LoraConfig(8, 16, 0.0, ("all-linear",), kind)  # type: ignore[arg-type]
            specs = [LaneSpec(f"{kind}-{n}", data, schedule, lora, n) for n in range(given.lanes)]
            marks: list[float] = []
            with LaneTrainer(model) as trainer:
                trainer.train(specs, on_step=lambda _, marks=marks: marks.append(clock()))  # type: ignore[misc]
            times[kind] += np.diff(marks).tolist()
    found = {kind: statistics.median(values) for kind, values in times.items()}
    for kind, seconds in found.items():
        print(
            f"{kind:8}{1000 * seconds:8.1f} ms a step of {given.lanes} lanes{seconds / found['lora']:8.2f} × LoRA"
        )
    print(json.dumps({kind: round(seconds / found["lora"], 3) for kind, seconds in found.items()}))


if __name__ == "__main__":
    main()
