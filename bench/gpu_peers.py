"""The peers of ``gpu.py``: PEFT trainings in plain loops, several processes at once on one GPU, as many as help.

A savvy user trains several adapters at a time, each in a process of its own, in bf16, without a Trainer's overhead. All
processes start once; then windows of some seconds are measured in which the first k of them train, each step on the
task that comes next in its row, and the steps of all are counted. Further windows let the best number lay their rows
end to end instead of padding them, and use Liger's kernels where they are installed; processes of their own use Unsloth
where that is installed. Where NVIDIA's multi-process service starts, the same is measured under it. Beside them, one
Trainer.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu import Bench

LANES = 24
ROWS, ROW_LANES = 6, 12  # of `sharing`: what a study of small models puts on one GPU


def peers(bench: Bench) -> None:
    """Measure both shapes, without and with the multi-process service."""
    from potentia.run.gpu_sharing import GpuSharing

    cuda = bench.device == "cuda"
    shapes = ["tiny"] if bench.tiny else ["135m", "410m"]
    counts = [1, 2] if bench.tiny else [14, 20] if bench.quick else [1, 4, 8, 14, 20]
    for shared in (False, True):
        service = GpuSharing()
        if shared and cuda:
            service.start(counts[-1])
        if shared and not service.on:
            bench.tell(
                what="note",
                note="the multi-process service does not start here",
                reason=service.why_not,
            )
            break
        try:
            sweep(
                bench,
                shapes,
                counts[:1] if shared and bench.quick else counts[-3:] if shared else counts,
                shared,
            )
        except RuntimeError as error:
            if not shared:
                raise
            bench.tell(
                what="note",
                note="no peers under the multi-process service",
                reason=str(error)[-600:],
            )
        finally:
            service.end()
    for name in ("liger_kernel", "unsloth"):
        bench.tell(
            what="note", note=f"{name} is " + ("installed" if installed(name) else "not installed")
        )
    for shape in shapes if cuda and not bench.quick else []:
        one_trainer(bench, shape)


def sweep(bench: Bench, shapes: list[str], counts: list[int], service: bool) -> None:
    """Let k processes train for a while, for each k until the sum stops growing."""
    window = 1.0 if bench.tiny else 3.0 if bench.quick else 4.0
    pipes, processes = _start(bench, shapes, counts[-1])
    try:
        ways = ["end to end", *(["liger"] if installed("liger_kernel") else [])]
        for shape in shapes:
            best, best_count = 0.0, 1
            for count in counts:
                rate = _window(pipes[:count], shape, "padded", window)
                _tell(bench, shape, count, "padded", rate, service)
                grown = rate > 1.05 * best
                if rate > best:
                    best, best_count = rate, count
                if not grown:
                    break
            for method in ways:
                _tell(
                    bench,
                    shape,
                    best_count,
                    method,
                    _window(pipes[:best_count], shape, method, window),
                    service,
                )
    finally:
        _end(pipes, processes)
    if installed("unsloth") and bench.device == "cuda":
        try:
            sweep_unsloth(bench, shapes, counts, service)
        except (RuntimeError, OSError) as error:
            bench.tell(what="note", note="no peers with Unsloth", reason=str(error)[-900:])


def sweep_unsloth(bench: Bench, shapes: list[str], counts: list[int], service: bool) -> None:
    """The same with Unsloth's model and kernels, in fresh processes: importing it changes transformers for good."""
    import torch
    from transformers import AutoTokenizer

    import lanes

    words = AutoTokenizer.from_pretrained(str(bench.carry / "tokenizer"))
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            lanes.build(shape, torch.device("cpu"), torch.bfloat16).save_pretrained(
                f"{folder}/{shape}"
            )
            words.save_pretrained(f"{folder}/{shape}")
        pipes, processes = _start(
            bench, shapes, counts[-1], functools.partial(_serve, folder=folder), ("spawn",)
        )
        try:
            for shape in shapes:
                for count in counts[-2:]:
                    rate = _window(pipes[:count], shape, "unsloth", 3.0 if bench.quick else 4.0)
                    _tell(bench, shape, count, "unsloth", rate, service)
        finally:
            _end(pipes, processes)


def sharing(bench: Bench) -> None:
    """Let six of our own rows train at once on the GPU: in turns, and under the service that a run starts."""
    from potentia.run.gpu_sharing import GpuSharing

    spell = 2.0 if bench.tiny else 8.0
    rates = {}
    for uses_service in (False, True):
        service = GpuSharing()
        if uses_service and bench.device == "cuda":
            service.start(ROWS)
            if not service.on:
                bench.tell(what="note", note="no service", reason=service.why_not)
                return
        pipes, processes = _start(
            bench, [bench.shape("135m")], 2 if bench.tiny else ROWS, _serve_rows
        )
        try:
            begin = time.monotonic() + spell
            for pipe in pipes:
                pipe.send((begin, begin + spell))
            answers = [pipe.recv() if pipe.poll(4 * spell + 30) else "no answer" for pipe in pipes]
            if wrong := [answer for answer in answers if isinstance(answer, str)]:
                raise RuntimeError(wrong[0])
            rates[uses_service] = sum(steps / took for steps, took in answers)
        finally:
            _end(pipes, processes)
            service.end()
        bench.tell(
            what="sharing",
            service=uses_service,
            rows=len(pipes),
            lanes=ROW_LANES,
            rate=rates[uses_service],
            each=answers,
        )
    bench.tell(what="sharing", ratio=rates[True] / rates[False])


def _serve_rows(pipe: Any, number: int, shapes: list[str], device: str) -> None:
    """Be one row of lanes: say when it is checked and captured, then count lane-steps between two moments."""
    import torch

    import lanes
    from potentia.engine.training import LaneTrainer

    try:
        torch.set_num_threads(1)
        torch_device = torch.device(device)
        model = lanes.build(
            shapes[0],
            torch_device,
            torch.bfloat16 if torch_device.type == "cuda" else torch.float32,
        )
        specs = [spec for _, spec in lanes.row_of_lanes(shapes[0], ROW_LANES, 4000)]
        begin = end = float("inf")
        counted, since = 0, 0.0
        is_ready = False

        def on_step(info: Any) -> None:
            nonlocal counted, since, is_ready, begin, end
            if not is_ready and info.step >= (2 if torch_device.type == "cpu" else 25):
                lanes.wait(torch_device)
                pipe.send("ready")
                begin, end = pipe.recv()
                is_ready = True
            if is_ready and time.monotonic() >= begin:
                if not since:
                    lanes.wait(torch_device)
                    since = time.monotonic()
                else:
                    counted += info.active

        with LaneTrainer(model) as trainer:
            trainer.train(specs, on_step=on_step, stop=lambda: time.monotonic() >= end)
            lanes.wait(torch_device)
        pipe.send((counted, time.monotonic() - since))
        pipe.recv()
    except EOFError:
        return
    except Exception:
        pipe.send(traceback.format_exc()[-1500:])


def treated(bench: Bench) -> None:
    """Train one lane on four tasks mixed, as a treated copy is made: alone, then beside rows of lanes."""
    from potentia.run.gpu_sharing import GpuSharing

    for beside in (0, 1) if bench.tiny else (0, 4):
        service = GpuSharing()
        if beside and bench.device == "cuda":
            service.start(beside + 1)
        pipes, processes = _start(bench, [bench.shape("135m")], 1 + beside, _serve_treated)
        try:
            for pipe in pipes[1:]:
                pipe.send((0.0, float("inf")))  # until they are ended
            pipes[0].send(4 if bench.tiny else 300)
            answer = pipes[0].recv() if pipes[0].poll(60) else "no answer"
            if isinstance(answer, str):
                raise RuntimeError(answer)
            bench.tell(what="treated", beside=beside, service=service.on, **answer)
        finally:
            for process in processes[1:]:
                process.kill()
            _end(pipes, processes)
            service.end()


def _serve_treated(pipe: Any, number: int, shapes: list[str], device: str) -> None:
    """Be the copy (number 0), whose steps are timed one by one, or a row of lanes beside it."""
    if number:
        return _serve_rows(pipe, number, shapes, device)
    import torch

    import lanes
    from potentia.engine.training import (
        LaneSpec,
        LaneTrainer,
        LoraConfig,
        Schedule,
        TokenisedExamples,
    )

    try:
        torch.set_num_threads(1)
        torch_device = torch.device(device)
        model = lanes.build(
            shapes[0],
            torch_device,
            torch.bfloat16 if torch_device.type == "cuda" else torch.float32,
        )
        pipe.send("ready")
        steps = pipe.recv()
        names = ("commonsense_qa", "social_iqa", "boolq", "cola")
        ids = [text for name in names for text in lanes.texts(shapes[0], name, 16 * steps // 4)]
        lora = LoraConfig(dropout=0.0, targets=("all-linear",))
        data = TokenisedExamples.from_lists(ids, [len(text) - 3 for text in ids])
        spec = LaneSpec(
            "copy",
            data,
            Schedule(epochs=1, batch=16, learning_rate=3e-4, loss="completion"),
            lora,
            0,
        )
        marks = [time.perf_counter()]
        with LaneTrainer(model) as trainer:
            trainer.train([spec], on_step=lambda _: marks.append(time.perf_counter()))
            lanes.wait(torch_device)
            taken = trainer.run_under_way.stepper if trainer.run_under_way else None
        gaps = [1000 * (b - a) for a, b in itertools.pairwise(marks[1:])]
        facts = {
            name: getattr(taken, name, None)
            for name in ("capture_count", "replay_count", "may_capture")
        }
        pipe.send(
            facts
            | {
                "form": type(taken).__name__,
                "check_s": marks[1] - marks[0],
                "all_s": time.perf_counter() - marks[0],
            }
            | {"ms": [round(gap, 1) for gap in gaps], "median_ms": sorted(gaps)[len(gaps) // 2]}
        )
    except EOFError:
        return
    except Exception:
        pipe.send(traceback.format_exc()[-1500:])


def _start(
    bench: Bench,
    shapes: list[str],
    count: int,
    serve: Callable[..., None] | None = None,
    methods: tuple[str, ...] = ("fork", "spawn"),
) -> tuple[list[Any], list[Any]]:
    """Start processes as copies of this one, which has not touched the GPU; as fresh ones where that fails."""
    first_answer = ""
    for method in methods:
        context: Any = multiprocessing.get_context(method)
        pipes, processes = [], []
        began = time.monotonic()
        for number in range(count):
            own_end, worker_end = context.Pipe()
            process = context.Process(
                target=serve or _serve, args=(worker_end, number, shapes, bench.device), daemon=True
            )
            process.start()
            pipes.append(own_end)
            processes.append(process)
        answers = [pipe.recv() if pipe.poll(75) else "no answer" for pipe in pipes]
        if all(answer == "ready" for answer in answers):
            bench.tell(
                what="note",
                note=f"{count} peers started by {method}",
                seconds=time.monotonic() - began,
            )
            return pipes, processes
        first_answer = next(answer for answer in answers if answer != "ready")
        bench.tell(what="note", note=f"peers do not start by {method}", reason=first_answer[-600:])
        _end(pipes, processes)
    raise RuntimeError(f"a peer did not start: {first_answer}")


def _end(pipes: list[Any], processes: list[Any]) -> None:
    for pipe in pipes:
        with contextlib.suppress(BrokenPipeError, OSError):
            pipe.send(None)
    until = time.monotonic() + 5
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _tell(bench: Bench, shape: str, count: int, method: str, rate: float, service: bool) -> None:
    bench.tell(what="peer", model=shape, processes=count, way=method, service=service, rate=rate)


def _window(pipes: list[Any], shape: str, method: str, seconds: float) -> float:
    """Return the steps per second of all these processes together."""
    for warm in (True, False):  # the first window readies every kernel
        for pipe in pipes:
            pipe.send((shape, method, min(1.5, seconds) if warm else seconds))
        answers = [pipe.recv() for pipe in pipes]
        for answer in answers:
            if isinstance(answer, str):
                raise RuntimeError(answer)
    return float(sum(steps / took for steps, took in answers))


def _serve(pipe: Any, number: int, shapes: list[str], device: str, folder: str = "") -> None:
    """Be one of the processes: make the models (Unsloth's from a folder), then train for as long as asked each time."""
    try:
        peers_own = {shape: _Peer(shape, device, number, folder) for shape in shapes}
        pipe.send("ready")
        while (request := pipe.recv()) is not None:
            shape, method, seconds = request
            pipe.send(peers_own[shape].train(method, seconds))
    except EOFError:
        return
    except Exception:
        pipe.send(traceback.format_exc()[-1500:])


class _Peer:
    """One adapter in training, its batches made ahead."""

    def __init__(self, shape: str, device: str, number: int, folder: str = "") -> None:
        if folder:
            import unsloth  # noqa: F401  before transformers, which it changes
        import torch

        import lanes

        self.torch, self.device = torch, torch.device(device)
        torch.set_num_threads(1)
        cuda = self.device.type == "cuda"
        if cuda:
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.shape, self.dtype = shape, torch.bfloat16 if cuda else torch.float32
        self.at = number
        tasks = [task for task, _ in lanes.row_of_lanes(shape, LANES, 1)]
        self.batches = []
        for task in tasks:
            rows = lanes.texts(shape, task, 4 * lanes.BATCH)
            self.batches.append(
                [rows[i : i + lanes.BATCH] for i in range(0, len(rows), lanes.BATCH)]
            )
        self.model: Any = None
        self.way, self.folder = "", folder
        self._make("unsloth" if folder else "padded")

    def _make(self, method: str) -> None:
        from peft import LoraConfig, get_peft_model

        import lanes

        if (method == "liger") == (self.way == "liger") and self.model is not None:
            self.way = method
            return
        if method == "unsloth":
            from unsloth import FastLanguageModel

            model, _ = FastLanguageModel.from_pretrained(
                f"{self.folder}/{self.shape}",
                max_seq_length=2048,
                dtype=self.dtype,
                load_in_4bit=False,
            )
            self.model = FastLanguageModel.get_peft_model(
                model,
                r=8,
                lora_alpha=32,
                lora_dropout=0.0,
                target_modules=["q_proj", "v_proj"],
                use_gradient_checkpointing=False,
            )  # without dropout, so that its own kernels are used
        else:
            model = lanes.build(self.shape, self.device, self.dtype)
            if method == "liger":
                from liger_kernel.transformers import _apply_liger_kernel_to_instance

                _apply_liger_kernel_to_instance(model=model)
            config = LoraConfig(r=8, lora_alpha=32, lora_dropout=0.1, task_type="CAUSAL_LM")
            self.model = get_peft_model(model, config)
        self.model.train()
        self.weights = [p for p in self.model.parameters() if p.requires_grad]
        fused = self.device.type == "cuda"
        self.adam = self.torch.optim.AdamW(self.weights, lr=2e-5, weight_decay=0.01, fused=fused)
        self.way = method

    def train(self, method: str, seconds: float) -> tuple[int, float]:
        """Train for some seconds; returns the steps and the time they took."""
        self._make(method)
        wait = self.torch.cuda.synchronize if self.device.type == "cuda" else (lambda: None)
        wait()
        began = time.perf_counter()
        steps = 0
        while time.perf_counter() - began < seconds:
            self._step(method)
            steps += 1
            if steps % 4 == 0:
                wait()  # so that the window ends when it ends
        wait()
        return steps, time.perf_counter() - began

    def _step(self, method: str) -> None:
        torch = self.torch
        task = self.batches[self.at % len(self.batches)]
        rows = task[(self.at // len(self.batches)) % len(task)]
        self.at += 1
        if method == "end to end":
            ids = torch.tensor([[token for row in rows for token in row]])
            labels = torch.tensor(
                [[token if i else -100 for row in rows for i, token in enumerate(row)]]
            )
            places = torch.tensor([[i for row in rows for i in range(len(row))]])
            model_inputs = {"input_ids": ids, "labels": labels, "position_ids": places}
        else:
            width = max(map(len, rows))
            gaps = [width - len(row) for row in rows]
            model_inputs = {
                "input_ids": torch.tensor(
                    [row + [0] * gap for row, gap in zip(rows, gaps, strict=True)]
                ),
                "labels": torch.tensor(
                    [row + [-100] * gap for row, gap in zip(rows, gaps, strict=True)]
                ),
                "attention_mask": torch.tensor(
                    [[1] * len(row) + [0] * gap for row, gap in zip(rows, gaps, strict=True)]
                ),
            }
        model_inputs = {
            name: part.to(self.device, non_blocking=True) for name, part in model_inputs.items()
        }
        self.model(**model_inputs, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.adam.step()
        self.adam.zero_grad()


def one_trainer(bench: Bench, shape: str) -> None:
    """Time one Trainer with bf16 weights and length grouping, on the first tasks of a row."""
    import torch

    import lanes

    device = torch.device(bench.device)
    model = lanes.build(shape, device, torch.bfloat16)
    times = [
        lanes.time_peer(model, lanes.texts(shape, task, lanes.BATCH * 13), device, 3, 10, True)
        for task in list(lanes.LENGTHS)[:4]
    ]
    bench.tell(
        what="peer",
        model=shape,
        processes=1,
        way="Trainer",
        service=False,
        rate=len(times) / sum(times),
    )


def installed(name: str) -> bool:
    """Say whether a peer's package is here, without importing it."""
    return importlib.util.find_spec(name) is not None
