"""Matrices: weights that a module multiplies tokens by itself, without a linear layer.

Some modules hold the matrices of experts, heads or groups in one parameter. Which parameters are matrices, and which
of their dimensions is the input's, is found by trying: a run of the model notes which weights go into products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from potentia.engine.layers.routers import find_deciding_parameters
from potentia.engine.layers.trial_runs import (
    RecordedCall,
    Recording,
    drop_numbers,
    evaluating,
    run_and_record,
    run_on_rows,
)
from potentia.engine.models.split_model import find_body, requiring_gradients, try_once

TOKENS = 3
ROWS = 2
# functions of products: where their left and right factors stand among the arguments, and their names
PRODUCTS = {
    "matmul": ((0, "input"), (1, "other")),
    "__matmul__": ((0, "input"), (1, "other")),
    "mm": ((0, "input"), (1, "mat2")),
    "bmm": ((0, "input"), (1, "mat2")),
    "addmm": ((1, "mat1"), (2, "mat2")),
    "baddbmm": ((1, "batch1"), (2, "batch2")),
}
# what they return is the same matrix
COPIES = frozenset({"float", "to", "type_as", "contiguous", "half", "bfloat16"})


@dataclass(frozen=True)
class Matrix:
    """A parameter that its module multiplies by: one matrix, or those of several experts, heads or groups."""

    module_name: str
    module: nn.Module
    parameter: str
    out_first: bool  # whether a matrix is (out, in)
    groups: (
        int  # matrices side by side in a parameter of two dimensions, each with an input of its own
    )
    is_routed: bool  # whether a token goes through some of its matrices alone
    scope: nn.Module  # the module, or the one around it that is given the rows of a pass in order

    @property
    def name(self) -> str:
        """The parameter's full name."""
        return f"{self.module_name}.{self.parameter}"


def find_matrices(model: nn.Module, adapted: Sequence[nn.Module]) -> list[Matrix]:
    """Return the matrices of the body that a text reaches, but for those of ``adapted`` layers and of routers.

    PEFT wraps the parameter's module, and adapts the parameter while the module is called with an input. Left out are
    weights that are read without that (a step projection of Mamba), those of modules that are given their input by name
    (Zamba's mixers), and those of modules with a state that the model clears, which it would clear in the wrapper
    (RecurrentGemma's gates).
    """
    descriptions = try_once(model, "matrices", lambda: _describe_matrices(model, set(adapted)))
    modules = dict(model.named_modules())
    return [description.find_in(modules) for description in descriptions]


@dataclass(frozen=True)
class _Description:
    """A matrix by the names of modules: what holds for a model holds for its copies."""

    module_name: str
    parameter: str
    out_first: bool
    groups: int
    is_routed: bool
    scope_name: str

    def find_in(self, modules: Mapping[str, nn.Module]) -> Matrix:
        return Matrix(
            module_name=self.module_name,
            module=modules[self.module_name],
            parameter=self.parameter,
            out_first=self.out_first,
            groups=self.groups,
            is_routed=self.is_routed,
            scope=modules[self.scope_name],
        )


def _describe_matrices(model: nn.Module, adapted: set[nn.Module]) -> list[_Description]:
    """Try the first parameter of each kind that may be a matrix, and describe all of its kind alike."""
    names_by_kind = _group_candidates(model, adapted)
    if not names_by_kind:
        return []
    first_names = [names[0] for names in names_by_kind.values()]
    with evaluating(model), requiring_gradients(model, False):
        uses = _watch_products(model, first_names)
        if not uses:
            return []
        gradients = _compute_gradients(model, list(uses), tokens=TOKENS)
        gradients_alone = _compute_gradients(model, list(uses), tokens=1)
        all_names = [name for names in names_by_kind.values() for name in names]
        deciding = {drop_numbers(name) for name in find_deciding_parameters(model, all_names)}
        recording = run_and_record(model, tokens=TOKENS, rows=ROWS, modules=model.modules())
    descriptions: list[_Description] = []
    for kind, names in names_by_kind.items():
        first_name = names[0]
        if first_name not in uses or first_name not in gradients or kind in deciding:
            continue
        levels_up = _find_scope(model, recording, first_name)
        if levels_up is None:
            continue
        use = uses[first_name]
        is_routed = _has_untouched_matrices(gradients_alone.get(first_name))
        for full_name in names:
            module_name, _, parameter = full_name.rpartition(".")
            descriptions.append(
                _Description(
                    module_name=module_name,
                    parameter=parameter,
                    out_first=use.out_first,
                    groups=use.groups,
                    is_routed=is_routed,
                    scope_name=_go_up(module_name, levels_up),
                )
            )
    return descriptions


def _group_candidates(model: nn.Module, adapted: set[nn.Module]) -> dict[str, list[str]]:
    """Return the names of parameters of two or three dimensions in the body, by their kinds."""
    body_modules = set(find_body(model).modules())
    names_by_kind: dict[str, list[str]] = {}
    for module_name, module in model.named_modules():
        if module not in body_modules or module in adapted or isinstance(module, nn.Embedding):
            continue
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() in (2, 3) and parameter.is_floating_point():
                full_name = f"{module_name}.{parameter_name}"
                names_by_kind.setdefault(drop_numbers(full_name), []).append(full_name)
    return names_by_kind


# ---- products -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Use:
    """How a parameter goes into a product."""

    out_first: bool
    groups: int


class _Products(TorchFunctionMode):
    """Notes the products that parameters, or views of them, go into inside the block."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._parameters = dict(parameters)
        self._copies: list[tuple[str, Tensor]] = []  # in another dtype
        self.uses: dict[str, set[_Use]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        result = func(*args, **options)
        function_name = getattr(func, "__name__", "")
        if function_name in COPIES:
            self._note_copy(args[0], result)
        elif function_name == "linear":
            weight = _read_argument(args, options, 1, "weight")
            self._note_factor(weight, is_left=True)  # x Wᵀ sums over W's last dimension
        elif function_name in PRODUCTS:
            left, right = PRODUCTS[function_name]
            self._note_factor(_read_argument(args, options, *left), is_left=True)
            self._note_factor(_read_argument(args, options, *right), is_left=False)
        return result

    def _find_name(self, tensor: Tensor) -> str | None:
        """Return the parameter that a tensor is a view or a copy of."""
        for name, held in (*self._parameters.items(), *self._copies):
            if _lies_in(tensor, held):
                return name
        return None

    def _note_copy(self, original: Any, result: Any) -> None:
        if not isinstance(original, Tensor) or not isinstance(result, Tensor):
            return
        name = self._find_name(original)
        if name is not None and result.shape == self._parameters[name].shape:
            self._copies.append((name, result))

    def _note_factor(self, factor: Any, *, is_left: bool) -> None:
        """Note a factor of a product, which sums over a left factor's last dimension, a right one's last but one."""
        if not isinstance(factor, Tensor) or factor.dim() < 2:
            return
        name = self._find_name(factor)
        if name is None:
            return
        summed_dimension = factor.dim() - (1 if is_left else 2)
        groups = 1
        if self._parameters[name].dim() == 2:
            groups = factor[..., 0, 0].numel()
        # a parameter's last dimension is the one whose numbers lie side by side, in whatever view
        use = _Use(out_first=factor.stride(summed_dimension) == 1, groups=groups)
        self.uses.setdefault(name, set()).add(use)


def _read_argument(
    arguments: Sequence[Any], options: Mapping[str, Any], position: int, name: str
) -> Any:
    """Return what a function was called with, by its place or by its name."""
    if position < len(arguments):
        return arguments[position]
    return options.get(name)


def _lies_in(tensor: Tensor, parameter: Tensor) -> bool:
    """Return whether a tensor's numbers are among those of a parameter."""
    if tensor.untyped_storage().data_ptr() != parameter.untyped_storage().data_ptr():
        return False
    begin = parameter.storage_offset()
    return begin <= tensor.storage_offset() < begin + parameter.numel()


def _watch_products(model: nn.Module, names: Sequence[str]) -> dict[str, _Use]:
    """Run a model on a row, and return the parameters that go into products, always in one way."""
    parameters = {name: model.get_parameter(name).detach() for name in names}
    with _Products(parameters) as products:
        run_on_rows(model, tokens=TOKENS)
    return {name: next(iter(uses)) for name, uses in products.uses.items() if len(uses) == 1}


# ---- gradients ------------------------------------------------------------------------------------------------------


def _compute_gradients(model: nn.Module, names: Sequence[str], *, tokens: int) -> dict[str, Tensor]:
    """Return the gradients of parameters that the predictions after a row of tokens depend on."""
    parameters = {name: model.get_parameter(name) for name in names}
    if not parameters:
        return {}
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    with torch.enable_grad():
        token_ids = torch.arange(tokens, device=next(model.parameters()).device)[None]
        logits = model(input_ids=token_ids, use_cache=False).logits
        total = torch.logsumexp(logits.float(), dim=-1).sum()
        if not total.requires_grad:
            return {}
        gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return {
        name: gradient
        for name, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None and bool(gradient.any())
    }


def _has_untouched_matrices(gradient: Tensor | None) -> bool:
    """Return whether one token goes through some of the matrices of a parameter, and not through others."""
    if gradient is None or gradient.dim() < 3:
        return False
    is_touched = gradient.flatten(1).any(dim=1)
    return not bool(is_touched.all())


# ---- scopes ---------------------------------------------------------------------------------------------------------


def _find_scope(model: nn.Module, recording: Recording, full_name: str) -> int | None:
    """Return how many modules further out a parameter's scope is; None where PEFT or lanes cannot reach it."""
    module_name, _, parameter_name = full_name.rpartition(".")
    module = model.get_submodule(module_name)
    call = recording.calls.get(module)
    if call is None or not call.arguments or not isinstance(call.arguments[0], Tensor):
        return None
    if any(isinstance(value, Tensor) for value in vars(module).values()):
        return None  # it has a state
    matrix_count = module.get_parameter(parameter_name).shape[0]
    has_all_matrices = call.arguments[0].shape[0] == matrix_count * ROWS * TOKENS
    if _has_rows_in_order(call) or (has_all_matrices and len(call.arguments) == 1):
        return 0
    for levels_up in range(1, module_name.count(".") + 1):
        outer_call = recording.calls.get(model.get_submodule(_go_up(module_name, levels_up)))
        if outer_call is not None and _has_rows_in_order(outer_call):
            return levels_up
    return None


def _has_rows_in_order(call: RecordedCall) -> bool:
    """Return whether a module is given the tokens of a pass row by row."""
    tokens = call.first_tensor
    if tokens is None:
        return False
    if tokens.dim() == 2:
        return tokens.shape[0] == ROWS * TOKENS
    return tokens.shape[:2] == (ROWS, TOKENS)


def _go_up(module_name: str, levels: int) -> str:
    return ".".join(module_name.split(".")[: module_name.count(".") + 1 - levels])
