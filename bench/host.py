"""Where time goes around the device's work: the checks of one row, and scoring, function by function.

    python bench/host.py --carry CARRY --out host.txt                      # on a GPU, in a minute
    python bench/host.py --carry CARRY --model FOLDER --device cpu         # real weights
    python bench/host.py --carry CARRY --tiny --device cpu                 # tries the script itself

``--carry`` is the folder of ``bench/gpu.py``. Told as it goes: seconds and forward passes of every check of a row (bare
scoring, lanes, tuned scoring), twice, the second time with kernels ready; how long 2,000 questions take, what the host
does meanwhile, and how much of the time the device computes; and steps of one lane whose texts are of several tasks.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]


class Told:
    """Prints, and writes the same into a file at once."""

    def __init__(self, out: Path | None, seconds: float) -> None:
        self.out, self.end = out, time.monotonic() + seconds
        if out is not None:
            out.write_text("")

    def __call__(self, text: str) -> None:
        """Tell one thing."""
        print(text, flush=True)
        if self.out is not None:
            with self.out.open("a") as lines:
                lines.write(text + "\n")

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.end


def profiled(tell: Told, name: str, work: Callable[[], Any], device: str, top: int = 22) -> Any:
    """Run a piece of work with the profiler, to the device's end of it."""
    import torch

    import lanes

    profile = cProfile.Profile()
    began = time.perf_counter()
    result = profile.runcall(work)
    queued = time.perf_counter() - began
    lanes.wait(torch.device(device))
    tell(f"== {name}: {time.perf_counter() - began:.3f} s, queued after {queued:.3f} s (profiled)")
    for order, count in (("tottime", top), ("cumulative", top)):
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats(order).print_stats(count)
        tell("\n".join(line for line in text.getvalue().splitlines()[6:] if line.strip()))
    return result


def checks(tell: Told, loaded: Any, requests: list[Any], device: str) -> None:
    """Tell what each check of a row costs."""
    import torch
    from torch import nn

    import lanes
    from potentia.engine.scoring import Scorer
    from potentia.engine.training import LaneTrainer, LoraConfig
    from potentia.timing import TimeTally

    passes = 0
    original = nn.Module.__call__

    def counted(module: nn.Module, *arguments: Any, **named: Any) -> Any:
        nonlocal passes
        passes += (
            type(module).__name__.endswith("Model") and "forward" not in module.__dict__
        )  # heads run without it
        return original(module, *arguments, **named)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        nonlocal passes
        passes, tally = 0, TimeTally()
        with tally.running():
            result = work()
            lanes.wait(torch.device(device))
        kinds = {kind: round(spent, 2) for kind, spent in tally.seconds.items()}
        tell(
            f"{name}: check {kinds.get('check', 0.0)} s; {passes} passes of a body or model; all {kinds}"
        )
        return result

    nn.Module.__call__ = counted  # type: ignore[method-assign]
    try:
        for turn in ("first", "second"):
            if tell.late:
                return
            fresh = replace(loaded, checked={}, record={})
            timed(f"{turn}: bare scoring", lambda m=fresh: Scorer(m).loglikelihood(requests))
            lora = LoraConfig(targets=("all-linear",), dropout=0.1)
            specs = [replace(spec, lora=lora) for _, spec in lanes.row_of_lanes("135m", 12, 4)]
            vocabulary = int(loaded.model.get_input_embeddings().weight.shape[0])
            for spec in specs:
                spec.examples.token_ids[:] %= vocabulary
            with LaneTrainer(fresh) as trainer:
                timed(f"{turn}: lanes", lambda t=trainer, s=specs: t.train(s))
                owners = [number % trainer.plan.slots for number in range(len(requests))]  # type: ignore[union-attr]
                scorer = Scorer(fresh, router=trainer.router)
                timed(
                    f"{turn}: tuned scoring",
                    lambda s=scorer, o=owners: s.loglikelihood(requests, owners=o),
                )
            tell(f"{turn}: {fresh.record}")
        again = replace(loaded, checked={}, record={})
        profiled(
            tell, "bare scoring's check", lambda: Scorer(again).loglikelihood(requests[:64]), device
        )
        with LaneTrainer(again) as trainer:
            profiled(
                tell, "lanes' check", lambda: trainer._check_lanes(specs[0].lora, specs), device
            )
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def scoring(tell: Told, loaded: Any, requests: list[Any], device: str) -> None:
    """Tell where the time of scoring goes, by hand-written layers and by the model's own."""
    import torch

    import gpu
    from potentia.engine.scoring import Scorer
    from potentia.engine.training import LaneTrainer, LoraConfig

    owners = [number * 12 // len(requests) for number in range(len(requests))]
    for by_hand in (True, False):

        def work(by_hand: bool = by_hand, chosen_requests: Any = requests) -> Any:
            loaded.__dict__.pop("encoder", None)  # tokenise anew
            return Scorer(loaded, fused=by_hand).loglikelihood(chosen_requests)

        scorer = Scorer(loaded, fused=by_hand)
        scorer.loglikelihood(requests[:64])
        tell(f"== {scorer.notes.layers}")
        times = [gpu.clock(device, work)[0] for _ in range(5)]
        tell(f"scoring {len(requests)} requests: {' '.join(f'{t:.3f}' for t in times)} s")
        fresh = [
            gpu.clock(
                device, lambda n=n: work(chosen_requests=requests[n * len(requests) // 16 :])
            )[0]
            for n in (1, 1, 2, 2)
        ]
        tell(
            f"fewer of them, twice each (a new shape's kernels are chosen the first time): {fresh}"
        )
        encoder, tokenising = loaded.encoder, time.perf_counter()
        encoder._pairs.clear()
        encoder._texts.clear()
        encoder.continuations([(r.context, r.continuation) for r in requests])
        tell(f"tokenising alone {time.perf_counter() - tokenising:.3f} s")
        warm_seconds = [
            gpu.clock(device, lambda s=scorer: s.loglikelihood(requests))[0] for _ in range(3)
        ]
        tell(f"already tokenised: {' '.join(f'{t:.3f}' for t in warm_seconds)} s")
        profiled(tell, "scoring", work, device)
        if device == "cuda":
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CUDA]
            ) as profiler:
                seconds = gpu.clock(device, work)[0]
            kernels, busy = gpu.kernels_of(profiler, seconds)
            tell(f"the device computes for {busy:.0%} of {seconds:.3f} s")
            tell("\n".join(kernels))
        with LaneTrainer(loaded) as trainer:
            trainer.install_bank(
                LoraConfig(targets=("all-linear",), dropout=0.1), 12
            ).make_up_adapters()
            tuned = Scorer(loaded, router=trainer.router, fused=by_hand)
            times = [
                gpu.clock(device, lambda s=tuned: s.loglikelihood(requests, owners=owners))[0]
                for _ in range(4)
            ]
            tell(f"with 12 adapters, {tuned.notes.layers}: {' '.join(f'{t:.3f}' for t in times)} s")
    attention(tell, device)


def attention(tell: Told, device: str) -> None:
    """Tell what attention takes on new shapes and on the same again, by kernels that plan every shape or not."""
    from contextlib import nullcontext

    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    import lanes
    from potentia.engine.layers.recomputation import standard_attention

    torch_device = torch.device(device)
    for name, form in (
        ("as torch chooses", nullcontext),
        ("no plans", lambda: standard_attention(torch_device)),
    ):
        for masked in (True, False):
            first, again = [], []
            for rows in (40, 41, 42):
                q = torch.randn(
                    rows,
                    16,
                    512 if device == "cuda" else 32,
                    64,
                    device=torch_device,
                    dtype=torch.bfloat16,
                )
                mask = (
                    torch.zeros(rows, 1, q.shape[2], q.shape[2], device=torch_device, dtype=q.dtype)
                    if masked
                    else None
                )
                for spent in (first, again, again, again):
                    lanes.wait(torch_device)
                    began = time.perf_counter()
                    with form():
                        attend(q, q, q, attn_mask=mask, is_causal=mask is None)
                    lanes.wait(torch_device)
                    spent.append(round(1000 * (time.perf_counter() - began), 2))
            tell(
                f"attention {name}, {'masked' if masked else 'causal'}: new shapes {first} ms, again {again} ms"
            )


def one_lane(tell: Told, loaded: Any, device: str, steps: int) -> None:
    """Time a lane of mixed tasks, as a treated copy is trained: its passes differ in size from step to step."""
    import random

    import torch

    import lanes
    from potentia.engine.training import (
        LaneSpec,
        LaneTrainer,
        LoraConfig,
        Schedule,
        TokenisedExamples,
    )

    texts = [
        text
        for task in lanes.LENGTHS
        for text in lanes.texts("135m", task, lanes.BATCH * steps // 16 + 1)
    ]
    random.Random(0).shuffle(texts)
    schedule = Schedule(epochs=1, batch=lanes.BATCH, learning_rate=1e-4, loss="text")
    spec = LaneSpec(
        "mixed",
        TokenisedExamples.from_lists(texts),
        schedule,
        LoraConfig(targets=("all-linear",), dropout=0.1),
        seed=0,
    )
    marks: list[float] = []

    def on_step(info: Any) -> None:
        if info.step % 50 == 1:
            lanes.wait(torch.device(device))
        marks.append(time.perf_counter())

    with LaneTrainer(loaded) as trainer:
        trainer.train([spec], on_step=on_step, stop=lambda: tell.late)
        lanes.wait(torch.device(device))
        total_seconds = time.perf_counter() - marks[0]
        run = trainer.run_under_way
        graphs = {
            name: getattr(run.stepper, name, None) for name in ("capture_count", "replay_count")
        }  # type: ignore[union-attr]
    later = [
        1000 * (marks[min(at + 50, len(marks) - 1)] - marks[at]) / 50
        for at in range(0, len(marks) - 50, 50)
    ]
    tell(
        f"one lane of mixed tasks: {1000 * total_seconds / len(marks):.1f} ms a step over {len(marks)}, {graphs}"
    )
    tell("ms a step, fifty by fifty: " + " ".join(f"{ms:.1f}" for ms in later))


def main() -> int:
    """Tell where time goes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--carry", type=Path, required=True)
    parser.add_argument(
        "--model", help="real weights for the checks, instead of random ones of SmolLM2's shape"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="*", default=["scoring", "lane", "checks"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tell = Told(options.out, options.seconds)

    import gpu
    from potentia.engine import load
    from potentia.values.requests import Continuation
    from scoring import questions

    bench = gpu.Bench(options.device, options.tiny, False, options.carry, Path("/dev/null"))
    items = questions(options.carry / "arc_easy.json", 100 if options.tiny else 2000)
    requests = [Continuation(prompt, choice) for prompt, choices in items for choice in choices]
    if "scoring" in options.only:
        scoring(tell, gpu.make_loaded(bench, "410m"), requests, options.device)
    if options.model:
        loaded = load(options.model, device=options.device, dtype=options.dtype)
    else:
        loaded = gpu.make_loaded(bench, "135m", None if options.dtype == "auto" else options.dtype)
    if "lane" in options.only and not tell.late:
        one_lane(tell, loaded, options.device, 20 if options.tiny else 300)
    if "checks" in options.only and not tell.late:
        checks(tell, loaded, requests[: 120 if options.device == "cpu" else None], options.device)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
