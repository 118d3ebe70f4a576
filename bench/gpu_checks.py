"""The checks of ``gpu.py``: kernels, captured passes, lanes and seats against their plain forms on the device at hand.

A check tells ``right`` true or false and how far off it is, and never stops the next one.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import lanes

if TYPE_CHECKING:
    from gpu import Bench

BF16_OFF = 2e-2  # relative error allowed between two orders of rounding
EXACT_OFF = 1e-4


def off(ours: Tensor, theirs: Tensor) -> float:
    """Return ‖ours − theirs‖ / ‖theirs‖, infinite where something is not finite."""
    if ours.shape != theirs.shape or not bool(torch.isfinite(ours).all()):
        return float("inf")
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-30))


def attempt(bench: Bench, name: str, work: Callable[[], dict[str, Any]]) -> None:
    """Make one check and tell what it found."""
    began = time.perf_counter()
    try:
        facts = work()
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"[:600]
        bench.tell(
            what="check", name=name, right=False, error=reason, trace=traceback.format_exc()[-2500:]
        )
        return
    bench.tell(what="check", name=name, seconds=time.perf_counter() - began, **facts)


# ---- kernels --------------------------------------------------------------------------------------------------------


def kernels(bench: Bench) -> None:
    """Compare every kernel with its plain form at the shapes of real models, and time both."""
    from potentia.engine.operations import operations

    device = torch.device(bench.device)
    cases = [
        ("135m", torch.bfloat16),
        ("410m", torch.bfloat16),
        ("8b", torch.bfloat16),
        ("135m", torch.float32),
    ]
    if bench.tiny:
        cases = [("tiny", torch.float32)]
    elif bench.quick:
        cases = [case for case in cases if case[0] != "8b"]
    if operations(device).__name__.endswith("plain"):
        bench.tell(
            what="check",
            name="kernels",
            right=bench.device != "cuda",
            note="no kernels here: plain forms",
        )
    for shape, dtype in cases:
        for name, work in operation_checks(shape, device, dtype):
            attempt(bench, f"{name}, {shape}, {str(dtype)[6:]}", work)


def operation_checks(
    shape: str, device: torch.device, dtype: torch.dtype
) -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    """Make the checks of one shape: each runs an operation both ways on random numbers."""
    from potentia.engine.layers.adapter_bank import AdapterBank
    from potentia.engine.layers.row_layout import AdapterGroup, LaneRoute
    from potentia.engine.operations import Gain, Rows, operations, plain, tile
    from potentia.values.recipe import LoraConfig

    ours = operations(device)
    s = lanes.SHAPES[shape]
    d, ff, heads, kv_heads = s["d"], s["ff"], s["heads"], s["kv"]
    head = d // heads
    lane_count = 4 if shape == "tiny" else 12
    tokens = lane_count * (64 if shape == "tiny" else 256)
    per_lane = tokens // lane_count
    stream = torch.Generator(device=device).manual_seed(1)
    limit = EXACT_OFF if dtype == torch.float32 else BF16_OFF

    def draw(*sizes: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*sizes, generator=stream, device=device).to(kind)

    def both(work: Callable[[Any], Any], timed: Callable[[], Any] | None = None) -> dict[str, Any]:
        by_kernel, by_plain_code = work(ours), work(plain)
        by_kernel, by_plain_code = (
            part if isinstance(part, tuple) else (part,) for part in (by_kernel, by_plain_code)
        )
        errors = [off(a, b) for a, b in zip(by_kernel, by_plain_code, strict=True)]
        facts: dict[str, Any] = {"right": max(errors) < limit, "off": errors}
        if device.type == "cuda":
            facts["ms"] = quickly(timed or (lambda: work(ours)))
        return facts

    rows_first, rows_last = np.arange(tokens), np.arange(tokens) + 1
    lengths = np.random.default_rng(0).integers(5, 60, tokens)
    for lane in range(lane_count):
        at, end = lane * per_lane, (lane + 1) * per_lane - 3
        while at < end:
            length = min(int(lengths[at]), end - at)
            rows_first[at : at + length], rows_last[at : at + length] = at, at + length
            at += length
    tiles = np.concatenate(
        [tile([(lane + 1) * per_lane for lane in range(lane_count)]), np.zeros(4, np.int32)]
    )
    parts = (rows_first, rows_last, tiles.reshape(-1, 2))
    rows = Rows(*(torch.from_numpy(part).to(device, torch.int32) for part in parts))

    x, add, dy, gain = draw(tokens, d), draw(tokens, d), draw(tokens, d), Gain(draw(d), 1e-5, 1.0)
    scale = plain.norm(x, gain)[1]
    gates, slope = draw(tokens, 2 * ff), draw(tokens, ff)
    qkv = draw(tokens, (heads + 2 * kv_heads) * head)
    angles = draw(tokens, head // 2, kind=torch.float32).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    sizes = [heads * head, kv_heads * head, kv_heads * head]
    q, k, v = (part.unflatten(1, (-1, head)) for part in qkv.split(sizes, dim=1))
    dout = draw(tokens, heads, head)

    def attend_back(module: Any) -> tuple[Tensor, ...]:
        answer, sums = module.attend(
            q, k, v, rows, head**-0.5, None
        )  # each has log-sums in a base of its own
        into = tuple(
            torch.full(part.shape, float("nan"), dtype=dtype, device=device) for part in (q, k, v)
        )
        module.attend_back(dout, q, k, v, answer, sums, rows, head**-0.5, None, into)
        return into

    seats, room = (4, 70) if shape == "tiny" else (64, 400)
    new = draw(seats, heads, head)
    keys, values = draw(seats * room + 1, kv_heads, head), draw(seats * room + 1, kv_heads, head)
    reach = torch.randint(1, room + 1, (seats,), generator=stream, device=device).to(torch.int32)

    one_layer = {**s, "layers": 1, "vocab": 64}
    lanes.SHAPES["one layer"] = one_layer
    bank = AdapterBank(
        lanes.build("one layer", device, dtype), LoraConfig(dropout=0.1, targets=None), lane_count
    )
    bank.weights[:lane_count] = draw(lane_count, bank.width, kind=torch.float32) * 0.05
    bank.refresh_work()
    owners = (
        torch.arange(lane_count, device=device).repeat_interleave(per_lane // 16).to(torch.int32)
    )
    begins = torch.arange(lane_count, device=device) * per_lane
    spans = torch.stack(
        [torch.arange(lane_count, device=device), begins, begins + per_lane - 3], dim=1
    ).to(torch.int32)
    drops = torch.randint(0, 1 << 31, (tokens,), generator=stream, device=device).to(torch.int32)
    route = LaneRoute(bank, owners, spans, drops, rows.tiles)
    columns = {"q_proj": 0, "k_proj": heads * head, "v_proj": (heads + kv_heads) * head}
    group = AdapterGroup(
        [(site, columns[site.name.rsplit(".", 1)[-1]]) for site in bank.sites],
        bank.lora.r,
        torch.device(device),
    )
    dqkv = draw(tokens, qkv.shape[1])
    beyond = torch.ones(tokens, dtype=torch.bool, device=device)
    for _, begin, end in spans.tolist():
        beyond[begin:end] = False
    dqkv[beyond] = 0  # as no loss looks at them
    inner = plain.add_adapter_outputs(x, qkv.clone(), group, route)

    def backpropagate_adapters(module: Any) -> tuple[Tensor, ...]:
        bank.grads.zero_()
        dx = dy.clone()
        dh = module.backpropagate_adapters(dqkv, dx, group, route)
        module.sum_adapter_gradients(x, dqkv, inner, dh, group, route)
        return dx, bank.grads[:lane_count].clone()

    def gate_back(module: Any, gelu: bool) -> tuple[Tensor, ...]:
        opened, product = gates.clone(), slope.clone()
        module.gate_back_(opened, product, gelu)
        return opened, product

    def add_adapter_outputs(module: Any) -> tuple[Tensor, ...]:
        y = qkv.clone()
        h = module.add_adapter_outputs(x, y, group, route)
        return y, h

    vocabulary = 600 if shape == "tiny" else s["vocab"]
    logits, weights = draw(256, vocabulary), draw(256, kind=torch.float32).abs()
    targets = torch.randint(0, vocabulary, (256,), generator=stream, device=device).to(torch.int32)

    width = bank.width
    moments = [draw(lane_count, width, kind=torch.float32).abs() * 0.01 for _ in range(2)]
    slopes = draw(lane_count + 1, width, kind=torch.float32)
    table = torch.tensor(
        [1e-3, 0.99999, 0.1, 0.999, 0.001, 1e-3, 0.9, 1e-8, 1.0, 1.0, 0.0], device=device
    )
    table = table.expand(lane_count, 11).contiguous()
    norms = torch.linalg.vector_norm(slopes[:lane_count], dim=1)

    def update(module: Any) -> tuple[Tensor, ...]:
        own = (
            bank.weights.clone(),
            *(part.clone() for part in moments),
            slopes.clone(),
            bank.work.clone(),
        )
        module.update_(*own, bank.scales, table, norms)
        return own[0][:lane_count], own[1], own[2], own[4][:lane_count]

    turned = heads + kv_heads
    return [
        ("norm", lambda: both(lambda m: m.norm(x, gain))),
        ("add_norm", lambda: both(lambda m: m.add_norm(x, add, gain))),
        ("norm_back", lambda: both(lambda m: m.norm_back(dy, x, gain, scale, add))),
        ("gate", lambda: both(lambda m: m.gate(gates))),
        ("gelu gate", lambda: both(lambda m: m.gate(gates, True))),
        ("gelu gate_back", lambda: both(lambda m: gate_back(m, True))),
        ("gate_back", lambda: both(lambda m: gate_back(m, False))),
        ("rotate", lambda: both(lambda m: m.rotate_(qkv.clone(), turned, head, cos, sin))),
        (
            "rotate back",
            lambda: both(lambda m: m.rotate_(qkv.clone(), turned, head, cos, sin, back=True)),
        ),
        ("attend", lambda: both(lambda m: m.attend(q, k, v, rows, head**-0.5, None)[0])),
        ("attend window", lambda: both(lambda m: m.attend(q, k, v, rows, head**-0.5, 9)[0])),
        ("attend_back", lambda: both(attend_back)),
        (
            "attend_cached",
            lambda: both(lambda m: m.attend_cached(new, keys, values, reach, room, 0.1, None)),
        ),
        ("add_adapter_outputs", lambda: both(add_adapter_outputs)),
        ("backpropagate_adapters", lambda: both(backpropagate_adapters)),
        ("loss", lambda: both(lambda m: m.loss(logits, targets, weights))),
        ("update", lambda: both(update)),
    ]


def quickly(work: Callable[[], Any]) -> float:
    """Return the median milliseconds of a piece of work on the device."""
    times = []
    for _ in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[3:])[5]


# ---- what can be captured -------------------------------------------------------------------------------------------


def captures(bench: Bench) -> None:
    """Capture a step of lanes part by part, and tell which part cannot be captured and at which line."""
    from potentia.engine.lane_spec import LoraConfig
    from potentia.engine.layers.adapter_bank import AdapterBank
    from potentia.engine.layers.fused_layers import FusedLayers
    from potentia.engine.layers.packed_pass import PackedPass, PackedRun, attend_within_rows
    from potentia.engine.layers.row_layout import Bucket, LaneRoute, PackedInputs, lay_out_rows
    from potentia.engine.models.split_model import SplitModel, attending
    from potentia.engine.steps.lane_states import UPDATE_COLUMNS, LaneStates
    from potentia.engine.steps.packed_steps import PackedStepper
    from potentia.engine.training.lane import Lane

    device, slots = torch.device(bench.device), 6
    shape = bench.shape("135m")
    lanes.SHAPES["short"] = {**lanes.SHAPES[shape], "layers": min(4, lanes.SHAPES[shape]["layers"])}
    model = lanes.build("short", device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    bank = AdapterBank(model, LoraConfig(dropout=0.1, targets=None), slots)
    for slot in range(slots):
        bank.weights[slot].copy_(bank.fresh_row(slot))
    bank.refresh_work()
    riders = [Lane(spec) for _, spec in lanes.row_of_lanes("short", slots, 1)]
    for slot, rider in enumerate(riders):
        rider.slot = slot
    row = lay_out_rows([row for rider in riders for row in rider.next_rows(2048)])
    inputs = PackedInputs.on(
        device, Bucket.holding(len(row.ids), len(row.targets), slots, coarse=True)
    )
    inputs.buffer.copy_(torch.from_numpy(row.filled(inputs.bucket)))
    ours = PackedPass(SplitModel(model), bank, FusedLayers.of(model))
    stepper = PackedStepper(ours, LaneStates(slots, bank.width, device))
    stepper.update(np.ones((slots, UPDATE_COLUMNS), np.float32))
    states = torch.randn(inputs.bucket.targets, model.config.hidden_size, device=device).to(
        bank.dtype
    )
    group = ours._groups[0]
    x = torch.randn(inputs.bucket.tokens, group.sites[0].fan_in, device=device).to(bank.dtype)
    y = torch.zeros(inputs.bucket.tokens, group.sites[0].fan_out, device=device, dtype=bank.dtype)
    route = LaneRoute(bank, inputs.owners, inputs.spans, inputs.keys, inputs.tiles)

    def forward() -> None:
        with (
            torch.no_grad(),
            attending(ours._configs, attend_within_rows(run)),
            ours.blocks.active(run),
        ):
            ours.split.hidden(
                inputs.ids.long().unsqueeze(0), inputs.position_ids.long().unsqueeze(0)
            )

    run = PackedRun(ours.operations, inputs, route)
    parts: list[tuple[str, Callable[[], Any]]] = [
        ("a product", lambda: x @ x.t()),
        ("a kernel", lambda: ours.operations.add_adapter_outputs(x, y, group, route)),
        ("the forward pass", forward),
        (
            "the head and its gradient",
            lambda: ours.split.losses(states, inputs.targets, inputs.weights),
        ),
        ("a whole pass", lambda: ours(inputs)),
        ("the update", stepper._update),
    ]
    for name, work in parts:
        attempt(bench, f"captures, {name}", lambda w=work: capture(w, device))
    bank.close()


def capture(work: Callable[[], Any], device: torch.device) -> dict[str, Any]:
    """Capture a piece of work after two runs of it, and time it both ways."""
    for _ in range(2):
        work()
    if device.type != "cuda":
        return {"right": True, "note": "nothing is captured here"}
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    eager = time.perf_counter() - began
    graph = torch.cuda.CUDAGraph()
    began = time.perf_counter()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    taken = time.perf_counter() - began
    return {
        "right": True,
        "eager_ms": 1000 * eager,
        "replay_ms": quickly(graph.replay),
        "capture_s": taken,
    }


# ---- passes ---------------------------------------------------------------------------------------------------------


def passes(bench: Bench) -> None:
    """Compare static passes, captured and not, with the plain passes, gradient by gradient."""
    device = torch.device(bench.device)
    shapes = ["tiny"] if bench.tiny else ["135m"] if bench.quick else ["135m", "410m"]
    for shape in shapes:
        for dtype in (torch.float32, torch.bfloat16):
            if dtype != torch.float32 if bench.tiny else bench.quick and dtype == torch.float32:
                continue
            attempt(
                bench,
                f"passes, {shape}, {str(dtype)[6:]}",
                lambda s=shape, t=dtype: compare(s, device, t),
            )


def compare(shape: str, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Run the same five steps through plain passes and through static ones, and float32 passes for the truth."""
    from potentia.engine.lane_spec import LoraConfig
    from potentia.engine.layers.adapter_bank import AdapterBank
    from potentia.engine.layers.fused_layers import FusedLayers
    from potentia.engine.layers.packed_pass import PackedPass
    from potentia.engine.models.split_model import SplitModel
    from potentia.engine.proof.form_trial import TrialSettings
    from potentia.engine.proof.training_check import choose_training_form
    from potentia.engine.steps.lane_states import LaneStates
    from potentia.engine.steps.packed_steps import PackedStepper
    from potentia.engine.steps.padded_pass import compute_step_gradients
    from potentia.engine.steps.pass_plan import UNLIMITED_TOKENS, PassPlan
    from potentia.engine.training.lane import Lane
    from potentia.values.training_form import TrainingForm

    slots, steps = 6, 5
    model = lanes.build(shape, device, dtype)
    exact = copy.deepcopy(model).float() if dtype != torch.float32 else None
    lora = LoraConfig(dropout=0.1, targets=None)
    bank = AdapterBank(model, lora, slots)
    noise = torch.randn(bank.width, generator=torch.Generator().manual_seed(0)).to(device) * 0.02
    for slot in range(slots):
        bank.weights[slot].copy_(bank.fresh_row(slot).to(device) + noise.roll(slot))
    bank.refresh_work()
    batches = []
    riders = [Lane(spec) for _, spec in lanes.row_of_lanes(shape, slots, steps)]
    for slot, rider in enumerate(riders):
        rider.slot = slot
    for _ in range(steps):
        batches.append([row for rider in riders for row in rider.next_rows(2048)])
        for rider in riders:
            rider.step += 1
    split = SplitModel(model)
    plan = PassPlan(slots=slots, token_budget=UNLIMITED_TOKENS, pass_price=0)

    def plain_grads(one: SplitModel, exact_bank: AdapterBank) -> list[Tensor]:
        out = []
        for rows in batches:
            exact_bank.grads.zero_()
            compute_step_gradients(one, exact_bank, rows, plan)
            out.append(exact_bank.grads[:slots].clone())
        exact_bank.grads.zero_()
        return out

    expected_gradients = plain_grads(split, bank)
    bank.close()
    settings = TrialSettings(lora, [rider.spec for rider in riders])
    form_check = choose_training_form(model, settings, may_pack=True)
    facts: dict[str, Any] = {"check": form_check.facts.to_dict(), "form": form_check.form}
    if form_check.form not in (TrainingForm.FUSED, TrainingForm.PACKED):
        return {**facts, "right": False}
    weights_before = bank.weights.clone()
    bank = AdapterBank(model, lora, slots)
    bank.weights.copy_(weights_before)
    bank.refresh_work()
    packed_pass = PackedPass(
        split, bank, FusedLayers.of(model) if form_check.form == TrainingForm.FUSED else None
    )
    moving = PackedStepper(packed_pass, LaneStates(slots, bank.width, device))
    results: list[Tensor] = []
    for rows in [*batches, *batches]:  # the second time all buckets are known
        bank.grads.zero_()
        packed_pass.losses.zero_()
        moving.add_gradients(rows, plan)
        results.append(bank.grads[:slots].clone())
    moving.may_capture = False
    moving.release()
    eager = []
    for rows in batches:
        bank.grads.zero_()
        moving.add_gradients(rows, plan)
        eager.append(bank.grads[:slots].clone())
    bank.grads.zero_()

    def worst(ours: list[Tensor], theirs: list[Tensor]) -> float:
        return max(
            off(a[slot], b[slot])
            for a, b in zip(ours, theirs, strict=True)
            for slot in range(slots)
        )

    facts |= {
        "static_off_plain": worst(eager, expected_gradients),
        "captured_off_static": worst(results[steps:], eager),
        "first_run_off_static": worst(results[:steps], eager),
        "captured": moving.capture_count,
        "replayed": moving.replay_count,
    }
    least = EXACT_OFF * 10 if dtype == torch.float32 else 5e-2
    facts["right"] = facts["static_off_plain"] < least and facts["captured_off_static"] < least / 10
    if device.type == "cuda":
        facts["right"] = facts["right"] and moving.replay_count > 0
    bank.close()
    if exact is not None:
        exact_bank = AdapterBank(exact, lora, slots)
        exact_bank.weights.copy_(bank.weights)
        exact_bank.refresh_work()
        truth = plain_grads(SplitModel(exact), exact_bank)
        facts |= {
            "plain_off_float32": worst(expected_gradients, truth),
            "static_off_float32": worst(eager, truth),
        }
        facts["right"] = (
            facts["right"] and facts["static_off_float32"] < 1.5 * facts["plain_off_float32"] + 1e-3
        )
    return facts


# ---- lanes against PEFT ---------------------------------------------------------------------------------------------


def peft(bench: Bench) -> None:
    """Train lanes, and one of them by PEFT in a plain loop: same start, same order of data."""
    device = torch.device(bench.device)
    shape = bench.shape("135m")
    lanes.SHAPES["short"] = {**lanes.SHAPES[shape], "layers": min(4, lanes.SHAPES[shape]["layers"])}
    results: dict[str, Any] = {}
    attempt(bench, "lanes and PEFT, float32", lambda: beside_peft(device, torch.float32, results))
    if device.type == "cuda":
        attempt(
            bench, "lanes and PEFT, bfloat16", lambda: beside_peft(device, torch.bfloat16, results)
        )


def beside_peft(device: torch.device, dtype: torch.dtype, kept: dict[str, Any]) -> dict[str, Any]:
    """Return how far a lane's update is from PEFT's, and in bf16 how far both are from float32's."""
    from potentia.engine.training import (
        LaneSpec,
        LaneTrainer,
        LoraConfig,
        Schedule,
        TokenisedExamples,
    )

    vocabulary = lanes.SHAPES["short"]["vocab"]
    specs = []
    for n in range(5):
        stream = np.random.default_rng(n)
        ids = [stream.integers(3, vocabulary, stream.integers(8, 60)).tolist() for _ in range(32)]
        schedule = Schedule(epochs=2, batch=8, learning_rate=1e-3, loss="text")
        specs.append(
            LaneSpec(
                f"l{n}",
                TokenisedExamples.from_lists(ids),
                schedule,
                LoraConfig(dropout=0.0, targets=None),
                seed=n,
            )
        )
    start = lanes.build("short", device, torch.float32).to(dtype)
    with LaneTrainer(start) as trainer:
        results = trainer.train(specs)
        bank = trainer.install_bank(specs[2].lora, trainer.plan.slots if trainer.plan else 1)
        initial = bank.peft_state(bank.fresh_row(specs[2].seed))
        ours = trainer.adapter_state("l2")
        stepper_name = type(trainer.run_under_way.stepper).__name__ if trainer.run_under_way else ""
    theirs = with_peft(lanes.build("short", device, torch.float32).to(dtype), specs[2], initial)
    names = sorted(ours)

    def update(state: dict[str, Tensor]) -> Tensor:
        return torch.cat(
            [(state[name].float().cpu() - initial[name].float().cpu()).flatten() for name in names]
        )

    mine, theirs_update = update(ours), update(theirs)
    facts: dict[str, Any] = {
        "status": sorted({result.status for result in results.values()}),
        "way": stepper_name,
        "off": off(mine, theirs_update),
        "cosine": float(torch.cosine_similarity(mine, theirs_update, dim=0)),
        "update": float(theirs_update.norm()),
    }
    if dtype == torch.float32:
        kept["truth"] = theirs_update
        return {**facts, "right": facts["off"] < 1e-2}
    truth = kept.get("truth", theirs_update)
    facts["cosine_to_float32"] = float(torch.cosine_similarity(mine, truth, dim=0))
    facts["peft_cosine_to_float32"] = float(torch.cosine_similarity(theirs_update, truth, dim=0))
    return {**facts, "right": facts["cosine_to_float32"] > facts["peft_cosine_to_float32"] - 0.03}


def with_peft(model: Any, lane: Any, initial: dict[str, Tensor]) -> dict[str, Tensor]:
    """Train a lane by PEFT with torch's AdamW."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    from potentia.engine.lane_spec import data_order

    device = next(model.parameters()).device
    wrapped = get_peft_model(
        model, PeftConfig(r=8, lora_alpha=32, lora_dropout=0.0, task_type="CAUSAL_LM")
    )
    set_peft_model_state_dict(wrapped, initial)
    schedule = lane.schedule
    weights = [p for p in wrapped.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(weights, lr=schedule.learning_rate, weight_decay=schedule.weight_decay)
    done = 0
    wrapped.train()
    for epoch in range(schedule.epochs):
        order = data_order(lane.seed, epoch, len(lane.examples))
        for begin in range(0, len(order), schedule.batch):
            texts = [lane.text_of_example(int(i))[0] for i in order[begin : begin + schedule.batch]]
            width = max(map(len, texts))
            ids, labels = (
                torch.zeros(len(texts), width, dtype=torch.long),
                torch.full((len(texts), width), -100),
            )
            mask = torch.zeros(len(texts), width, dtype=torch.long)
            for i, text in enumerate(texts):
                ids[i, : len(text)] = labels[i, : len(text)] = torch.as_tensor(text)
                mask[i, : len(text)] = 1
            for settings in adam.param_groups:
                settings["lr"] = schedule.learning_rate * schedule.rate_share(
                    done, lane.total_steps
                )
            loss = wrapped(
                input_ids=ids.to(device), labels=labels.to(device), attention_mask=mask.to(device)
            ).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, schedule.clip)
            adam.step()
            adam.zero_grad()
            done += 1
    return {
        name: value.detach().float().cpu()
        for name, value in get_peft_model_state_dict(wrapped).items()
    }


# ---- seats ----------------------------------------------------------------------------------------------------------


def seats(bench: Bench) -> None:
    """Compare texts written in seats with those of the plain loop, with and without adapters."""
    kinds = ["float32"] if bench.device == "cpu" else ["float32", "bfloat16"]
    for dtype in kinds:
        attempt(bench, f"seats, {dtype}", lambda d=dtype: write_both_ways(bench, d))
    attempt(bench, "seats with adapters, float32", lambda: write_with_adapters(bench))


def write_both_ways(bench: Bench, dtype: str) -> dict[str, Any]:
    """Write some answers both ways."""
    from gpu import find_stop, make_loaded, problems
    from potentia.engine.scoring import Scorer
    from potentia.values.requests import Generation

    loaded = make_loaded(bench, "135m", dtype)
    count, max_tokens = (6, 8) if bench.tiny else (64, 48)
    until = (find_stop(loaded.tokenizer, 1 / 40),)
    requests = [
        Generation(text, until, max_tokens - i % 7)
        for i, text in enumerate(problems(bench)[:count])
    ]
    facts: dict[str, Any] = {}
    texts = {}
    for by_hand in (True, False):
        scorer = Scorer(loaded, continuous=by_hand)
        began = time.perf_counter()
        texts[by_hand] = scorer.generate(requests)
        facts["seats_s" if by_hand else "plain_s"] = time.perf_counter() - began
        facts["writing" if by_hand else "plain_writing"] = list(scorer.notes.writing)
        facts |= {"fallbacks": list(scorer.notes.fallbacks)} if by_hand else {}
    same = sum(a == b for a, b in zip(texts[True], texts[False], strict=True)) / count
    begins = sum(a[:12] == b[:12] for a, b in zip(texts[True], texts[False], strict=True)) / count
    shortest = min(len(text) for text in texts[False])
    right = facts["writing"] == ["continuous loop"] and (same > 0.95 or dtype != "float32")
    return {
        **facts,
        "right": right,
        "same": same,
        "begins": begins,
        "distinct": len(set(texts[False])),
        "shortest": shortest,
    }


def write_with_adapters(bench: Bench) -> dict[str, Any]:
    """Write with lanes' adapters, each text its own."""
    from gpu import make_loaded, problems
    from potentia.engine.scoring import Scorer
    from potentia.engine.training import (
        LaneSpec,
        LaneTrainer,
        LoraConfig,
        Schedule,
        TokenisedExamples,
    )
    from potentia.values.requests import Generation

    loaded = make_loaded(bench, "135m", "float32")
    stream = np.random.default_rng(0)
    specs = [
        LaneSpec(
            f"l{n}",
            TokenisedExamples.from_lists([stream.integers(3, 500, 20).tolist() for _ in range(16)]),
            Schedule(epochs=2, learning_rate=0.02, loss="text"),
            LoraConfig(dropout=0.1, targets=None),
            seed=n,
        )
        for n in range(3)
    ]
    count = 6 if bench.tiny else 32
    requests = [Generation(text, (), 12) for text in problems(bench)[:count]]
    with LaneTrainer(loaded) as trainer:
        results = trainer.train(specs)
        owners = [*(trainer.restore(spec.key, 2) for spec in specs), -1]
        asked_owners = [owners[i % 4] for i in range(count)]
        ways, writing = {}, []
        for by_hand in (True, False):
            scorer = Scorer(loaded, router=trainer.router, continuous=by_hand)
            ways[by_hand] = scorer.generate(requests, owners=asked_owners)
            writing = writing or list(scorer.notes.writing)
    bare = Scorer(loaded, continuous=False).generate(requests)
    same = sum(a == b for a, b in zip(ways[True], ways[False], strict=True)) / count
    moved = sum(a != b for a, b in zip(ways[False], bare, strict=True))
    return {
        "right": same == 1.0 and moved > 0 and writing == ["continuous loop"],
        "same": same,
        "moved": moved,
        "writing": writing,
        "status": sorted({result.status for result in results.values()}),
    }
