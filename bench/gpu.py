"""Everything that is claimed of a GPU, checked and measured in a few minutes, in stages that can be chosen.

    python bench/gpu.py --quick                          # right or wrong, and the first row of the table
    python bench/gpu.py                                  # all of it
    python bench/gpu.py --only lanes-410m peers          # some of it
    python bench/gpu.py --device cpu --tiny              # tries the script itself, in half a minute

Random weights of the right shapes, lengths of real questions; ``--carry`` names a folder with ``tokenizer/``,
``arc_easy.json`` (a list with ``question`` and ``choices.text``), ``gsm8k.json`` (a list of questions) and, where the
machine lacks packages, ``site/`` with them. ``--pack DATA TOKENIZER`` writes the first three. Each stage runs in a
process of its own, with a limit of its own, so that one that fails or hangs takes nothing else along; what it finds is
appended to ``--out`` line by line as JSON. The last lines are a table.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import gc
import itertools
import json
import logging
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "PYTORCH_NVML_BASED_CUDA_CHECK", "1"
)  # so that asking for a GPU spoils no fork
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
NO_FORK = 77  # the exit status of a stage that finds no GPU in a forked process


@dataclass(frozen=True)
class Bench:
    """What a stage knows: where it runs, how small, where results go."""

    device: str
    tiny: bool
    quick: bool
    carry: Path
    out: Path
    stage: str = ""
    limit: float = 0.0

    def shape(self, name: str) -> str:
        """Return the shape to build for one that the table names."""
        return "tiny" if self.tiny else name

    def tell(self, **facts: Any) -> None:
        """Keep a result, and print it."""
        facts = {"stage": self.stage, **facts}
        with self.out.open("a") as lines:
            lines.write(json.dumps(facts, default=str) + "\n")
        shown_facts = {
            key: round(value, 5) if isinstance(value, float) else value
            for key, value in facts.items()
        }
        print(json.dumps(shown_facts, default=str)[:1500], flush=True)


# ---- lanes ----------------------------------------------------------------------------------------------------------


def lanes_135m(bench: Bench) -> None:
    """Rows of 12 lanes, and of 24."""
    measure_rows(bench, "135m", [12, 24], warm=40, steps=60)


def lanes_410m(bench: Bench) -> None:
    """Rows of 24 lanes and of 72."""
    measure_rows(bench, "410m", [24, 72], warm=30, steps=40)


def lanes_8b(bench: Bench) -> None:
    """A row of 72 lanes."""
    measure_rows(bench, "8b", [72], warm=2, steps=4)


STUDY = (
    *("arc_easy", "arc_challenge", "openbookqa", "commonsense_qa", "social_iqa", "headqa_en"),
    *("sciq", "piqa", "winogrande", "boolq", "mrpc", "cola"),
)


def study_rows(bench: Bench) -> None:
    """Rows of 24 lanes as a study trains them: 12 tasks, two rates, all linear layers, losses of answers."""
    import torch

    import lanes
    from potentia.engine.training import LaneSpec, LoraConfig, Schedule, TokenisedExamples

    device = torch.device(bench.device)
    cuda, batch = device.type == "cuda", 2 if bench.tiny else 16
    warm, steps = (2, 2) if bench.tiny else (20, 20)
    for name in ("0.5b", "1.1b"):
        shape = bench.shape(name)
        specs = []
        for task in STUDY:
            texts = lanes.texts(shape, task, batch * (warm + steps + 6))
            data = TokenisedExamples.from_lists(texts, [max(1, len(text) - 4) for text in texts])
            for rate in (2e-4, 1e-3):
                schedule = Schedule(epochs=1, batch=batch, learning_rate=rate, loss="completion")
                lora = LoraConfig(dropout=0.0, targets=("all-linear",))
                specs.append(LaneSpec(f"{task} {rate}", data, schedule, lora, seed=0))
        model = lanes.build(shape, device, torch.bfloat16 if cuda else torch.float32)
        timing = time_row(model, specs, device, warm, steps, may_pack=None, profiled=cuda)
        bench.tell(what="study row", model=name, lanes=len(specs), **timing)
        del model
        gc.collect()


def measure_rows(bench: Bench, name: str, counts: list[int], *, warm: int, steps: int) -> None:
    """Time rows of lanes, and tell where the device's time goes."""
    import torch

    import lanes

    device = torch.device(bench.device)
    cuda = device.type == "cuda"
    if bench.tiny:
        warm, steps = 3, 4
    peak = lanes.matmul_rate(device) if cuda else None
    model = lanes.build(bench.shape(name), device, torch.bfloat16 if cuda else torch.float32)
    for count in counts:
        for may_pack in (None, False) if name != "8b" and not bench.quick else (None,):
            short = may_pack is False
            w, s = (5, 8) if short and not bench.tiny else (warm, steps)
            specs = [spec for _, spec in lanes.row_of_lanes(bench.shape(name), count, w + s + 6)]
            timing = time_row(
                model, specs, device, w, s, may_pack=may_pack, profiled=cuda and not short
            )
            if peak is not None:
                work = lanes.operations(bench.shape(name), timing["tokens"])
                timing |= {"matmul_tflops": peak / 1e12, "share": work / timing["step_s"] / peak}
            form = "one operation at a time" if short else "static"
            bench.tell(
                what="lanes",
                model=name,
                lanes=count,
                form=form,
                rate=count / timing["step_s"],
                **timing,
            )


def time_row(
    model: Any,
    specs: list[Any],
    device: Any,
    warm: int,
    steps: int,
    *,
    may_pack: bool | None,
    profiled: bool,
) -> dict[str, Any]:
    """Time steps of all lanes together, then look at three more with the profiler."""
    import torch

    import lanes
    from potentia.engine.training import LaneTrainer

    marks: list[float] = []
    tokens: list[int] = []
    timing: dict[str, Any] = {}
    profiler: Any = None
    began = time.perf_counter()

    def on_step(info: Any) -> None:
        nonlocal profiler
        if warm <= info.step <= warm + steps:
            if info.step in (warm, warm + steps):
                lanes.wait(device)
                timing[f"captured at {info.step}"] = getattr(run().stepper, "capture_count", None)
            marks.append(time.perf_counter())
            if info.step > warm:
                tokens.append(info.tokens)
        if profiled and info.step == warm + steps:
            try:
                profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
                profiler.start()
            except RuntimeError as error:
                timing["profiler"], profiler = str(error)[:200], None
            timing["profile_s"] = -time.perf_counter()
        if profiler is not None and info.step == warm + steps + 3:
            lanes.wait(device)
            timing["profile_s"] += time.perf_counter()
            profiler.stop()

    with LaneTrainer(model, may_pack=may_pack) as trainer:

        def run() -> Any:
            return trainer.run_under_way

        last = warm + steps + (3 if profiled else 0)
        trainer.train(specs, on_step=on_step, stop=lambda: run() is not None and run().step >= last)
        lanes.wait(device)
        taken = run().stepper
        plan = trainer.plan
        assert plan is not None
        form = getattr(getattr(taken, "packed_pass", None), "blocks", None)
        timing |= {
            "steps": type(taken).__name__,
            "layers": "by hand" if form is not None else "own",
            "captured": getattr(taken, "capture_count", None),
            "replayed": getattr(taken, "replay_count", None),
            "capturing": getattr(taken, "may_capture", None),
            "budget": plan.token_budget,
        }
        if plan.slots < len(specs):
            timing["warning"] = f"only {plan.slots} of {len(specs)} lanes were in flight"
    gaps = [b - a for a, b in itertools.pairwise(marks)]
    timing |= {
        "step_s": (marks[-1] - marks[0]) / len(gaps),
        "longest_gap_s": max(gaps),
        "median_gap_s": statistics.median(gaps),
        "tokens": statistics.mean(tokens),
        "all_s": time.perf_counter() - began,
    }
    if device.type == "cuda":
        timing["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    if profiler is not None:
        timing["kernels"], timing["busy"] = kernels_of(profiler, timing["profile_s"])
    return timing


def kernels_of(profiler: Any, seconds: float) -> tuple[list[str], float]:
    """List the kernels that took longest, in milliseconds, and the share of the time in which one ran."""
    events = [
        (getattr(e, "self_device_time_total", 0) / 1000, e.count, e.key)
        for e in profiler.key_averages()
    ]
    events = sorted((event for event in events if event[0] > 0), reverse=True)
    total = sum(event[0] for event in events)
    return [f"{ms:.2f} ms, {n}×: {key[:90]}" for ms, n, key in events[:28]], total / 1000 / max(
        seconds, 1e-9
    )


# ---- writing and scoring --------------------------------------------------------------------------------------------


def make_loaded(bench: Bench, name: str, dtype: str | None = None) -> Any:
    """Make a model with random weights that reads and writes with the carried tokenizer."""
    import torch
    from transformers import AutoTokenizer

    import lanes
    from potentia.engine import LoadedModel

    words = AutoTokenizer.from_pretrained(str(bench.carry / "tokenizer"))
    words.pad_token = words.pad_token or words.eos_token
    device = torch.device(bench.device)
    kind = getattr(torch, dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    shape = bench.shape(name)
    before = dict(lanes.SHAPES[shape])
    lanes.SHAPES[shape] = {**before, "vocab": len(words), "tied": 0}
    try:
        model = lanes.build(shape, device, kind)
    finally:
        lanes.SHAPES[shape] = before
    # tokens that count and attention that chooses among them, else random weights soon repeat themselves; and no more
    # than that, else they enlarge every rounding, and two right ways to write part after a few tokens
    with torch.no_grad():
        sharp = 4 * (576 / model.config.hidden_size) ** 0.5
        model.model.embed_tokens.weight.mul_(8)
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(sharp)
            layer.self_attn.k_proj.weight.mul_(sharp)
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.pad_token_id = words.pad_token_id
    return LoadedModel.of(model, words, fingerprint=f"random {shape}")


def find_stop(words: Any, share: float) -> str:
    """Return a text that about this share of all tokens contain: with random weights, texts end at that rate."""
    tokens = words.batch_decode([[i] for i in range(len(words))])
    counts: dict[str, int] = {}
    for token in tokens:
        for piece in {token[i : i + 2] for i in range(len(token) - 1)}:
            if piece.isalpha() and piece.isascii():
                counts[piece] = counts.get(piece, 0) + 1
    return min(sorted(counts), key=lambda piece: abs(counts[piece] - share * len(tokens)))


def problems(bench: Bench) -> list[str]:
    """Return gsm8k's questions as lm-eval asks them."""
    return [
        f"Question: {text}\nAnswer:"
        for text in json.loads((bench.carry / "gsm8k.json").read_text())
    ]


@contextlib.contextmanager
def phases() -> Iterator[dict[str, list[float]]]:
    """Add up the calls of the parts of writing and the host's seconds in them."""
    from potentia.engine.layers import network
    from potentia.engine.proof import scoring_check
    from potentia.engine.scoring import continuous, decoding, generate

    parts = [
        *(
            (continuous.Seats, name)
            for name in ("seat_prompts", "step", "_compute_step", "_capture_step", "move_texts")
        ),
        (continuous.ContinuousLoop, "_send_tokens"),
        (network.SentTensors, "read"),
        (scoring_check.ScoringCheck, "can_write"),
        (decoding.Endings, "table_of_last_tokens"),
        *(
            (generate.TextWriter, name)
            for name in ("_decode", "_make_draft", "_write_by_loop", "_write_by_model")
        ),
    ]
    spent: dict[str, list[float]] = {}

    def timed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*arguments, **named)
            finally:
                entry = spent.setdefault(name, [0, 0.0])
                entry[0] += 1
                entry[1] = round(entry[1] + time.perf_counter() - began, 6)

        return call

    originals = [(home, name, getattr(home, name)) for home, name in parts]
    try:
        for home, name, original in originals:
            setattr(home, name, timed(name, original))
        yield spent
    finally:
        for home, name, original in originals:
            setattr(home, name, original)


def clock(device: str, work: Callable[[], Any]) -> tuple[float, Any]:
    """Time a piece of work to the device's end of it."""
    import torch

    import lanes

    lanes.wait(torch.device(device))
    began = time.perf_counter()
    result = work()
    lanes.wait(torch.device(device))
    return time.perf_counter() - began, result


def generation(bench: Bench) -> None:
    """Write answers to gsm8k's questions, to the limit and with stops, beside HFLM with several batch sizes."""
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from potentia.engine.scoring import Scorer
    from potentia.values.requests import Generation

    seconds, loaded = clock(bench.device, lambda: make_loaded(bench, "410m"))
    bench.tell(what="note", note="loaded", seconds=seconds)
    count, max_tokens = (12, 16) if bench.tiny else (1024, 256)
    texts = problems(bench)
    prompts = [texts[i % len(texts)] for i in range(count)]
    stop = find_stop(loaded.tokenizer, 1 / 130)
    scorer = Scorer(loaded, continuous=True)
    forms = [("stops", (stop,)), ("to the limit", ("Question:",))]
    ours: dict[str, tuple[float, list[str]]] = {}
    for form, until in forms:
        requests = [Generation(text, until, max_tokens) for text in prompts]
        times = []
        for _ in range(2):
            with phases() as spent:
                seconds, written = clock(bench.device, lambda r=requests: scorer.generate(r))
            times.append(seconds)
        lengths = [len(loaded.tokenizer.encode(text)) for text in written]
        ours[form] = min(times), written
        bench.tell(
            what="generation ours",
            form=form,
            stop=until[0],
            seconds=min(times),
            first_s=times[0],
            texts=count,
            mean_tokens=statistics.mean(lengths),
            per_s=sum(lengths) / min(times),
            writing=list(scorer.notes.writing),
            fallbacks=list(scorer.notes.fallbacks),
            distinct=len(set(written)),
            phases=spent,
        )
    gc.collect()
    if bench.device == "cuda":
        torch.cuda.empty_cache()
    sizes = {
        "stops": [4, 12] if bench.tiny else [1024, 512, 256],
        "to the limit": [12] if bench.tiny else [1024, 512],
    }
    for size, (form, until) in itertools.product(
        [4, 12] if bench.tiny else [1024, 512, 256], forms
    ):
        if size not in sizes[form] or (bench.quick and size < 512):
            continue
        keywords = {"until": list(until), "max_gen_toks": max_tokens, "do_sample": False}
        harness = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=size)
        calls = [
            Instance("generate_until", {}, (text, dict(keywords)), i, ("gsm8k", i, 1))
            for i, text in enumerate(prompts)
        ]
        try:
            seconds, theirs = clock(
                bench.device, lambda h=harness, c=calls: h.generate_until(c, disable_tqdm=True)
            )
        except torch.OutOfMemoryError as error:
            bench.tell(what="generation HFLM", form=form, batch=size, error=str(error)[:200])
            torch.cuda.empty_cache()
            continue
        took, written = ours[form]
        same = sum(a == b for a, b in zip(written, theirs, strict=True)) / count
        begins = sum(a[:24] == b[:24] for a, b in zip(written, theirs, strict=True)) / count
        bench.tell(
            what="generation HFLM",
            form=form,
            batch=size,
            seconds=seconds,
            ratio=seconds / took,
            same=same,
            begins=begins,
        )


def scoring_8b(bench: Bench) -> None:
    """The same with 8 B parameters, a quarter of the questions and the batches that fit."""
    scoring(bench, "8b", 500, [16, 64, 128])


def scoring(
    bench: Bench,
    name: str = "410m",
    documents: int = 2000,
    sizes: Sequence[int] = (64, 128, 256, 512),
) -> None:
    """Score arc_easy beside HFLM with several batch sizes, by hand-written layers and by the model's own."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from potentia.engine.scoring import Scorer
    from potentia.values.plain import to_plain
    from potentia.values.requests import Continuation
    from scoring import answers, questions

    loaded = make_loaded(bench, name)
    items = questions(bench.carry / "arc_easy.json", 40 if bench.tiny else documents)
    requests = [Continuation(prompt, choice) for prompt, choices in items for choice in choices]
    logprobs_by_form: dict[bool, list[float]] = {}
    for by_hand in (False, True):
        Scorer(loaded, fused=by_hand).loglikelihood(requests[:64])
        times = []
        for _ in range(1 if bench.tiny else 5):
            loaded.__dict__.pop("encoder", None)  # tokenise anew
            scorer = Scorer(loaded, fused=by_hand)
            seconds, ours = clock(bench.device, lambda s=scorer: s.loglikelihood(requests))
            times.append(seconds)
        logprobs_by_form[by_hand] = [entry.logprob for entry in ours]
        notes = replace(scorer.notes, prompt_samples=())
        bench.tell(
            what="scoring ours",
            model=name,
            layers=notes.layers,
            seconds=min(times),
            all_s=times,
            documents=len(items),
            notes=notes.to_dict(),
            checks=to_plain(loaded.record.scoring),
            apart_from_own=max(
                abs(a - b)
                for a, b in zip(logprobs_by_form[by_hand], logprobs_by_form[False], strict=True)
            ),
        )
    mine = answers(items, logprobs_by_form[True])
    for size in [8] if bench.tiny else sizes[1:3] if bench.quick else sizes:
        harness = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=size)
        calls = [
            Instance("loglikelihood", {}, (r.context, r.continuation), i)
            for i, r in enumerate(requests)
        ]
        harness.loglikelihood(calls[:64], disable_tqdm=True)
        seconds, theirs = clock(
            bench.device, lambda h=harness, c=calls: h.loglikelihood(c, disable_tqdm=True)
        )
        apart = max(abs(a.logprob - b[0]) for a, b in zip(ours, theirs, strict=True))
        differ = sum(
            a != b for a, b in zip(mine, answers(items, [v for v, _ in theirs]), strict=True)
        )
        bench.tell(
            what="scoring HFLM",
            model=name,
            batch=size,
            seconds=seconds,
            ratio=seconds / min(times),
            apart=apart,
            differ=differ,
        )


def vllm_peer(bench: Bench) -> None:
    """Score the same questions by lm-eval with vLLM; run this stage alone, where vLLM's own packages come first."""
    import importlib.util
    import tempfile

    if importlib.util.find_spec("vllm") is None:
        bench.tell(what="note", note="vLLM is not installed")
        return

    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.models.vllm_causallms import VLLM

    from scoring import questions

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    items = questions(bench.carry / "arc_easy.json", 40 if bench.tiny else 2000)
    with tempfile.TemporaryDirectory() as folder:
        loaded = make_loaded(bench, "410m")
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        del loaded
        gc.collect()
        torch.cuda.empty_cache()
        for cached in (False, True):
            harness = VLLM(
                pretrained=folder,
                dtype="bfloat16",
                batch_size="auto",
                max_model_len=1024,
                gpu_memory_utilization=0.6,
                enable_prefix_caching=cached,
                enforce_eager=bench.quick,  # compiling takes a minute
            )
            calls = [
                Instance("loglikelihood", {}, (prompt, choice), i)
                for i, (prompt, choice) in enumerate(
                    (p, c) for p, choices in items for c in choices
                )
            ]
            harness.loglikelihood(calls[:64], disable_tqdm=True)
            seconds, _ = clock(
                bench.device, lambda h=harness, c=calls: h.loglikelihood(c, disable_tqdm=True)
            )
            bench.tell(
                what="scoring vLLM",
                model="410m",
                prefix_caching=cached,
                eager=bench.quick,
                seconds=seconds,
                documents=len(items),
            )
            if bench.quick:
                break
            del harness
            gc.collect()
            torch.cuda.empty_cache()


# ---- stages ---------------------------------------------------------------------------------------------------------


def checks(name: str) -> Callable[[Bench], None]:
    """Return a stage of ``gpu_checks``, which is read when it runs."""

    def stage(bench: Bench) -> None:
        import gpu_checks

        getattr(gpu_checks, name)(bench)

    return stage


def large(bench: Bench) -> None:
    """Models over several devices, and in few bits."""
    import gpu_large

    gpu_large.large(bench)


def peers(bench: Bench) -> None:
    """Several PEFT trainings at once, as many as help."""
    import gpu_peers

    gpu_peers.peers(bench)


def sharing(bench: Bench) -> None:
    """Six rows at once, in turns and side by side."""
    import gpu_peers

    gpu_peers.sharing(bench)


def treated(bench: Bench) -> None:
    """One lane of mixed tasks, alone and beside rows of lanes."""
    import gpu_peers

    gpu_peers.treated(bench)


def tests(bench: Bench) -> None:
    """Run the repository's own tests of these parts on this device."""
    files = ["tune/test_kernels.py", "tune/test_lanes_cuda.py", "tune/test_static.py"]
    names = [
        str(HERE.parent / "tests" / "engine" / file) for file in files[: 1 if bench.tiny else None]
    ]
    path = os.pathsep.join([str(HERE.parent / "src"), str(HERE.parent / "tests"), *sys.path])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x" if bench.tiny else "--maxfail=8",
            "-p",
            "no:cacheprovider",
            *names,
        ],
        cwd=HERE.parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    bench.tell(what="tests", status=done.returncode, output=(done.stdout + done.stderr)[-6000:])


STAGES: dict[str, tuple[Callable[[Bench], None], int]] = {  # and each one's limit in seconds
    "captures": (checks("captures"), 60),
    "kernels": (checks("kernels"), 150),
    "passes": (checks("passes"), 90),
    "lanes-135m": (lanes_135m, 100),
    "peft": (checks("peft"), 60),
    "seats": (checks("seats"), 90),
    "large": (large, 180),
    "lanes-410m": (lanes_410m, 110),
    "lanes-8b": (lanes_8b, 110),
    "study-rows": (study_rows, 110),
    "generation": (generation, 200),
    "scoring": (scoring, 120),
    "scoring-8b": (scoring_8b, 120),
    "vllm": (vllm_peer, 150),
    "sharing": (sharing, 110),
    "treated": (treated, 90),
    "peers": (peers, 260),
    "tests": (tests, 150),
}
UNTOUCHED = {
    "sharing",
    "treated",
    "peers",
    "tests",
}  # stages that leave the GPU to processes of their own
QUICK = ["captures", "kernels", "passes", "lanes-135m", "peft", "seats"]


def run_stage(bench: Bench, *, forked: bool) -> None:
    """Run one stage in this process."""
    import torch

    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", force=True)
    for noisy in ("lm_eval", "httpx", "transformers", "accelerate", "torch", "filelock"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    for telling in (
        "tune.captured",
        "score.slots",
    ):  # why something cannot be captured, to the line
        logging.getLogger(f"potentia.engine.{telling}").setLevel(logging.DEBUG)
    if bench.limit > 5:
        faulthandler.dump_traceback_later(bench.limit - 3, exit=False)  # where it hangs
    if bench.device == "cuda" and bench.stage not in UNTOUCHED:
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except RuntimeError:
            if forked:
                os._exit(NO_FORK)
            raise
        torch.backends.cuda.enable_cudnn_sdp(False)  # it compiles a plan for every new shape
    began = time.perf_counter()
    try:
        STAGES[bench.stage][0](bench)
    except BaseException as error:
        traceback.print_exc()
        bench.tell(
            error=f"{type(error).__name__}: {error}"[:500], trace=traceback.format_exc()[-3000:]
        )
        sys.stdout.flush()
        os._exit(1)
    bench.tell(what="done", seconds=time.perf_counter() - began)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_apart(bench: Bench, limit: float) -> str:
    """Run a stage in a process of its own: a copy of this one, or a fresh one where a copy finds no GPU."""

    def child() -> None:
        os.setsid()
        run_stage(bench, forked=True)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    began = time.monotonic()
    process.join(limit)
    if process.is_alive():
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return f"stopped at its limit of {limit:.0f} s"
    if process.exitcode == NO_FORK:
        options = [*(["--tiny"] if bench.tiny else []), *(["--quick"] if bench.quick else [])]
        command = [
            sys.executable,
            __file__,
            "--inline",
            "--only",
            bench.stage,
            "--device",
            bench.device,
            "--carry",
            str(bench.carry),
            "--out",
            str(bench.out),
            *options,
        ]
        with subprocess.Popen(command, start_new_session=True) as fresh:
            try:
                fresh.wait(limit - (time.monotonic() - began))
            except subprocess.TimeoutExpired:
                os.killpg(fresh.pid, signal.SIGKILL)
                return f"stopped at its limit of {limit:.0f} s"
            return "done" if fresh.returncode == 0 else f"failed ({fresh.returncode})"
    return "done" if process.exitcode == 0 else f"failed ({process.exitcode})"


def pack(data: Path, tokenizer: str, carry: Path) -> None:
    """Write what the stages read: a tokenizer, arc_easy's items, gsm8k's questions."""
    import pandas as pd
    from transformers import AutoTokenizer

    carry.mkdir(parents=True, exist_ok=True)
    options = {"gguf_file": Path(tokenizer).name} if tokenizer.endswith(".gguf") else {}
    folder = str(Path(tokenizer).parent) if options else tokenizer
    AutoTokenizer.from_pretrained(folder, **options).save_pretrained(str(carry / "tokenizer"))
    arc = pd.read_parquet(data / "benchmarks" / "allenai--ai2_arc" / "ARC-Easy" / "test.parquet")
    items = [
        {"question": row["question"], "choices": {"text": list(row["choices"]["text"])}}
        for row in arc.to_dict("records")
    ]
    (carry / "arc_easy.json").write_text(json.dumps(items))
    gsm = pd.read_parquet(data / "benchmarks" / "openai--gsm8k" / "main" / "test.parquet")
    (carry / "gsm8k.json").write_text(json.dumps(gsm["question"].tolist()))


def table(lines: list[dict[str, Any]]) -> None:
    """Print what the results come to."""

    def some(**settings: Any) -> list[dict[str, Any]]:
        return [
            line for line in lines if all(line.get(key) == value for key, value in settings.items())
        ]

    print("\n== wrong or missing")
    for line in lines:
        if "error" in line or line.get("right") is False:
            print(
                "  ", json.dumps({k: v for k, v in line.items() if k != "trace"}, default=str)[:400]
            )
    print("== lanes")
    for line in some(what="lanes"):
        share = f", {line['share']:.0%} of the matmul rate" if "share" in line else ""
        print(
            f"  {line['model']}, {line['lanes']} lanes, {line['form']} ({line['layers']}): {1000 * line['step_s']:.1f} "
            f"ms, {line['rate']:.0f} lane-steps/s, {line['tokens'] / line['step_s']:.0f} tokens/s{share}"
        )
        rates = [peer["rate"] for peer in some(what="peer", model=line["model"])]
        if rates and line["form"] == "static":
            print(
                f"      {line['rate'] / max(rates):.1f}× the best peer ({max(rates):.1f} lane-steps/s)"
            )
    for line in some(what="sharing"):
        if "ratio" in line:
            print(f"  six rows side by side: {line['ratio']:.2f}× six rows in turns")
    for kind in ("generation", "scoring"):
        for line in some(what=f"{kind} ours"):
            lines_of_peer = some(
                what=f"{kind} HFLM", form=line.get("form"), model=line.get("model")
            )
            best = min(
                (
                    line_of_peer["seconds"]
                    for line_of_peer in lines_of_peer
                    if "seconds" in line_of_peer
                ),
                default=None,
            )
            ratio = f", {best / line['seconds']:.1f}× HFLM's best ({best:.1f} s)" if best else ""
            which = line.get("form") or f"{line.get('model')}, {line.get('layers')}"
            print(f"  {kind} {which}: {line['seconds']:.3f} s{ratio}")


def main() -> None:
    """Run the stages asked for, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, to try the script")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--only", nargs="+", choices=list(STAGES))
    parser.add_argument("--without", nargs="+", choices=list(STAGES), default=[])
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="begin no stage after this, cut the last one"
    )
    parser.add_argument("--carry", type=Path, default=HERE.parent / "carry")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", "out")) / "gpu.jsonl"
    )
    parser.add_argument(
        "--pack", nargs=2, metavar=("DATA", "TOKENIZER"), help="write what --carry holds, and end"
    )
    parser.add_argument("--inline", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pack:
        pack(Path(options.pack[0]), options.pack[1], options.carry)
        return
    began = time.monotonic()
    sys.path.append(str(options.carry.resolve() / "site"))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(
        options.device, options.tiny, options.quick, options.carry.resolve(), options.out.resolve()
    )
    names = [
        n
        for n in options.only or (QUICK if options.quick else list(STAGES))
        if n not in options.without
    ]

    import peft
    import torch
    import transformers

    import potentia.engine.scoring
    import potentia.engine.training  # noqa: F401

    if options.inline:
        run_stage(Bench(**{**vars(bench), "stage": names[0]}), forked=False)
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
    }
    bench.tell(what="begun", versions=versions, stages=names, imported_s=time.monotonic() - began)
    for name in names:
        seconds_left = options.seconds - (time.monotonic() - began)
        if seconds_left < 10:
            print(f"-- {name}: no time left", flush=True)
            continue
        print(f"-- {name}", flush=True)
        start = time.monotonic()
        limit = min(seconds_left, STAGES[name][1])
        exit_status = run_apart(Bench(**{**vars(bench), "stage": name, "limit": limit}), limit)
        print(f"-- {name}: {exit_status}, {time.monotonic() - start:.1f} s", flush=True)
    table([json.loads(line) for line in bench.out.read_text().splitlines()])


if __name__ == "__main__":
    main()
