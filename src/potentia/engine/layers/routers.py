"""Routers: the linear maps that decide which experts a token goes through.

They have no adapters. In most families a router is no linear layer, and PEFT reaches it under no name; where it is one,
an adapter would let one family of mixtures learn what the others cannot. Names prove nothing (``router.gate``,
``router.proj``, ``router.layer``, an MLP of four layers), so routers are found by trying: a module that chooses some of
many by their scores is run again with random numbers in place of a layer's answer, and where the scores change, the
layer decides. Choices among tokens are other choices: their number goes with the length of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from potentia.engine.layers.trial_runs import (
    RecordedCall,
    Recording,
    draw_like,
    drop_numbers,
    evaluating,
    run_and_record,
    run_on_rows,
    using_weight,
)
from potentia.engine.models.split_model import requiring_gradients, try_once

CHOOSING_FUNCTIONS = frozenset({"topk", "argmax", "argsort", "sort"})
# tokens of two rows: a choice among as many in both is one among experts
TOKENS = 3
OTHER_TOKENS = 5
DRAWS = 2


def find_routers(model: nn.Module, layers: Sequence[tuple[str, nn.Module]]) -> set[str]:
    """Return the names of the linear layers that decide which experts a token goes through."""
    kinds = try_once(model, "routers", lambda: _find_kinds_of_routers(model, layers))
    return {layer_name for layer_name, _ in layers if drop_numbers(layer_name) in kinds}


def _find_kinds_of_routers(
    model: nn.Module, layers: Sequence[tuple[str, nn.Module]]
) -> frozenset[str]:
    """Return the names of routers, with the numbers of blocks left out."""
    kinds: set[str] = set()
    with evaluating(model), requiring_gradients(model, False), torch.no_grad():
        choosers = _find_choosers(model)
        recording = run_and_record(
            model,
            tokens=TOKENS,
            modules=choosers.values(),
            layers=[layer for _, layer in layers] if choosers else [],
        )
        for chooser_name, chooser in choosers.items():
            for layer_name, layer in layers:
                is_inside = layer_name.startswith(f"{chooser_name}.")
                if is_inside and _decides(chooser, layer, recording):
                    kinds.add(drop_numbers(layer_name))
    return frozenset(kinds)


def find_deciding_parameters(model: nn.Module, full_names: Sequence[str]) -> set[str]:
    """Return which of these parameters, by their full names, decide which experts a token goes through."""
    deciding: set[str] = set()
    with evaluating(model), requiring_gradients(model, False), torch.no_grad():
        choosers = _find_choosers(model)
        recording = run_and_record(model, tokens=TOKENS, modules=choosers.values())
        for chooser_name, chooser in choosers.items():
            for full_name in full_names:
                is_inside = full_name.startswith(f"{chooser_name}.")
                if is_inside and _parameter_decides(model, full_name, chooser, recording):
                    deciding.add(full_name)
    return deciding


# ---- modules that choose --------------------------------------------------------------------------------------------


@dataclass
class _Choices(TorchFunctionMode):
    """Notes what is chosen from inside the block, by the innermost module that is running."""

    running: list[nn.Module] = field(default_factory=list)
    scores: dict[nn.Module, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        is_choice = getattr(func, "__name__", "") in CHOOSING_FUNCTIONS
        if is_choice and self.running and args and args[0].is_floating_point():
            noted = self.scores.setdefault(self.running[-1], [])
            noted.append(args[0].detach().float().cpu())
        return func(*args, **(kwargs or {}))


@contextmanager
def _noting_choices(model: nn.Module) -> Iterator[_Choices]:
    """Note the choices of a model's modules inside the block."""
    choices = _Choices()

    def enter(module: nn.Module, _: Any) -> None:
        choices.running.append(module)

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        choices.running.pop()

    hooks = [module.register_forward_pre_hook(enter) for module in model.modules()]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in model.modules()]
    try:
        with choices:
            yield choices
    finally:
        for hook in hooks:
            hook.remove()


def _find_choosers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the first module of each kind that chooses among as many in rows of any length, by its name."""
    choosers: dict[str, nn.Module] = {}
    sizes_by_row: list[dict[nn.Module, set[int]]] = []
    for tokens in (TOKENS, OTHER_TOKENS):
        with _noting_choices(model) as choices:
            run_on_rows(model, tokens=tokens)
        sizes_by_row.append({module: _sizes(scores) for module, scores in choices.scores.items()})
    kinds_seen: set[str] = set()
    for module_name, module in model.named_modules():
        kind = drop_numbers(module_name)
        sizes = sizes_by_row[0].get(module, set()) & sizes_by_row[1].get(module, set())
        if sizes and kind not in kinds_seen:
            kinds_seen.add(kind)
            choosers[module_name] = module
    return choosers


def _sizes(scores: Sequence[Tensor]) -> set[int]:
    """Return among how many was chosen; among one is no choice."""
    return {tensor.shape[-1] for tensor in scores if tensor.dim() and tensor.shape[-1] > 1}


# ---- what decides ---------------------------------------------------------------------------------------------------


def _decides(chooser: nn.Module, layer: nn.Module, recording: Recording) -> bool:
    """Return whether a module chooses from other scores where a layer inside it answers otherwise."""
    if chooser not in recording.calls or layer not in recording.answers:
        return False
    call = recording.calls[chooser]
    expected_scores = _read_scores(call)
    for seed in range(DRAWS):
        scores = _read_scores(call, {layer: draw_like(recording.answers[layer], seed)})
        if _differ(scores, expected_scores):
            return True
    return False


def _parameter_decides(
    model: nn.Module, full_name: str, chooser: nn.Module, recording: Recording
) -> bool:
    """Return whether a module chooses from other scores where a parameter inside it has other numbers."""
    if chooser not in recording.calls:
        return False
    module_name, _, parameter_name = full_name.rpartition(".")
    module = model.get_submodule(module_name)
    call = recording.calls[chooser]
    expected_scores = _read_scores(call)
    weight = draw_like(module.get_parameter(parameter_name), seed=0)
    with using_weight(module, parameter_name, weight):
        return _differ(_read_scores(call), expected_scores)


def _differ(scores: Sequence[Tensor], expected_scores: Sequence[Tensor]) -> bool:
    pairs = zip(scores, expected_scores, strict=False)
    return any(not torch.equal(ours, expected) for ours, expected in pairs)


def _read_scores(
    call: RecordedCall, answers: dict[nn.Module, Tensor] | None = None
) -> list[Tensor]:
    """Return what a module chooses from when it is called again."""
    with _noting_choices(call.module) as choices:
        call.repeat(answers)
    return choices.scores.get(call.module, [])
