"""How fast a row of 24 fine-tunings is on the architectures that people choose between, beside one PEFT process.

    python bench/lanes_by_architecture.py --budget 540 --out $OUT/rows.jsonl # on a GPU, in bfloat16
    python bench/lanes_by_architecture.py --only olmo2-1b qwen3.5-0.8b --profile  # two, and their slowest kernels
    python bench/lanes_by_architecture.py --measured rows.jsonl --out more.jsonl # those that the file has not
    python bench/lanes_by_architecture.py --device cpu --tiny # tries the script itself

Models have random weights at their real widths. A row is the default recipe's: 12 tasks × 2 learning rates, batch 16,
all linear layers, loss on the answer, texts with the lengths of real questions. The peer makes the same steps with
plain PEFT, one fine-tuning after another, on padded batches: its row is the time of all of them. PEFT's own
``all-linear`` reaches no stacked experts, so models that have them get a second peer with the adapters of our row.

Each model has a process of its own, so that one that fails takes no other along; with ``--together`` some are checked
at the same time on an equal share of the memory, and timed one after another. One that had to be timed while others
were still being checked says so, and reaches no bar: of four at once on an H200 few were ready in time. What was
measured is printed and appended to ``--out`` as soon as it is known, a JSON line for ours and one more with the peer.
The ``--budget`` of seconds is shared out between the models that are left, those with an open question first. Bars are
printed beside the figures.

Gemma 4's attention has no factor: what trained models have in the gains of its queries, random ones get there.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for a GPU must spoil no fork
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]

import lanes  # noqa: E402

TASKS = (
    *("arc_easy", "arc_challenge", "openbookqa", "commonsense_qa", "social_iqa", "headqa_en"),
    *("sciq", "piqa", "winogrande", "boolq", "mrpc", "cola"),
)
LEARNING_RATES = (2e-4, 1e-3)
ANSWER_TOKENS = 4
FIRST_TOKEN = 3  # those before it are padding, begin and end
PEER_WARM_STEPS = 2
PEER_STEPS = 3
PROFILED_STEPS = 2
SLOWEST_KERNELS = 14
LONGEST_WAIT = 30  # seconds for a model that is not ready
BYTES_OF_GB = 1e9
SECONDS_TO_END = 5  # that a process is left after its last measurement
LEAST_SECONDS = 10  # that measuring a model takes
KERNEL_PACKAGES = ("flash-linear-attention", "causal-conv1d", "mamba-ssm")
GREEDIEST_SHARE = 1.5  # times its equal share of the time left, that a group of models may take


def attention_every(count: int, kind: str, blocks: int) -> list[str]:
    """Return the kinds of layers of a hybrid: one of full attention after every ``count`` of another kind."""
    return ([kind] * count + ["attention"]) * blocks


LFM2_LAYERS = [
    "full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)
]
# Sizes as published; the largest with fewer layers, so that peers fit too. Those with an open question come first.
SHAPES: dict[str, dict[str, Any]] = {
    "olmo3-1b": {
        "model_type": "olmo3",
        "vocab_size": 100352,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    },
    "smollm3-3b": {
        "model_type": "smollm3",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "phi4-mini-3.8b": {
        "model_type": "phi3",
        "vocab_size": 200064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "gemma4-2b": {
        "model_type": "gemma4_text",
        "vocab_size": 262144,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
    },
    # as the sizes for small devices have it: the last layers read the keys and values of earlier ones
    "gemma4-2b-shared": {
        "model_type": "gemma4_text",
        "vocab_size": 262144,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "num_kv_shared_layers": 12,
        "layer_types": ["sliding_attention", "full_attention"] * 13,
    },
    "qwen3.5-0.8b": {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "tie_word_embeddings": True,
    },
    "lfm2-1.2b": {
        "model_type": "lfm2",
        "vocab_size": 65536,
        "hidden_size": 2048,
        "intermediate_size": 12288,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "layer_types": LFM2_LAYERS,
    },
    "gpt-oss-8of24": {
        "model_type": "gpt_oss",
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 8,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
    },
    "qwen3-moe-12of48": {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    "olmo2-1b": {
        "model_type": "olmo2",
        "vocab_size": 100352,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    },
    "granite4-h-1b": {
        "model_type": "granitemoehybrid",
        "vocab_size": 100352,
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "shared_intermediate_size": 4096,
        "num_hidden_layers": 20,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_n_heads": 48,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "layer_types": attention_every(4, "mamba", 4),
    },
    "llama-1b": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "gemma3-1b": {
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
    },
    "llama-410m": {
        "model_type": "llama",
        "vocab_size": 50304,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "pythia-410m": {
        "model_type": "gpt_neox",
        "vocab_size": 50304,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
    },
}


@dataclass(frozen=True)
class Bar:
    """What a row is asked to reach; None where nothing is asked of that kind."""

    least_ratio: float | None = None  # times one PEFT process
    most_ms: float | None = None  # of a step
    kernels_most_ms: float | None = None  # where flash-linear-attention is installed
    packs_rows: bool = False  # long rows, or hand-written layers
    lanes: int | None = None  # side by side

    def find_most_ms(self) -> float | None:
        """Return the milliseconds that a step may take with what is installed here."""
        if self.kernels_most_ms is not None and find_spec("fla") is not None:
            return self.kernels_most_ms
        return self.most_ms

    def describe(self) -> str:
        """Say what is asked."""
        requirements: list[str] = []
        if self.least_ratio is not None:
            requirements.append(f"≥ {self.least_ratio:g} ×")
        most_ms = self.find_most_ms()
        if most_ms is not None:
            requirements.append(f"≤ {most_ms:.0f} ms")
        if self.packs_rows:
            requirements.append("long rows or better")
        if self.lanes is not None:
            requirements.append(f"{self.lanes} lanes")
        return ", ".join(requirements) or "–"

    def is_reached(self, figures: dict[str, Any]) -> bool | None:
        """Return whether figures reach it; None where nothing is asked, or what is asked was not measured."""
        if not figures.get("is_alone", True):
            return None
        answers: list[bool] = []
        most_ms = self.find_most_ms()
        asked = (
            (self.least_ratio, "ratio", lambda value: value >= self.least_ratio),
            (most_ms, "step_ms", lambda value: value <= most_ms),
            (self.packs_rows or None, "form", lambda value: value in PACKED_FORMS),
            (self.lanes, "slots", lambda value: value >= self.lanes),
        )
        for bar, name, is_enough in asked:
            if bar is None:
                continue
            if figures.get(name) is None:
                return None
            answers.append(is_enough(figures[name]))
        return all(answers) if answers else None


PACKED_FORMS = ("hand-written layers", "long rows")
# Steps of version 0.3 on the same machine: LFM2 497 ms (to be halved), Qwen3.5 1,349 ms (a quarter with
# flash-linear-attention, 1.3 times as fast without); Llama and Gemma 3 are not to be slower, the rest is as measured.
BARS: dict[str, Bar] = {
    "olmo2-1b": Bar(least_ratio=24),
    "olmo3-1b": Bar(least_ratio=24),
    "smollm3-3b": Bar(least_ratio=18),
    "phi4-mini-3.8b": Bar(least_ratio=13),
    "lfm2-1.2b": Bar(most_ms=497 / 2),
    "qwen3.5-0.8b": Bar(most_ms=1349 / 1.3, kernels_most_ms=1349 / 4),
    "gpt-oss-8of24": Bar(least_ratio=8),
    "gemma4-2b": Bar(packs_rows=True),
    "qwen3-moe-12of48": Bar(packs_rows=True, lanes=24),
    "llama-410m": Bar(most_ms=69),
    "llama-1b": Bar(most_ms=156),
    "gemma3-1b": Bar(most_ms=152),
}
# The same structure in small, to try the script.
TINY_SIZES = {
    "vocab_size": 600,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "shared_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 600,
    "num_kv_shared_layers": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "num_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


@dataclass(frozen=True)
class Setting:
    """Where a model is measured, how large it is, and for how long."""

    device_name: str
    is_tiny: bool
    is_profiled: bool
    models_without_peer: frozenset[str] = frozenset()
    memory_share: float = 1.0  # of the GPU, where several models are on it

    @property
    def batch(self) -> int:
        """Examples of a fine-tuning's step."""
        return 4 if self.is_tiny else 16

    @property
    def warm_steps(self) -> int:
        """Steps before those that are timed."""
        return 2 if self.is_tiny else 8

    @property
    def timed_steps(self) -> int:
        """Steps that are timed."""
        return 2 if self.is_tiny else 10


def make_model(name: str, setting: Setting) -> Any:
    """Make a model with random weights on the device."""
    import torch

    dtype = torch.bfloat16 if setting.device_name == "cuda" else torch.float32
    return make_random_model(
        name, TINY_SIZES if setting.is_tiny else {}, setting.device_name, dtype
    )


def make_random_model(name: str, sizes: Mapping[str, int], device_name: str, dtype: Any) -> Any:
    """Make a model of the structure of this name, with random weights, and with these sizes where it has such."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = dict(SHAPES[name])
    for field in shape.keys() & sizes.keys():
        if shape[field]:
            shape[field] = sizes[field]
    if sizes and "layer_types" in shape:
        shape["layer_types"] = [*shape["layer_types"][:3], "full_attention"]
        if name.startswith("granite4"):
            shape["layer_types"][-1] = "attention"
        shape["num_hidden_layers"] = len(shape["layer_types"])
    model_type = shape.pop("model_type")
    config = AutoConfig.for_model(
        model_type, pad_token_id=0, bos_token_id=1, eos_token_id=2, **shape
    )
    torch.manual_seed(0)
    with torch.device(device_name):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    if model_type == "gemma4_text":
        for layer in model.model.layers:
            gains = layer.self_attn.q_norm.weight
            gains.data.mul_(len(gains) ** -0.5)
    return model


def make_texts(task: str, count: int, vocabulary: int) -> list[list[int]]:
    """Make random texts with the lengths of a task's questions."""
    import numpy as np

    stream = np.random.default_rng(sum(map(ord, task)))
    quantiles = (np.arange(16) + 0.5) / 16
    lengths = np.interp(stream.random(count), quantiles, lanes.LENGTHS[task]).round().astype(int)
    return [stream.integers(FIRST_TOKEN, vocabulary, length).tolist() for length in lengths]


def make_lane_specs(vocabulary: int, setting: Setting) -> list[Any]:
    """Return the fine-tunings of a row: every task by every learning rate."""
    from potentia.engine.training import LaneSpec, LoraConfig, Schedule, TokenisedExamples

    steps = setting.warm_steps + setting.timed_steps + PROFILED_STEPS + 4
    lora = LoraConfig(dropout=0.0, targets=("all-linear",))
    specs: list[Any] = []
    for task in TASKS:
        texts = make_texts(task, setting.batch * steps, vocabulary)
        prompt_lengths = [max(1, len(text) - ANSWER_TOKENS) for text in texts]
        examples = TokenisedExamples.from_lists(texts, prompt_lengths)
        for rate in LEARNING_RATES:
            schedule = Schedule(
                epochs=1, batch=setting.batch, learning_rate=rate, loss="completion"
            )
            specs.append(LaneSpec(f"{task} {rate}", examples, schedule, lora, seed=0))
    return specs


class Turns:
    """Lets processes time one after another, once none of them prepares any more."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("fork")
        self._changed = context.Condition()
        self._preparing = context.Value("i", count, lock=False)
        self._timing = context.Lock()
        self._has_turn = False  # this process
        self.is_alone = True  # whether all others were ready when this process began to time

    def end_preparing(self) -> None:
        """Count a process that is ready, or has failed."""
        with self._changed:
            self._preparing.value -= 1
            self._changed.notify_all()

    def begin_timing(self) -> None:
        """Wait until all are ready, and then for this process's turn."""
        if self._has_turn:
            return
        self._has_turn = True
        self.end_preparing()
        with self._changed:
            self.is_alone = self._changed.wait_for(lambda: self._preparing.value <= 0, LONGEST_WAIT)
        self._timing.acquire()

    def end_timing(self) -> None:
        """Let the next process time."""
        self._timing.release()


def measure_row(model: Any, setting: Setting, turns: Turns) -> dict[str, Any]:
    """Time steps of the whole row, and say by which form it was trained."""
    import torch

    from potentia.engine.training import LaneTrainer

    device = torch.device(setting.device_name)
    vocabulary = int(model.config.get_text_config().vocab_size)
    specs = make_lane_specs(vocabulary, setting)
    token_counts: list[int] = []
    marks: dict[int, float] = {}
    ready_at: list[float] = []
    profiler: Any = None
    first_timed = setting.warm_steps
    last_timed = first_timed + setting.timed_steps
    last_step = last_timed + (PROFILED_STEPS if setting.is_profiled else 0)

    def on_step(info: Any) -> None:
        nonlocal profiler
        if info.step == first_timed and first_timed not in marks:
            ready_at.append(time.perf_counter())
            turns.begin_timing()
        if info.step in (first_timed, last_timed, last_step):
            lanes.wait(device)
            marks.setdefault(info.step, time.perf_counter())
        if first_timed < info.step <= last_timed:
            token_counts.append(info.tokens)
        if setting.is_profiled and info.step == last_timed:
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            profiler.start()

    def is_over() -> bool:
        run = trainer.run_under_way
        return run is not None and run.step >= last_step

    began = time.perf_counter()
    with LaneTrainer(model, may_pack=True) as trainer:  # a processor would pad
        trainer.train(specs, on_step=on_step, stop=is_over)
        lanes.wait(device)
        run = trainer.run_under_way
        assert run is not None
        assert trainer.plan is not None
        form_check = next(iter(trainer._form_checks.values()))
        figures = {
            "form": form_check.form.words,
            "slots": trainer.plan.slots,
            "captured": getattr(run.stepper, "capture_count", 0),
            "before_s": round(ready_at[0] - began, 1),
            "training": trainer.training_facts.to_dict(),
        }
    seconds = marks[last_timed] - marks[first_timed]
    figures["step_ms"] = round(1e3 * seconds / setting.timed_steps, 1)
    figures["tokens"] = round(statistics.mean(token_counts))
    figures["is_alone"] = turns.is_alone
    if device.type == "cuda":
        figures["memory_gb"] = round(torch.cuda.max_memory_allocated() / BYTES_OF_GB, 1)
    if profiler is not None:
        profiler.stop()
        profiled_seconds = marks[last_step] - marks[last_timed]
        figures |= describe_kernels(profiler, profiled_seconds)
    return figures


def describe_kernels(profiler: Any, seconds: float) -> dict[str, Any]:
    """Return the kernels that took longest, for each step, and the share of the time in which one ran."""
    kernels: list[tuple[float, int, str]] = []
    for event in profiler.key_averages():
        milliseconds = event.self_device_time_total / 1e3
        if milliseconds > 0:
            kernels.append((milliseconds, event.count, event.key))
    kernels.sort(reverse=True)
    lines = [
        f"{milliseconds / PROFILED_STEPS:.1f} ms, {count // PROFILED_STEPS}×: {name[:90]}"
        for milliseconds, count, name in kernels[:SLOWEST_KERNELS]
    ]
    busy_ms = sum(milliseconds for milliseconds, _, _ in kernels)
    launches = sum(count for _, count, _ in kernels) // PROFILED_STEPS
    return {"kernels": lines, "busy": round(busy_ms / 1e3 / seconds, 2), "launches": launches}


def measure_peer(model: Any, setting: Setting, end: float, *, on_experts: bool = False) -> float:
    """Return the milliseconds that plain PEFT takes for a step of every fine-tuning, one after another.

    With ``on_experts`` its adapters are those of our row; otherwise they are what PEFT takes for all linear layers.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    device = torch.device(setting.device_name)
    vocabulary = int(model.config.get_text_config().vocab_size)
    config = LoraConfig(
        r=8, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    if on_experts:
        config = find_targets_of_row(model).config
    adapted = get_peft_model(model, config)
    try:
        adapted.train()
        parameters = [weight for weight in adapted.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        row_seconds = 0.0
        for number, task in enumerate(TASKS):
            if time.monotonic() > end:
                raise TimeoutError(f"no time left after {number} of {len(TASKS)} tasks")
            texts = make_texts(task, setting.batch * (PEER_WARM_STEPS + PEER_STEPS), vocabulary)
            for step in range(PEER_WARM_STEPS + PEER_STEPS):
                if step == PEER_WARM_STEPS:
                    lanes.wait(device)
                    began = time.perf_counter()
                texts_of_step = texts[step * setting.batch : (step + 1) * setting.batch]
                adapted(**pad_batch(texts_of_step, device)).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            lanes.wait(device)
            step_seconds = (time.perf_counter() - began) / PEER_STEPS
            row_seconds += step_seconds * len(LEARNING_RATES)
    finally:
        adapted.unload()
    return round(1e3 * row_seconds, 1)


def find_targets_of_row(model: Any) -> Any:
    """Return what the adapters of our row are put on."""
    from potentia.engine.layers.adapter_targets import find_targets
    from potentia.engine.training import LoraConfig

    return find_targets(model, LoraConfig(dropout=0.0, targets=("all-linear",)))


def pad_batch(texts: Sequence[list[int]], device: Any) -> dict[str, Any]:
    """Return padded texts with labels at the answers."""
    import torch

    width = max(len(text) for text in texts)
    ids = torch.zeros(len(texts), width, dtype=torch.long)
    labels = torch.full((len(texts), width), -100)
    mask = torch.zeros(len(texts), width, dtype=torch.long)
    for number, text in enumerate(texts):
        row = torch.tensor(text)
        begin = len(text) - ANSWER_TOKENS
        ids[number, : len(text)] = row
        labels[number, begin : len(text)] = row[begin:]
        mask[number, : len(text)] = 1
    batch = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def measure_architecture(
    name: str,
    setting: Setting,
    turns: Turns,
    end: float = math.inf,
    report: Callable[[dict[str, Any]], None] = lambda figures: None,
) -> dict[str, Any]:
    """Measure one model, ours first, and report each part; what fails is told beside what was measured."""
    import torch

    figures: dict[str, Any] = {"model": name}
    began = time.monotonic()
    if setting.device_name == "cuda":
        torch.cuda.set_per_process_memory_fraction(setting.memory_share)
    try:
        model = make_model(name, setting)
        parameters = sum(weight.numel() for weight in model.parameters())
        figures["parameters_m"] = round(parameters / 1e6)
        figures |= measure_row(model, setting, turns)
        operations = 4 * parameters * figures["tokens"]
        figures["tflops"] = round(operations / figures["step_ms"] / 1e9, 1)
    except Exception:
        figures["error"] = traceback.format_exc()[-900:]
        turns.begin_timing()
        report(figures)
        return figures
    report(figures)
    if name not in setting.models_without_peer:
        figures |= measure_peers(model, setting, end, figures["step_ms"])
    figures["all_s"] = round(time.monotonic() - began, 1)
    report(figures)
    return figures


def measure_peers(model: Any, setting: Setting, end: float, step_ms: float) -> dict[str, Any]:
    """Return the figures of the peer, and of a second one where the model has stacked experts."""
    import torch

    figures: dict[str, Any] = {}
    kinds = [("peer", "ratio", False)]
    if find_targets_of_row(model).stacked:
        kinds.append(("peer_on_experts", "ratio_on_experts", True))
    for peer_name, ratio_name, on_experts in kinds:
        try:
            if setting.device_name == "cuda":
                torch.cuda.empty_cache()
            peer_ms = measure_peer(model, setting, end, on_experts=on_experts)
            figures[f"{peer_name}_ms"] = peer_ms
            figures[ratio_name] = round(peer_ms / step_ms, 2)
        except Exception as error:
            figures[f"{peer_name}_error"] = repr(error)[:300]
    return figures


def append_figures(out: Path, figures: dict[str, Any]) -> None:
    """Append what is known of a model to a file, as a line."""
    with out.open("a") as lines:
        lines.write(json.dumps(figures, default=str) + "\n")


def measure_apart(name: str, setting: Setting, out: Path, turns: Turns, end: float) -> None:
    """Measure one model in this process, which ends with it."""
    figures = measure_architecture(
        name, setting, turns, end, lambda known: append_figures(out, known)
    )
    print(describe_figures(figures), flush=True)
    turns.end_timing()


def read_figures(path: Path) -> dict[str, dict[str, Any]]:
    """Return what a file knows of each model, its later lines over its earlier ones."""
    figures_by_model: dict[str, dict[str, Any]] = {}
    lines = path.read_text().splitlines() if path.exists() else []
    for figures in map(json.loads, lines):
        if "model" in figures:
            figures_by_model.setdefault(figures["model"], {}).update(figures)
    return figures_by_model


def measure_together(names: Sequence[str], setting: Setting, out: Path, seconds: float) -> None:
    """Measure models in a forked process each, which prepare at the same time; note which of them did not end."""
    turns = Turns(len(names))
    context = multiprocessing.get_context("fork")
    end = time.monotonic() + seconds
    processes = {}
    for name in names:
        arguments = (name, setting, out, turns, end - SECONDS_TO_END)
        processes[name] = context.Process(target=measure_apart, args=arguments)
        processes[name].start()
    for name, process in processes.items():
        process.join(max(0.0, end - time.monotonic()))
        fault = None
        if process.is_alive():
            process.kill()
            process.join()
            fault = f"not done after {seconds:.0f} s"
        elif process.exitcode:
            fault = f"ended with {process.exitcode}"
        if fault is not None:
            append_figures(out, {"model": name, "fault": fault})
            print(describe_figures(read_figures(out)[name]), flush=True)


def share_seconds(seconds_left: float, groups_left: int) -> float:
    """Return the seconds that the next group of models may take of those that are left for all."""
    return min(seconds_left, GREEDIEST_SHARE * seconds_left / groups_left)


def measure_within(
    names: Sequence[str],
    setting: Setting,
    out: Path,
    *,
    together: int,
    budget: float,
    measure: Callable[[Sequence[str], Setting, Path, float], None] = measure_together,
) -> None:
    """Measure groups of models until the budget of seconds is spent; those with no time left are named."""
    end = time.monotonic() + budget
    groups = [names[begin : begin + together] for begin in range(0, len(names), together)]
    for number, group in enumerate(groups):
        seconds_left = end - time.monotonic()
        if seconds_left < LEAST_SECONDS:
            names_left = [name for later_group in groups[number:] for name in later_group]
            print(f"no time left for {', '.join(names_left)}", flush=True)
            return
        measure(group, setting, out, share_seconds(seconds_left, len(groups) - number))


# ---- telling --------------------------------------------------------------------------------------------------------

COLUMNS = ("form", "step_ms", "tflops", "ratio")
TITLES = ("model", "form", "ms a step", "TFLOP/s", "× one PEFT process", "asked", "reached")


def describe_figures(figures: dict[str, Any]) -> str:
    """Return a row of the table, with what is asked of the model and whether it is reached."""
    name = str(figures["model"])
    columns = [str(figures.get(column, "–")) for column in COLUMNS]
    if not figures.get("is_alone", True):
        columns[1] += " (beside others)"
    on_experts = figures.get("ratio_on_experts")
    if on_experts is not None:
        columns[-1] += f" ({on_experts} with adapters on experts)"
    bar = BARS.get(name, Bar())
    reached = {True: "yes", False: "**no**", None: "–"}[bar.is_reached(figures)]
    line = f"| {' | '.join([name, *columns, bar.describe(), reached])} |"
    faults = [str(figures[key]) for key in FAULTS if key in figures]
    last_lines = [fault.strip().splitlines()[-1] for fault in faults]
    return " ".join([line, *last_lines])


FAULTS = ("error", "fault", "peer_error", "peer_on_experts_error")


def print_table(names: Sequence[str], figures_by_model: dict[str, dict[str, Any]]) -> None:
    """Print a line for each model, as docs have it."""
    print(f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}")
    for name in names:
        print(
            describe_figures(figures_by_model.get(name, {"model": name, "fault": "not measured"}))
        )


def describe_versions(device_name: str) -> dict[str, str]:
    """Return the versions of what computes, and the device."""
    import torch

    versions: dict[str, str] = {"date": time.strftime("%Y-%m-%d")}
    for package in ("torch", "transformers", "peft", "triton", *KERNEL_PACKAGES):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    versions["device"] = device_name
    if device_name == "cuda":
        probe = "import torch; print(torch.cuda.get_device_name())"
        # in a process of its own: one that has used the GPU cannot be forked
        versions["device"] = subprocess.check_output(
            [sys.executable, "-c", probe], text=True
        ).strip()
    versions["cuda"] = str(torch.version.cuda)
    return versions


def main() -> None:
    """Measure the models that are asked for, one process each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the same structures in small")
    parser.add_argument("--profile", action="store_true", help="list the slowest kernels, too")
    parser.add_argument(
        "--no-peer", nargs="*", choices=list(SHAPES), help="measure Potentia alone (on these)"
    )
    parser.add_argument("--together", type=int, default=1, help="models that are checked at once")
    parser.add_argument("--budget", type=float, default=1800, help="seconds for all models")
    parser.add_argument("--out", type=Path, default=Path("architectures.jsonl"))
    parser.add_argument(
        "--measured", type=Path, help="leave out the models that this file has a peer of"
    )
    options = parser.parse_args()
    without_peer = options.no_peer or list(SHAPES)
    if options.no_peer is None:
        without_peer = []
    setting = Setting(
        device_name=options.device,
        is_tiny=options.tiny,
        is_profiled=options.profile,
        models_without_peer=frozenset(without_peer),
        memory_share=1 / options.together,
    )
    import peft  # noqa: F401 - loaded once for all processes
    import torch  # noqa: F401
    import transformers  # noqa: F401

    import potentia.engine.training  # noqa: F401

    versions = describe_versions(options.device)
    append_figures(options.out, versions)
    print(", ".join(f"{name} {value}" for name, value in versions.items()), flush=True)
    measured_before = read_figures(options.measured) if options.measured else {}
    names = [name for name in options.only if "ratio" not in measured_before.get(name, {})]
    measure_within(names, setting, options.out, together=options.together, budget=options.budget)
    print_table(options.only, measured_before | read_figures(options.out))


if __name__ == "__main__":
    main()
