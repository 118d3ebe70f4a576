"""A model over several devices: its blocks laid out in order, all else (embeddings, norms, head) at home on the first.

What enters a block is sent to the block's device, and what the last block answers is sent home; so texts go in and
predictions come out on one device, tied weights stay one tensor, and lanes keep their adapters at home and send a layer
its share. A device is whatever computes: GPUs, or a GPU and the processor. One block runs at a time, so several GPUs
hold more and are not faster.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from potentia.errors import ModelError

log = logging.getLogger(__name__)

FULL = 0.9  # of a GPU's memory: weights beyond this do not fit it
FILLED = 0.8  # of a device's free memory that weights may take where there are several


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device."""
    return tensor.to(device)


def pinned(values: npt.NDArray[Any]) -> Tensor:
    """Return an array in memory that a GPU reads by itself, copied by this thread alone.

    Torch's own ``pin_memory`` wakes all its threads for that, and other processes hold these up: half a megabyte took
    1.4 ms on a quiet host, and 6 ms on a busy one.
    """
    whole = torch.from_numpy(values)
    host = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=True)
    np.copyto(host.numpy(), values)
    return host


@contextmanager
def on_stream(device: torch.device, priority: int) -> Iterator[None]:
    """Queue what is done inside the block on a stream of this priority: 0 for training, less for what goes first."""
    before = torch.cuda.current_stream(device) if device.type == "cuda" else None
    if before is None or before.priority == priority:
        yield
        return
    if priority:
        stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
    else:
        stream = torch.cuda.default_stream(device)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        before.wait_stream(stream)


def device_of(tensor: Tensor) -> torch.device:
    """Return where a tensor is."""
    return tensor.device


def beside(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor where another is."""
    return tensor if device_of(tensor) == device_of(other) else send(tensor, device_of(other))


@dataclass(frozen=True)
class Layout:
    """Where a model's blocks go, in order, and where everything else is."""

    home: torch.device
    places: tuple[torch.device, ...]


def all_devices() -> list[torch.device]:
    """Return the GPUs that are there, and the processor for what they do not hold."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return [*(torch.device("cuda", k) for k in gpus), torch.device("cpu")]


def fits(model: nn.Module, device: torch.device) -> bool:
    """Tell whether a GPU can hold the weights."""
    return (
        device.type != "cuda"
        or count_weight_bytes(model) <= FULL * torch.cuda.get_device_properties(device).total_memory
    )


def count_weight_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's weights."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that a text goes through one after the other: the model's largest list of modules."""
    lists: list[nn.ModuleList] = [
        module for module in model.modules() if isinstance(module, nn.ModuleList)
    ]
    if not lists:
        raise ModelError(
            f"{type(model).__name__} has no list of blocks to lay out over devices",
            hint="use a larger device",
        )
    sizes = [count_weight_bytes(one) for one in lists]
    return list(lists[sizes.index(max(sizes))])


def lay_out(
    model: nn.Module, devices: Sequence[torch.device], room: Sequence[int] | None = None
) -> Layout:
    """Divide blocks among devices: in proportion to the memory of the first ones, where these hold all, else filled.

    ``room`` is the memory for weights on each device; a processor's is not counted where it comes last.
    """
    blocks = [count_weight_bytes(block) for block in find_blocks(model)]
    rooms = list(room if room is not None else map(_free, devices))
    rest = count_weight_bytes(model) - sum(blocks)
    rooms[0] -= rest
    counted = [
        r
        for d, r in zip(devices, rooms, strict=True)
        if d.type != "cpu" or room is not None or d == devices[0]
    ]
    held = sum(max(r, 0) for r in counted)
    if len(counted) == len(devices) and held < sum(blocks):
        raise ModelError(
            f"the weights take {count_weight_bytes(model) / 1e9:.1f} GB, "
            f"and there is room for {(held + rest) / 1e9:.1f} GB",
            hint="use `quantise: 4bit`, more GPUs, or `device: spread`, which lets the processor compute the rest",
        )
    share = min(1.0, sum(blocks) / max(held, 1))
    places: list[torch.device] = []
    at, used = 0, 0.0
    for size in blocks:
        while at + 1 < len(devices) and used + size > max(rooms[at], 0) * share + size / 2:
            at, used = at + 1, 0.0
        places.append(devices[at])
        used += size
    return Layout(devices[0], tuple(places))


def spread(model: nn.Module, layout: Layout) -> None:
    """Move a model's parts to their places, and let what goes through them follow."""
    blocks = find_blocks(model)
    inside = {id(module) for block in blocks for module in block.modules()}
    for module in model.modules():
        if id(module) not in inside:
            module._apply(lambda tensor: tensor.to(layout.home), recurse=False)  # type: ignore[no-untyped-call]
    for block, place in zip(blocks, layout.places, strict=True):
        block.to(place)
    follow(blocks, layout)


def follow(blocks: Sequence[nn.Module], layout: Layout) -> None:
    """Send what enters a block to its place, and what the last one answers home."""
    sent = _Sent()
    for block, place in zip(blocks, layout.places, strict=True):
        block.register_forward_pre_hook(partial(sent.enter, place), with_kwargs=True)
    blocks[-1].register_forward_hook(lambda _module, _inputs, out: sent.moved(out, layout.home))


class _Sent:
    """Sends tensors, wherever they lie in what a block takes; masks and positions once a pass, for all blocks there."""

    def __init__(self) -> None:
        self._kept: dict[torch.device, WeakTensorKeyDictionary] = {}

    def enter(
        self, place: torch.device, _: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        return self.moved(inputs, place), self.moved(options, place)

    def moved(self, value: Any, place: torch.device) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value, place)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.moved(part, place) for part in value))
        if isinstance(value, (tuple, list)):
            return type(value)(self.moved(part, place) for part in value)
        if isinstance(value, dict):
            return {name: self.moved(part, place) for name, part in value.items()}
        return value  # caches among them: each of their layers lives with its block

    def _tensor(self, tensor: Tensor, place: torch.device) -> Tensor:
        if device_of(tensor) == place:
            return tensor
        if tensor.requires_grad or tensor.is_inference():
            return send(tensor, place)
        kept = self._kept.setdefault(place, WeakTensorKeyDictionary())
        version, copy = kept.get(tensor, (None, None))  # type: ignore[no-untyped-call]
        if version != tensor._version:
            copy = send(tensor, place)
            kept[tensor] = (tensor._version, copy)
        return copy  # type: ignore[no-any-return]


def is_spread(model: nn.Module) -> bool:
    """Tell whether a model lies on several devices."""
    return len({parameter.device for parameter in model.parameters()}) > 1


def room_for_passes(model: nn.Module, *, more: int = 0) -> int | None:
    """Return the memory for a pass's activations as if all blocks lay on one GPU; None at home on a processor.

    A GPU that holds a part of the blocks keeps that part of the activations: the one with the least room for its part
    counts. ``more`` are bytes beside each weight (gradients, moments).
    """
    home = next(model.parameters()).device
    if home.type != "cuda":
        return None
    taken: dict[torch.device, int] = {}
    for parameter in model.parameters():
        size = parameter.numel() * (parameter.element_size() + more)
        taken[parameter.device] = taken.get(parameter.device, 0) + size
    whole = {d: _own(d) for d in taken if d.type == "cuda"}
    if len(taken) == 1:
        return whole[home] - taken[home]
    blocks = [next(block.parameters()).device for block in find_blocks(model)]
    return min((whole[d] - taken[d]) * len(blocks) // max(blocks.count(d), 1) for d in whole)


def _own(device: torch.device) -> int:
    """Return the memory of a GPU that this process may take: rows that share one have a part of it."""
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)
    return int(share * torch.cuda.get_device_properties(device).total_memory)


def free_memory(device: torch.device) -> int:
    """Return the memory of a GPU that this process may still take, what torch keeps unused included."""
    reserved = torch.cuda.memory_reserved(device)
    left = min(torch.cuda.mem_get_info(device)[0], _own(device) - reserved)
    return max(0, left) + reserved - torch.cuda.memory_allocated(device)


def _free(device: torch.device) -> int:
    return int(FILLED * free_memory(device)) if device.type == "cuda" else 1 << 62


class Holder(Protocol):
    """Somebody who holds memory for speed alone."""

    def give_back(self) -> bool:
        """Let go of it; whether there was any."""


_HOLDERS: weakref.WeakSet[Holder] = weakref.WeakSet()


def may_give_back(holder: Holder) -> None:
    """Note who is to be asked when memory runs out, for as long as there is somebody."""
    _HOLDERS.add(holder)


def give_back(device: torch.device) -> bool:
    """Let go of what is held for speed alone, and of what torch keeps for later; whether somebody held something.

    This is what everybody does first when memory runs out, before passes are made smaller: a process that has a part of
    a GPU may hold as much in captured passes as it lacks.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    found = [holder.give_back() for holder in list(_HOLDERS)]
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if any(found):
        log.warning("out of memory: captured passes are let go, and made again in fewer sizes")
    return any(found)


_SAYINGS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cublas_status_alloc_failed",
)


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out, on either kind of device."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(saying in text for saying in _SAYINGS)


def with_room(device: torch.device, work: Callable[[], None]) -> None:
    """Do a piece of work; where it lacks memory that somebody can give back, once more."""
    try:
        return work()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    give_back(device)
    return work()
