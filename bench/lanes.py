"""Measure how much faster a row of lanes is than Hugging Face Trainer + PEFT, one lane after another.

    python bench/lanes.py --device cpu                       # tiny models, as in the zoo
    python bench/lanes.py --device cuda --model 410m 8b      # Llama-shaped random weights

A row has 24 or 72 lanes (tasks × three learning rates) of batch 8, LoRA r 8, α 32, dropout 0.1 on PEFT's default
layers, with the lengths of real questions. Ours: all lanes in shared passes. The peers train each lane by itself: (a)
Trainer + PEFT in the dtype it defaults to, float32; (b) the same with bf16 weights and length grouping. A peer is timed
for a few steps on one lane of each task, after warm-up, and its row is the sum of those steps over all lanes: a step's
time does not depend on how many came before. Ours is timed on whole steps of the row. All in one process, on the same
model and data. On a GPU, cuDNN's attention is switched off for everyone: it compiles a plan for every new shape, which
in a short run would be held against the peers. On a CPU each side runs with one thread and with all, and its better
time counts; ours and the peer take turns for several rounds, because a shared machine is not equally fast all the time,
and the median of the rounds' ratios is told with its range.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from potentia.engine.training import LaneSpec, LaneTrainer, LoraConfig, Schedule, TokenisedExamples

# Tokens of question and answer: 16 quantiles of 600 training documents each, tokenised by SmolLM2's tokenizer.
LENGTHS = {
    "arc_easy": (15, 17, 19, 20, 22, 23, 25, 27, 29, 31, 33, 37, 42, 46, 53, 67),
    "openbookqa": (7, 9, 10, 10, 11, 12, 13, 13, 14, 15, 16, 17, 19, 21, 24, 29),
    "commonsense_qa": (36, 38, 39, 40, 41, 42, 43, 44, 45, 46, 46, 48, 49, 51, 54, 61),
    "winogrande": (17, 18, 19, 19, 20, 20, 21, 21, 22, 23, 23, 24, 25, 26, 28, 31),
    "piqa": (14, 18, 20, 22, 24, 26, 28, 30, 32, 34, 38, 42, 48, 54, 64, 95),
    "boolq": (64, 78, 90, 101, 109, 120, 129, 140, 151, 162, 171, 186, 201, 220, 254, 302),
    "mrpc": (55, 60, 64, 67, 70, 73, 76, 78, 81, 83, 85, 88, 92, 95, 100, 109),
    "mathqa": (26, 34, 37, 40, 44, 47, 48, 51, 54, 57, 59, 63, 67, 72, 80, 94),
    "arc_challenge": (16, 19, 21, 23, 25, 27, 29, 31, 34, 36, 39, 43, 46, 50, 55, 72),
    "sciq": (15, 16, 18, 18, 19, 20, 21, 21, 22, 23, 24, 25, 27, 28, 31, 35),
    "social_iqa": (25, 26, 28, 29, 29, 30, 31, 31, 32, 33, 34, 35, 36, 38, 40, 44),
    "wic": (44, 46, 47, 48, 49, 50, 51, 52, 53, 54, 54, 55, 57, 58, 61, 68),
    "cola": (17, 18, 19, 20, 20, 20, 21, 21, 22, 23, 23, 24, 25, 26, 28, 32),
    "headqa_en": (16, 19, 21, 23, 24, 26, 27, 30, 32, 35, 37, 40, 47, 56, 75, 119),
    "nq_open": (16, 17, 18, 18, 19, 19, 20, 20, 21, 21, 22, 23, 24, 25, 26, 29),
    "gsm8k": (95, 111, 123, 132, 143, 151, 162, 174, 187, 198, 211, 220, 232, 254, 283, 349),
}
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "d": 64,
        "ff": 128,
        "layers": 3,
        "heads": 4,
        "kv": 4,
        "vocab": 600,
    },  # the zoo's 159k shape
    "135m": {"d": 576, "ff": 1536, "layers": 30, "heads": 9, "kv": 3, "vocab": 49152, "tied": 1},
    "410m": {"d": 1024, "ff": 2816, "layers": 24, "heads": 16, "kv": 16, "vocab": 50304},
    "0.5b": {"d": 896, "ff": 4864, "layers": 24, "heads": 14, "kv": 2, "vocab": 151936},
    "1.1b": {"d": 2048, "ff": 5632, "layers": 22, "heads": 32, "kv": 4, "vocab": 32000},
    "8b": {"d": 4096, "ff": 14336, "layers": 32, "heads": 32, "kv": 8, "vocab": 128256},
}
READY: Any = None  # in a process that trains one row of several: all begin together
RATES = (1e-5, 2e-5, 5e-5)
BATCH = 8


def build(shape: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Make a Llama-shaped model with random weights on the device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    s = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=s["vocab"],
        hidden_size=s["d"],
        intermediate_size=s["ff"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv"],
        max_position_embeddings=2048,
        tie_word_embeddings=bool(s.get("tied")),
    )
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def texts(shape: str, task: str, count: int) -> list[list[int]]:
    """Make random texts with the task's lengths; tiny models get the zoo's rows of about 28 tokens."""
    stream = np.random.default_rng(sum(map(ord, task)))
    if shape == "tiny":
        lengths = stream.integers(24, 33, count)
    else:
        lengths = (
            np.interp(stream.random(count), (np.arange(16) + 0.5) / 16, LENGTHS[task])
            .round()
            .astype(int)
        )
    return [stream.integers(3, SHAPES[shape]["vocab"], n).tolist() for n in lengths]


def row_of_lanes(shape: str, lanes: int, steps: int) -> list[tuple[str, LaneSpec]]:
    """Tasks × learning rates until the row is full, each lane with its task's name."""
    tasks = list(LENGTHS)
    out = []
    for n in range(lanes):
        task = tasks[(n // len(RATES)) % len(tasks)]
        data = TokenisedExamples.from_lists(texts(shape, task, BATCH * steps))
        schedule = Schedule(epochs=1, batch=BATCH, learning_rate=RATES[n % len(RATES)], loss="text")
        out.append(
            (
                task,
                LaneSpec(
                    f"{n}-{task}", data, schedule, LoraConfig(dropout=0.1, targets=None), seed=n
                ),
            )
        )
    return out


def wait(device: torch.device) -> None:
    """Let the device finish what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def with_threads(device: torch.device) -> Iterator[int]:
    """On a CPU, one thread and then all; on a GPU, as it is."""
    if device.type != "cpu":
        yield torch.get_num_threads()
        return
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        yield threads


def time_ours(
    model: Any, specs: list[LaneSpec], device: torch.device, warm: int, steps: int
) -> dict[str, float]:
    """Time whole steps of all lanes together."""
    marks: list[float] = []
    tokens: list[int] = []

    def on_step(info: Any) -> None:
        if info.step == warm:
            wait(device)
            marks.append(time.perf_counter())
        elif info.step > warm:
            tokens.append(info.tokens)

    with LaneTrainer(model) as trainer:
        trainer.train(specs, on_step=on_step, stop=lambda: len(tokens) >= steps)
        wait(device)
        took = time.perf_counter() - marks[0]
        plan = trainer.plan
        assert plan is not None
    if plan.slots < len(specs):
        raise SystemExit(
            f"only {plan.slots} of {len(specs)} lanes were in flight: the step timed is not the row's"
        )
    return {
        "step_s": took / len(tokens),
        "tokens": statistics.mean(tokens),
        "budget": plan.token_budget,
    }


def time_rows(shape: str, lanes: int, warm: int, steps: int) -> float:
    """Time a step of one row per core at the same time, each in a process of its own, as `run --workers` does."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    cores = os.cpu_count() or 1
    ready = context.Barrier(cores)
    with context.Pool(cores, initializer=_own_row, initargs=(ready,)) as pool:
        return max(pool.starmap(_time_row, [(shape, lanes, warm, steps)] * cores, chunksize=1))


def _own_row(ready: Any) -> None:
    global READY
    READY = ready


def _time_row(shape: str, lanes: int, warm: int, steps: int) -> float:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    specs = [spec for _, spec in row_of_lanes(shape, lanes, warm + steps + 1)]
    model = build(shape, device, torch.float32)
    READY.wait()
    return time_ours(model, specs, device, warm, steps)["step_s"]


def time_peer(
    model: Any, rows: list[list[int]], device: torch.device, warm: int, steps: int, grouped: bool
) -> float:
    """Time steps of Trainer + PEFT on one lane."""
    import tempfile

    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model
    from transformers import Trainer, TrainerCallback, TrainingArguments

    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (warm, warm + steps):
                wait(device)
                marks.append(time.perf_counter())

    def collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in batch)
        pad = [width - len(row["input_ids"]) for row in batch]
        return {
            "input_ids": torch.tensor(
                [row["input_ids"] + [0] * p for row, p in zip(batch, pad, strict=True)]
            ),
            "labels": torch.tensor(
                [row["input_ids"] + [-100] * p for row, p in zip(batch, pad, strict=True)]
            ),
            "attention_mask": torch.tensor(
                [[1] * len(row["input_ids"]) + [0] * p for row, p in zip(batch, pad, strict=True)]
            ),
        }

    wrapped = get_peft_model(
        model, PeftConfig(r=8, lora_alpha=32, lora_dropout=0.1, task_type="CAUSAL_LM")
    )
    options: dict[str, Any] = {"train_sampling_strategy": "group_by_length"} if grouped else {}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=warm + steps,
            per_device_train_batch_size=BATCH,
            learning_rate=2e-5,
            weight_decay=0.01,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            use_cpu=device.type == "cpu",
            logging_strategy="no",
            **options,
        )
        data = [{"input_ids": row} for row in rows]
        Trainer(
            model=wrapped,
            args=arguments,
            train_dataset=data,
            data_collator=collate,
            callbacks=[Clock()],
        ).train()
    wrapped.unload()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model.eval()
    return (marks[1] - marks[0]) / steps


def matmul_rate(device: torch.device) -> float:
    """Measure the device's bf16 matrix rate on random data, in operations per second."""
    n = 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        a @ b
    times = []
    for _ in range(5):
        wait(device)
        began = time.perf_counter()
        for _ in range(10):
            a @ b
        wait(device)
        times.append((time.perf_counter() - began) / 10)
    return 2 * n**3 / statistics.median(times)


def operations(shape: str, tokens: float) -> float:
    """Count the base model's operations per step: forward and input gradients, 4 per matrix weight and real token."""
    s = SHAPES[shape]
    attention = 2 * s["d"] ** 2 + 2 * s["d"] * s["d"] * s["kv"] // s["heads"]
    weights = s["layers"] * (attention + 3 * s["d"] * s["ff"]) + s["vocab"] * s["d"]
    return 4.0 * weights * tokens


def measure(
    shape: str,
    device: torch.device,
    lanes: list[int],
    steps: int,
    peer_steps: int,
    peers: list[str],
) -> list[dict[str, Any]]:
    """Measure one model: ours for each number of lanes, the peers once per task."""
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    fast = torch.bfloat16 if device.type == "cuda" else torch.float32
    peak = matmul_rate(device) if device.type == "cuda" else None
    model = build(shape, device, fast)
    warm = 3
    ours = {}
    for count in lanes:
        specs = [spec for _, spec in row_of_lanes(shape, count, warm + steps + 1)]
        ours[count] = min(
            (time_ours(model, specs, device, warm, steps) for _ in with_threads(device)),
            key=lambda t: t["step_s"],
        )
    needed = sorted(
        {task for count in lanes for task, _ in row_of_lanes(shape, count, 1)},
        key=list(LENGTHS).index,
    )
    if shape == "tiny":
        needed = needed[:2]
    peer_times: dict[str, dict[str, float]] = {}
    for name, dtype, grouped in (
        ("a: Trainer + PEFT, float32", torch.float32, False),
        ("a in bf16", torch.bfloat16, False),
        ("b: bf16, grouped by length", torch.bfloat16, True),
    ):
        if not any(name.startswith(peer + ":") or name == peer for peer in peers):
            continue
        model = model.to(dtype)
        peer_times[name] = {
            task: min(
                time_peer(
                    model,
                    texts(shape, task, BATCH * (warm + peer_steps)),
                    device,
                    warm,
                    peer_steps,
                    grouped,
                )
                for _ in with_threads(device)
            )
            for task in needed
        }
    results = []
    for count in lanes:
        tasks = [task for task, _ in row_of_lanes(shape, count, 1)]
        mine = ours[count]
        row: dict[str, Any] = {
            "model": shape,
            "lanes": count,
            "ours_step_s": mine["step_s"],
            "ours_lane_steps_per_s": count / mine["step_s"],
            "tokens_per_step": mine["tokens"],
            "token_budget": mine["budget"],
        }
        if device.type == "cpu":
            row["rows"] = os.cpu_count() or 1
            row["rows_step_s"] = time_rows(shape, count, warm, steps)
        if peak is not None:
            row["matmul_tflops"] = peak / 1e12
            row["share_of_matmul_rate"] = operations(shape, mine["tokens"]) / mine["step_s"] / peak
        for name, times in peer_times.items():
            mean = statistics.mean(times.values())
            total = sum(times.get(task, mean) for task in tasks)
            row[name] = {
                "row_step_s": total,
                "lane_steps_per_s": count / total,
                "ratio": total / mine["step_s"],
            }
            if "rows" in row:
                row[name]["rows_ratio"] = row["rows"] * total / row["rows_step_s"]
        results.append(row)
    return results


def tell(shape: str, repeats: Sequence[dict[str, Any]]) -> None:
    """Print one row of lanes, in the middle one of its rounds."""
    row = sorted(repeats, key=lambda r: r["ours_step_s"])[len(repeats) // 2]
    share = row.get("share_of_matmul_rate")
    extra = f", {share:.0%} of the measured {row['matmul_tflops']:.0f} TFLOP/s" if share else ""
    print(
        f"{shape}, {row['lanes']} lanes: {1000 * row['ours_step_s']:.1f} ms a step of all lanes, "
        f"{row['ours_lane_steps_per_s']:.1f} lane-steps/s, {row['tokens_per_step']:.0f} tokens{extra}"
    )
    for name in (key for key, values in row.items() if isinstance(values, dict)):
        rate = statistics.median(r[name]["lane_steps_per_s"] for r in repeats)
        print(
            f"    {name}: {rate:.2f} lane-steps/s → ours is {middle([r[name]['ratio'] for r in repeats])}"
        )
        if "rows" in row:
            ratio = middle([r[name]["rows_ratio"] for r in repeats])
            print(
                f"        {row['rows']} such rows in {row['rows']} processes, against the same one by one: {ratio}"
            )


def middle(ratios: list[float]) -> str:
    """Say the median, and the range where there are several."""
    spread = (
        f" ({min(ratios):.1f} to {max(ratios):.1f} in {len(ratios)} rounds)"
        if len(ratios) > 1
        else ""
    )
    return f"{statistics.median(ratios):.1f}×{spread}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--model",
        nargs="+",
        choices=list(SHAPES),
        help="default: tiny on a CPU, 410m and 8b on a GPU",
    )
    parser.add_argument("--lanes", nargs="+", type=int, default=[24, 72])
    parser.add_argument("--steps", type=int, default=10, help="timed steps of the whole row")
    parser.add_argument("--peer-steps", type=int, default=10, help="timed steps of each peer lane")
    parser.add_argument("--rounds", type=int, help="default: 5 on a CPU, 1 on a GPU")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    device = torch.device(options.device)
    shapes = options.model or (["tiny"] if device.type == "cpu" else ["410m", "8b"])
    everything = []
    for shape in shapes:
        peers = (
            ["a"]
            if device.type == "cpu"
            else ["a in bf16"]
            if shape == "8b"
            else ["a", "a in bf16", "b"]
        )
        rounds = [
            measure(shape, device, options.lanes, options.steps, options.peer_steps, peers)
            for _ in range(options.rounds or (5 if device.type == "cpu" else 1))
        ]
        for repeats in zip(*rounds, strict=True):
            everything.extend(repeats)
            tell(shape, repeats)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
