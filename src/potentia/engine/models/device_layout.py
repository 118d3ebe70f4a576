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
UNLIMITED_BYTES = 1 << 62  # a processor's memory is not counted


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device."""
    return tensor.to(device)


def pinned(values: npt.NDArray[Any]) -> Tensor:
    """Return an array in memory that a GPU reads by itself, copied by this thread alone.

    Torch's own ``pin_memory`` wakes all its threads for that, and other processes hold these up: half a megabyte took
    1.4 ms on a quiet host, and 6 ms on a busy one.
    """
    pageable = torch.from_numpy(values)
    pinned_tensor = torch.empty(pageable.shape, dtype=pageable.dtype, pin_memory=True)
    np.copyto(pinned_tensor.numpy(), values)
    return pinned_tensor


@contextmanager
def on_stream(device: torch.device, priority: int) -> Iterator[None]:
    """Queue what is done inside the block on a stream of this priority: 0 for training, less for what goes first."""
    if device.type != "cuda":
        yield
        return
    earlier_stream = torch.cuda.current_stream(device)
    if earlier_stream.priority == priority:
        yield
        return
    if priority:
        stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
    else:
        stream = torch.cuda.default_stream(device)
    stream.wait_stream(earlier_stream)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        earlier_stream.wait_stream(stream)


def device_of(tensor: Tensor) -> torch.device:
    """Return where a tensor is."""
    return tensor.device


def move_beside(tensor: Tensor, neighbour: Tensor) -> Tensor:
    """Return a tensor where another is."""
    device = device_of(neighbour)
    if device_of(tensor) == device:
        return tensor
    return send(tensor, device)


@dataclass(frozen=True)
class Layout:
    """Where a model's blocks go, in order, and where everything else is."""

    home: torch.device
    places: tuple[torch.device, ...]


def all_devices() -> list[torch.device]:
    """Return the GPUs that are there, and the processor for what they do not hold."""
    devices: list[torch.device] = []
    if torch.cuda.is_available():
        devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    devices.append(torch.device("cpu"))
    return devices


def fits_on(model: nn.Module, device: torch.device) -> bool:
    """Tell whether a GPU can hold the weights."""
    if device.type != "cuda":
        return True
    gpu_bytes = torch.cuda.get_device_properties(device).total_memory
    return count_weight_bytes(model) <= FULL * gpu_bytes


def count_weight_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's weights."""
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that a text goes through one after the other: the model's largest list of modules."""
    module_lists: list[nn.ModuleList] = [
        module for module in model.modules() if isinstance(module, nn.ModuleList)
    ]
    if not module_lists:
        raise ModelError(
            f"{type(model).__name__} has no list of blocks to lay out over devices",
            hint="use a larger device",
        )
    sizes = [count_weight_bytes(module_list) for module_list in module_lists]
    largest = sizes.index(max(sizes))
    return list(module_lists[largest])


def lay_out(
    model: nn.Module, devices: Sequence[torch.device], room: Sequence[int] | None = None
) -> Layout:
    """Divide blocks among devices: in proportion to the memory of the first ones, where these hold all, else filled.

    ``room`` is the memory for weights on each device; a processor's is not counted where it comes last.
    """
    block_sizes = [count_weight_bytes(block) for block in find_blocks(model)]
    model_bytes = count_weight_bytes(model)
    block_bytes = sum(block_sizes)
    other_bytes = model_bytes - block_bytes
    if room is None:
        room_by_device = [_room_for_weights(device) for device in devices]
    else:
        room_by_device = list(room)
    room_by_device[0] -= other_bytes  # embeddings, norms and head are at home
    counted_room: list[int] = []
    for device, device_room in zip(devices, room_by_device, strict=True):
        if device.type != "cpu" or room is not None or device == devices[0]:
            counted_room.append(device_room)
    block_room = sum(max(device_room, 0) for device_room in counted_room)
    counts_all_devices = len(counted_room) == len(devices)
    if counts_all_devices and block_room < block_bytes:
        raise ModelError(
            f"the weights take {model_bytes / 1e9:.1f} GB, "
            f"and there is room for {(block_room + other_bytes) / 1e9:.1f} GB",
            hint="use `quantise: 4bit`, more GPUs, or `device: spread`, which lets the processor compute the rest",
        )
    filled_share = min(1.0, block_bytes / max(block_room, 1))
    limits = [max(device_room, 0) * filled_share for device_room in room_by_device]
    block_devices = _assign_blocks(block_sizes, devices, limits)
    return Layout(devices[0], block_devices)


def _assign_blocks(
    block_sizes: Sequence[int], devices: Sequence[torch.device], limits: Sequence[float]
) -> tuple[torch.device, ...]:
    """Give blocks to devices in order: the next device begins where half a block would be over the limit of one."""
    block_devices: list[torch.device] = []
    current = 0
    used_bytes = 0.0
    for block_bytes in block_sizes:
        while (
            current + 1 < len(devices)
            and used_bytes + block_bytes > limits[current] + block_bytes / 2
        ):
            current += 1
            used_bytes = 0.0
        block_devices.append(devices[current])
        used_bytes += block_bytes
    return tuple(block_devices)


def spread(model: nn.Module, layout: Layout) -> None:
    """Move a model's parts to their places, and let what goes through them follow."""
    blocks = find_blocks(model)
    ids_inside_blocks: set[int] = set()
    for block in blocks:
        ids_inside_blocks.update(id(module) for module in block.modules())
    for module in model.modules():
        if id(module) not in ids_inside_blocks:
            module._apply(lambda tensor: tensor.to(layout.home), recurse=False)  # type: ignore[no-untyped-call]
    for block, device in zip(blocks, layout.places, strict=True):
        block.to(device)
    move_inputs_between(blocks, layout)


def move_inputs_between(blocks: Sequence[nn.Module], layout: Layout) -> None:
    """Send what enters a block to its device, and what the last one answers home."""
    sender = _TensorSender()
    for block, device in zip(blocks, layout.places, strict=True):
        block.register_forward_pre_hook(partial(sender.send_inputs, device), with_kwargs=True)
    blocks[-1].register_forward_hook(
        lambda _module, _inputs, output: sender.send_value(output, layout.home)
    )


class _TensorSender:
    """Sends tensors, wherever they lie in what a block takes; masks and positions once a pass, for all blocks there."""

    def __init__(self) -> None:
        # on each device: a tensor's version and its copy
        self._copies_by_device: dict[torch.device, WeakTensorKeyDictionary] = {}

    def send_inputs(
        self,
        device: torch.device,
        _: nn.Module,
        inputs: tuple[object, ...],
        options: dict[str, object],
    ) -> object:
        """Return a block's inputs on its device."""
        return self.send_value(inputs, device), self.send_value(options, device)

    def send_value(self, value: object, device: torch.device) -> Any:
        """Return a value with all tensors in it on a device."""
        if isinstance(value, Tensor):
            return self._send_tensor(value, device)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.send_value(part, device) for part in value))
        if isinstance(value, (tuple, list)):
            return type(value)(self.send_value(part, device) for part in value)
        if isinstance(value, dict):
            return {name: self.send_value(part, device) for name, part in value.items()}
        return value  # caches among them: each of their layers lives with its block

    def _send_tensor(self, tensor: Tensor, device: torch.device) -> Tensor:
        """Return a tensor on a device; without a gradient, its copy there is used until the tensor changes."""
        if device_of(tensor) == device:
            return tensor
        if tensor.requires_grad or tensor.is_inference():
            return send(tensor, device)
        copies = self._copies_by_device.setdefault(device, WeakTensorKeyDictionary())
        version, copy = copies.get(tensor, (None, None))  # type: ignore[no-untyped-call]
        if version != tensor._version:
            copy = send(tensor, device)
            copies[tensor] = (tensor._version, copy)
        return copy  # type: ignore[no-any-return]


def is_spread(model: nn.Module) -> bool:
    """Tell whether a model lies on several devices."""
    return len({parameter.device for parameter in model.parameters()}) > 1


def room_for_passes(model: nn.Module, *, reserved_bytes: int = 0) -> int | None:
    """Return the memory for a pass's activations as if all blocks lay on one GPU; None at home on a processor.

    A GPU that holds a part of the blocks keeps that part of the activations: the one with the least room for its part
    counts. ``reserved_bytes`` lie beside each weight (gradients, moments).
    """
    home = next(model.parameters()).device
    if home.type != "cuda":
        return None
    taken_bytes: dict[torch.device, int] = {}
    for parameter in model.parameters():
        parameter_bytes = parameter.numel() * (parameter.element_size() + reserved_bytes)
        taken_bytes[parameter.device] = taken_bytes.get(parameter.device, 0) + parameter_bytes
    free_bytes: dict[torch.device, int] = {}
    for device, taken in taken_bytes.items():
        if device.type == "cuda":
            free_bytes[device] = _process_memory(device) - taken
    if len(taken_bytes) == 1:
        return free_bytes[home]
    block_devices = [next(block.parameters()).device for block in find_blocks(model)]
    rooms: list[int] = []
    for device, free in free_bytes.items():
        blocks_there = max(block_devices.count(device), 1)
        rooms.append(free * len(block_devices) // blocks_there)
    return min(rooms)


def _process_memory(device: torch.device) -> int:
    """Return the memory of a GPU that this process may take: rows that share one have a part of it."""
    share = 1.0
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):
        share = torch.cuda.get_per_process_memory_fraction(device)
    return int(share * torch.cuda.get_device_properties(device).total_memory)


def free_memory(device: torch.device) -> int:
    """Return the memory of a GPU that this process may still take, what torch keeps unused included."""
    reserved = torch.cuda.memory_reserved(device)
    free_on_gpu, _ = torch.cuda.mem_get_info(device)
    unreserved = min(free_on_gpu, _process_memory(device) - reserved)
    return max(0, unreserved) + reserved - torch.cuda.memory_allocated(device)


def _room_for_weights(device: torch.device) -> int:
    """Return the memory that weights may take on a device."""
    if device.type == "cuda":
        return int(FILLED * free_memory(device))
    return UNLIMITED_BYTES


class Holder(Protocol):
    """Somebody who holds memory for speed alone."""

    def give_back(self) -> bool:
        """Let go of it, and return whether there was any."""


_HOLDERS: weakref.WeakSet[Holder] = weakref.WeakSet()


def may_give_back(holder: Holder) -> None:
    """Note who is to be asked when memory runs out, for as long as there is somebody."""
    _HOLDERS.add(holder)


def give_back(device: torch.device) -> bool:
    """Let go of what is held for speed alone and of what torch keeps for later; return whether anything was held.

    This is what everybody does first when memory runs out, before passes are made smaller: a process that has a part of
    a GPU may hold as much in captured passes as it lacks.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    answers = [holder.give_back() for holder in list(_HOLDERS)]
    gave_something = any(answers)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if gave_something:
        log.warning("out of memory: captured passes are let go, and made again in fewer sizes")
    return gave_something


_MEMORY_MESSAGES = (  # libraries raise a plain RuntimeError with these words
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cublas_status_alloc_failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out, on either kind of device."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return any(message in text for message in _MEMORY_MESSAGES)


def retry_with_freed_memory(device: torch.device, work: Callable[[], None]) -> None:
    """Do a piece of work, and do it once more where it lacked memory that somebody can give back."""
    try:
        return work()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    give_back(device)
    return work()
