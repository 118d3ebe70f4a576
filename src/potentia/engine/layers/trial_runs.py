"""Trial runs: a module is called again as the model called it, with other numbers in place of a layer's answer.

What a layer is cannot be read from its name. What its outputs do can be seen: the module around it is run by itself,
on the inputs that it had in a run of the whole model, and the layer answers with numbers of our own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.models.device_layout import move_beside


def drop_numbers(layer_name: str) -> str:
    """Return a layer's name with N for the numbers of blocks and experts: layers of one kind have one."""
    return re.sub(r"\.\d+(?=\.|$)", ".N", layer_name)


@dataclass
class RecordedCall:
    """What a module was called with in a run of the model."""

    module: nn.Module
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def repeat(self, answers: Mapping[nn.Module, Tensor] | None = None) -> Any:
        """Call the module again; the layers that ``answers`` names answer with these numbers."""
        hooks = [
            layer.register_forward_hook(_give_answer(answer))
            for layer, answer in (answers or {}).items()
        ]
        try:
            return self.module(*self.arguments, **self.options)
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def first_tensor(self) -> Tensor | None:
        """The first tensor that the module was called with, by its place or by a name."""
        for value in (*self.arguments, *self.options.values()):
            if isinstance(value, Tensor):
                return value
        return None


def _give_answer(answer: Tensor) -> Callable[..., Tensor]:
    def give(*_: Any) -> Tensor:
        return answer

    return give


@dataclass(frozen=True)
class Recording:
    """The calls of modules in one run of a model, and what layers answered: the last time, where there were several."""

    calls: dict[nn.Module, RecordedCall]
    answers: dict[nn.Module, Tensor]


def run_and_record(
    model: nn.Module,
    *,
    tokens: int,
    rows: int = 1,
    modules: Iterable[nn.Module],
    layers: Iterable[nn.Module] = (),
) -> Recording:
    """Run a model on rows of so many tokens, and record the calls of ``modules`` and the answers of ``layers``."""
    recording = Recording({}, {})
    hooks: list[Any] = []

    def note_call(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        recording.calls[module] = RecordedCall(module, arguments, options)

    def note_answer(layer: nn.Module, _: Any, answer: Any) -> None:
        if isinstance(answer, Tensor) and answer.dim() > 1:
            recording.answers[layer] = answer.detach()

    for module in dict.fromkeys(modules):
        hooks.append(module.register_forward_pre_hook(note_call, with_kwargs=True))
    for layer in dict.fromkeys(layers):
        hooks.append(layer.register_forward_hook(note_answer))
    try:
        run_on_rows(model, tokens=tokens, rows=rows)
    finally:
        for hook in hooks:
            hook.remove()
    return recording


def run_on_rows(model: nn.Module, *, tokens: int, rows: int = 1) -> None:
    """Run a model on rows of so many tokens."""
    with torch.no_grad():
        device = next(model.parameters()).device
        token_ids = torch.arange(rows * tokens, device=device).view(rows, tokens)
        model(input_ids=token_ids, use_cache=False)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Let a model evaluate inside the block: nothing is dropped."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def using_weight(module: nn.Module, parameter_name: str, weight: Tensor) -> Iterator[None]:
    """Let a module compute with another weight in place of a parameter inside the block."""
    parameters = module._parameters
    original = parameters[parameter_name]
    order = list(parameters)
    del parameters[parameter_name]
    module.__dict__[parameter_name] = weight
    try:
        yield
    finally:
        module.__dict__.pop(parameter_name, None)
        parameters[parameter_name] = original
        for name in order:  # PEFT nests its wrappers in this order
            parameters[name] = parameters.pop(name)


def draw_like(tensor: Tensor, seed: int) -> Tensor:
    """Return random numbers in the shape of a tensor, the same on every device."""
    stream = torch.Generator().manual_seed(seed)
    drawn = torch.randn(tensor.shape, generator=stream)
    return move_beside(drawn, tensor).to(tensor.dtype)
