"""Scoring side by side: Potentia against lm-eval's HFLM, same model, same items, same run.

    python bench/scoring.py --model MODEL_FOLDER --items arc_easy.parquet --documents 300 --device cpu
    python bench/scoring.py --shape 410m --tokenizer FOLDER --items arc_easy.json --documents 2000 --device cuda
    python bench/scoring.py --architecture lfm2-1.2b --small --items arc_easy.parquet --documents 300 --device cpu

Architectures are those of ``lanes_by_architecture.py``, with random weights; ``--small`` makes them four layers of
256, and a tokenizer is trained on the items where none is named. ``--items`` is ARC in its published form: a parquet
or a JSON list with ``question`` and ``choices.text``. Prints the ratio of wall times (against HFLM with
``batch_size=auto`` and with each fixed batch size), tokens processed, where Potentia's time goes, the share of the
matmul rate measured on this machine, peak memory of both, and how far the log-likelihoods are apart. Exits 1 when a
prediction differs in float32 or when ``--at-least`` is not reached.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lanes_by_architecture import SHAPES as ARCHITECTURES
from lanes_by_architecture import make_random_model
from potentia.engine import LoadedModel, load, pick_device, pick_dtype
from potentia.engine.scoring import Scorer
from potentia.values.engine_records import ScorerNotes
from potentia.values.requests import Continuation

WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
SHAPES = {  # Llama-shaped, random weights
    "70m": (512, 2048, 6, 8, 8, 50304),
    "410m": (1024, 2816, 24, 16, 16, 50304),
    "8b": (4096, 14336, 32, 32, 8, 128256),
}


TRAINING_QUESTIONS = 2000  # of a tokenizer, where none is named
SMALL_SIZES = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 704,
    "moe_intermediate_size": 176,
    "shared_intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 8192,
    "num_kv_shared_layers": 2,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_d_state": 64,
    "num_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def questions(path: Path, count: int) -> list[tuple[str, list[str]]]:
    """Return (prompt, choices) as lm-eval's arc_easy writes them."""
    if path.suffix == ".json":
        documents = json.loads(path.read_text())
    else:
        import pandas as pd

        documents = pd.read_parquet(path).to_dict("records")
    chosen = documents[:count]
    return [
        (f"Question: {d['question']}\nAnswer:", [f" {text}" for text in d["choices"]["text"]])
        for d in chosen
    ]


def make(arguments: argparse.Namespace) -> LoadedModel:
    """Load the model, or make one of the asked shape with random weights."""
    if arguments.model:
        return load(arguments.model, device=arguments.device, dtype=arguments.dtype)
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    device = pick_device(arguments.device)
    dtype = pick_dtype(arguments.dtype, device)
    if arguments.architecture:
        sizes = SMALL_SIZES if arguments.small else {}
        model = make_random_model(arguments.architecture, sizes, str(device), dtype)
        words = find_tokenizer(arguments)
        fingerprint = f"random {arguments.architecture}"
        return LoadedModel.of(model, words, fingerprint=fingerprint)
    words = AutoTokenizer.from_pretrained(arguments.tokenizer)
    config = LlamaConfig(
        **dict(zip(WIDTHS, SHAPES[arguments.shape], strict=True)),
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
    )
    torch.manual_seed(0)
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(before)
    return LoadedModel.of(model.eval(), words, fingerprint=f"random {arguments.shape}")


def find_tokenizer(arguments: argparse.Namespace) -> Any:
    """Return the tokenizer that is named, or one trained on the items."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if arguments.tokenizer:
        return AutoTokenizer.from_pretrained(arguments.tokenizer)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SMALL_SIZES["vocab_size"],
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    items = questions(arguments.items, TRAINING_QUESTIONS)
    raw.train_from_iterator([prompt + "".join(choices) for prompt, choices in items], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


class Clock:
    """Wall time and peak memory of a block, with the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def __enter__(self) -> Clock:
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.held = torch.cuda.memory_allocated()
        self.began, self.worked = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        if self.cuda:
            torch.cuda.synchronize()
        self.seconds, self.work = (
            time.perf_counter() - self.began,
            time.process_time() - self.worked,
        )
        if self.cuda:
            self.memory = (torch.cuda.max_memory_allocated() - self.held) / 2**30
        else:
            self.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of one large matrix product here."""
    size = 8192 if device.type == "cuda" else 1536
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(8):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def stages(loaded: LoadedModel, requests: list[Continuation]) -> dict[str, float]:
    """Time the parts of one scoring run one after the other, waiting for the device after each."""
    from potentia.engine.layers.prefix_tree import ScoredSequence, group_rows
    from potentia.engine.scoring.request_sums import RequestSums
    from potentia.engine.scoring.scorer import MASK_CELLS
    from potentia.values.scoring_route import ScoringRoute

    def now() -> float:
        if loaded.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    scorer = Scorer(loaded)
    loaded.__dict__.pop("encoder", None)
    spent: dict[str, float] = {}
    began = now()
    pairs = loaded.encoder.continuations([(r.context, r.continuation) for r in requests])
    sequences = [ScoredSequence(i, a + b, len(b)) for i, (a, b) in enumerate(pairs)]
    spent["tokenise"] = now() - began
    began = now()
    rows = scorer._pack(sequences, ScoringRoute.TREE)
    groups = list(group_rows(rows, scorer.token_budget, MASK_CELLS[loaded.device.type]))
    spent["pack"] = now() - began
    sums = RequestSums(len(requests))
    sums.expect(sequences)
    network, body, head = scorer.network, 0.0, 0.0
    run, logits = network.run_body, network.compute_logits

    def timed_run(**inputs: Any) -> Any:
        nonlocal body
        began = now()
        out = run(**inputs)
        body += now() - began
        return out

    def timed_logits(hidden: torch.Tensor) -> torch.Tensor:
        nonlocal head
        began = now()
        out = logits(hidden)
        head += now() - began
        return out

    network.run_body, network.compute_logits = timed_run, timed_logits
    began = now()
    with network.evaluating():
        for group in groups:
            sums.collect(network.score_rows(group), group)
        sums.drain()
    total = now() - began
    spent |= {"body": body, "head": head, "masks, gather, transfer": total - body - head}
    return spent


def answers(items: list[tuple[str, list[str]]], values: list[float]) -> list[int]:
    """Return the likeliest choice of each question."""
    answered, start = [], 0
    for _, choices in items:
        span = values[start : start + len(choices)]
        answered.append(span.index(max(span)))
        start += len(choices)
    return answered


def truth(
    loaded: LoadedModel, items: list[Any], ours: list[Any], theirs: list[Any]
) -> dict[str, Any]:
    """Compare both with the same weights in float32, since rounding to bfloat16 moves either."""
    requests = [Continuation(prompt, choice) for prompt, choices in items for choice in choices]
    exact = LoadedModel.of(loaded.model.float(), loaded.tokenizer, fingerprint="float32")
    right = [entry.logprob for entry in Scorer(exact).loglikelihood(requests)]
    figures = {}
    for name, values in (
        ("potentia", [e.logprob for e in ours]),
        ("HFLM", [value for value, _ in theirs]),
    ):
        apart = sum(abs(a - b) for a, b in zip(values, right, strict=False)) / len(right)
        differ = sum(
            a != b for a, b in zip(answers(items, values), answers(items, right), strict=True)
        )
        print(
            f"against float32: {name} is off by {apart:.3f} on average, {differ} of {len(items)} answers differ"
        )
        figures[f"{name} against float32"] = {"apart": apart, "differ": differ}
    return figures


def _count_rows(notes: ScorerNotes) -> str:
    """Return how many rows took each route."""
    return ", ".join(f"{rows} {route.value}" for route, rows in notes.rows_by_route.items())


def main() -> int:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder, Hub name or .gguf file")
    parser.add_argument(
        "--shape", choices=sorted(SHAPES), help="random weights of this shape instead"
    )
    parser.add_argument(
        "--architecture", choices=list(ARCHITECTURES), help="random weights of this structure"
    )
    parser.add_argument("--small", action="store_true", help="in small, for a processor")
    parser.add_argument("--tokenizer", help="tokenizer folder, for random weights")
    parser.add_argument("--items", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--batches", nargs="*", default=["auto", "16", "64"], help="HFLM batch sizes to run"
    )
    parser.add_argument(
        "--repeat", type=int, default=2, help="runs of Potentia; the best counts, HFLM likewise"
    )
    parser.add_argument("--threads", type=int, help="torch threads on a CPU")
    parser.add_argument(
        "--at-least", type=float, default=0.0, help="fail below this ratio to HFLM's best"
    )
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)

    items = questions(arguments.items, arguments.documents)
    requests = [Continuation(prompt, choice) for prompt, choices in items for choice in choices]
    loaded = make(arguments)
    parameters = sum(weight.numel() for weight in loaded.model.parameters())
    print(
        f"{parameters / 1e6:.0f}M parameters, {loaded.device}, {loaded.dtype}, {torch.get_num_threads()} threads; "
        f"{len(items)} documents, {len(requests)} continuations"
    )

    figures: dict[str, Any] = {"parameters": parameters, "documents": len(items)}
    Scorer(loaded).loglikelihood(requests[:64])  # warm up: kernels are chosen, the path is checked
    ours = None
    for _ in range(arguments.repeat):
        loaded.__dict__.pop("encoder", None)  # tokenise anew
        scorer = Scorer(loaded)
        with Clock(loaded.device) as clock:
            results = scorer.loglikelihood(requests)
        if ours is None or clock.seconds < ours.seconds:
            ours = clock
    assert ours is not None
    notes = scorer.notes
    print(
        f"potentia: {ours.seconds:.2f} s (CPU {ours.work:.2f} s), "
        f"{notes.tokens_processed} of {notes.tokens_requested} tokens "
        f"({_count_rows(notes)}, budget {notes.token_budget}), peak {ours.memory:.2f} GiB"
    )
    spent = stages(loaded, requests)
    print(
        "  where the time goes: "
        + ", ".join(f"{name} {value:.2f} s" for name, value in spent.items())
    )
    rate = matmul_rate(loaded.device, loaded.dtype)
    embedding = loaded.model.get_input_embeddings().weight.numel()
    work = 2 * (parameters - embedding) * notes.tokens_processed
    print(
        f"  matmul here {rate / 1e12:.2f} TFLOP/s; the body's products at {work / spent['body'] / rate:.0%} of it, "
        f"the whole run at {work / ours.seconds / rate:.0%}"
    )

    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    best: float | None = None
    least: float | None = None
    failed = False
    for size in arguments.batches:
        harness = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=size)
        calls = [
            Instance("loglikelihood", {}, (r.context, r.continuation), i)
            for i, r in enumerate(requests)
        ]
        harness.loglikelihood(calls[:64], disable_tqdm=True)
        theirs_clock = None
        for _ in range(arguments.repeat if loaded.device.type == "cuda" else 1):
            with Clock(loaded.device) as clock:
                theirs = harness.loglikelihood(calls, disable_tqdm=True)
            if theirs_clock is None or clock.seconds < theirs_clock.seconds:
                theirs_clock = clock
        assert theirs_clock is not None
        seconds = theirs_clock.seconds
        best = min(seconds, best or seconds)
        least = min(theirs_clock.work, least or theirs_clock.work)
        apart = max(abs(a.logprob - b[0]) for a, b in zip(results, theirs, strict=True))
        mine, theirs_logprobs = [entry.logprob for entry in results], [value for value, _ in theirs]
        differ = sum(
            a != b
            for a, b in zip(answers(items, mine), answers(items, theirs_logprobs), strict=True)
        )
        failed |= differ > 0 and loaded.dtype == torch.float32
        print(
            f"HFLM batch_size={size}: {seconds:.2f} s (CPU {theirs_clock.work:.2f} s), peak {clock.memory:.2f} GiB; "
            f"{seconds / ours.seconds:.2f}× potentia's time; "
            f"log-likelihoods within {apart:.1e}, {differ} of {len(items)} answers differ"
        )
        figures[f"hflm {size}"] = {
            "seconds": seconds,
            "ratio": seconds / ours.seconds,
            "memory": clock.memory,
            "apart": apart,
            "differ": differ,
        }
    if loaded.dtype != torch.float32 and arguments.batches:
        figures |= truth(loaded, items[:200], results, theirs)
    figures |= {
        "seconds": ours.seconds,
        "memory": ours.memory,
        "stages": spent,
        "notes": replace(notes, prompt_samples=()).to_dict(),
    }
    if best is not None and least is not None:
        figures["ratio to the best"] = best / ours.seconds
        figures["ratio of CPU time"] = least / ours.work
        print(
            f"ratio to HFLM's best: {best / ours.seconds:.2f}× in wall time, {least / ours.work:.2f}× in CPU time"
        )
        failed |= best / ours.seconds < arguments.at_least
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
