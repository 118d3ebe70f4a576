"""Two devices on one processor: tensors carry the name of the device they are on, and no operation may mix two.

Places are names; what is sent to one is copied and named after it, and what an operation makes is where its inputs are.
Tensors made of nothing, and single numbers, are anywhere, as a processor's numbers are to a GPU.
"""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.models import device_layout as spread
from potentia.engine.steps import padded_pass as passes


class Devices(TorchDispatchMode):
    """Refuses operations on tensors of two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        self.sent = 0
        self.checked = 0

    def name(self, tensor: Tensor) -> str | None:
        return self.names.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None

    def put(self, tensor: Tensor, name: str) -> Tensor:
        storage = tensor.untyped_storage()
        self.names[storage.data_ptr()] = name
        weakref.finalize(storage, self.names.pop, storage.data_ptr(), None)
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        names = {self.name(one) for one in given if one.dim()} - {None}
        if len(names) > 1:
            raise AssertionError(f"{func} on {sorted(map(str, names))}")
        self.checked += bool(names)
        known = {one.untyped_storage().data_ptr() for one in given}
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if (
                isinstance(one, Tensor)
                and one.numel()
                and one.untyped_storage().data_ptr() not in known
            ):
                self.names.pop(one.untyped_storage().data_ptr(), None)
                if names:
                    self.put(one, next(iter(names)))
        return out


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, place: str, devices: Devices) -> Tensor:
        ctx.held = devices.name(tensor), devices
        return _copy(tensor, place, devices)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        name, devices = ctx.held
        return _copy(grads[0], name, devices), None, None


def _copy(tensor: Tensor, place: str, devices: Devices) -> Tensor:
    devices.sent += 1
    return devices.put(tensor.clone(), place)


def spread_over_two(model: torch.nn.Module, away: int, patch: pytest.MonkeyPatch) -> Devices:
    """Lay a model's blocks from ``away`` on out on another device, and return what watches over both."""
    devices = Devices()
    patch.setattr(spread, "device_of", devices.name)
    patch.setattr(spread, "send", lambda tensor, place: _Sent.apply(tensor, place, devices))
    blocks = spread.find_blocks(model)
    places = tuple("home" if k < away else "away" for k in range(len(blocks)))
    inside = {id(p) for block in blocks for p in [*block.parameters(), *block.buffers()]}
    for tensor in [*model.parameters(), *model.buffers()]:
        if id(tensor) not in inside and tensor.numel():
            devices.put(tensor, "home")
    for block, place in zip(blocks, places, strict=True):
        for tensor in [*block.parameters(), *block.buffers()]:
            devices.put(tensor, place)
    made, sent_home = AdapterBank.__init__, passes.to_device

    def make(bank: AdapterBank, *args: Any) -> None:
        made(bank, *args)
        for tensor in (bank.weights, bank.grads, bank.work, bank.scales):
            devices.put(tensor, "home")

    patch.setattr(AdapterBank, "__init__", make)
    patch.setattr(
        passes,
        "to_device",
        lambda values, device: devices.put(sent_home(values, device).clone(), "home"),
    )
    spread.move_inputs_between(blocks, spread.Layout("home", places))  # type: ignore[arg-type]
    return devices
