"""Operations computed twice, by kernels and plainly: in 16 bits a pass hides what one operation shows.

The structure of a form is compared in float32 by the plain operations (see ``engine.proof.training_check``), so kernels
are not compiled for numbers that no run computes with. That they compute what the plain ones do is checked here, in
the dtype of the run and on its own values, operation by operation: rounding is a hundredth there, where the gradient
of a whole model may be off by half of its size. What all calls of a pass give is compared together: a layer whose
gradients cancel is rounding alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from potentia.engine.operations import plain

if TYPE_CHECKING:
    from potentia.engine.layers.row_layout import AdapterGroup, LaneRoute
    from potentia.engine.operations import Operations

# how far an operation's results may be off, as a share: gradients lose more, where what they add up cancels
FORWARD_SHARE = 0.05
BACKWARD_SHARE = 0.09
BACKWARD_OPERATIONS = frozenset(
    {
        "norm_back",
        "gate_back_",
        "convolve_back",
        "attend_back",
        "backpropagate_adapters",
        "sum_adapter_gradients",
        "group_gradients",
    }
)
# arguments that an operation writes to, by name
WRITTEN_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "add_adapter_outputs": ("y",),
    "add_group_outputs_": ("y",),
    "backpropagate_adapters": ("dx",),
    "attend_back": ("into",),
    "gate_back_": ("gates", "gradient"),
    "rotate_": ("x",),
    "update_": ("weights",),
}


class ComparedKernels:
    """The kernels; each call is made by the plain operation too, and how far the two differ is summed up.

    It has the methods of :class:`~potentia.engine.operations.Operations`.
    """

    def __init__(self, kernels: Operations) -> None:
        self.kernels = kernels
        self._compiling_alone = False
        # by operation: squares of differences and of results, call by call (results, 2)
        self._squares: dict[str, list[Tensor]] = {}

    def check_distances(self) -> dict[str, float]:
        """Return how far kernels are off, as shares of all their results; refuse what is off by more than rounding."""
        shares: dict[str, float] = {}
        for operation, squares in self._squares.items():
            sums = torch.stack(squares).double().sum(0)  # (results, 2)
            share = float((sums[:, 0] / sums[:, 1].clamp(min=1e-30)).max().sqrt())
            allowed = BACKWARD_SHARE if operation in BACKWARD_OPERATIONS else FORWARD_SHARE
            if not share <= allowed:
                raise ArithmeticError(
                    f"the kernel of {operation} is off by {share:.1e} of its results"
                )
            shares[operation] = float(f"{share:.1e}")
        return shares

    @contextmanager
    def _compile_alone(self, compiling: AbstractContextManager[None]) -> Iterator[None]:
        """Let kernels be compiled alone inside the block: they write nothing that could be compared."""
        self._compiling_alone = True
        try:
            with compiling:
                yield
        finally:
            self._compiling_alone = False

    def compiling(self, kind: str, /) -> AbstractContextManager[None] | None:
        """Return a context in which kernels are compiled and not run; None where there is nothing to compile."""
        compiling = self.kernels.compiling(kind)
        return None if compiling is None else self._compile_alone(compiling)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel: Callable[..., Any] = getattr(self.kernels, name)
        if self._compiling_alone:
            return kernel
        return partial(self._call_both, name, kernel, getattr(plain, name))

    def _call_both(
        self,
        operation: str,
        kernel: Callable[..., Any],
        plain_operation: Callable[..., Any],
        *args: Any,
        **options: Any,
    ) -> Any:
        """Call kernel and plain operation on the same values, note how far they differ, and return the kernel's."""
        bound = inspect.signature(plain_operation).bind(*args, **options)
        arguments = bound.arguments
        copies = {key: _copy(value) for key, value in arguments.items()}
        first_tensor = args[0]
        sums: list[Tensor] = []
        if operation == "sum_adapter_gradients":
            sums = _adapter_gradients(arguments["group"], arguments["route"])
        sums_before = _copy(sums)
        result = kernel(*args, **options)
        sums_of_kernel = _copy(sums)
        kernel_values = _values_of_call(operation, result, arguments, sums, first_tensor)
        _put(sums, sums_before)
        plain_result = plain_operation(**copies)
        plain_values = _values_of_call(operation, plain_result, copies, sums, first_tensor)
        _put(sums, sums_of_kernel)
        squares = [
            _squares_of(ours, theirs)
            for ours, theirs in zip(kernel_values, plain_values, strict=True)
        ]
        self._squares.setdefault(operation, []).append(torch.stack(squares))
        return result


def _values_of_call(
    operation: str, result: Any, arguments: dict[str, Any], sums: list[Tensor], like: Tensor
) -> list[Tensor]:
    """Return all that a call computed: its results, the arguments that it wrote to, and the sums that it added to."""
    values = list(_tensors_in(result))
    for argument in WRITTEN_ARGUMENTS.get(operation, ()):
        values.append(_join(arguments.get(argument), like))
    values.append(_join(sums, like))
    return values


def _adapter_gradients(group: AdapterGroup, route: LaneRoute) -> list[Tensor]:
    """Return the lanes' gradients of a group's adapters, which are added to."""
    return [route.bank.grads[:, site.offset : site.offset + site.size] for site in group.sites]


def _squares_of(kernel_result: Tensor, theirs: Tensor) -> Tensor:
    """Return ‖ours − theirs‖² and ‖theirs‖²."""
    precise_ours = kernel_result.detach().float()
    precise_theirs = theirs.detach().float()
    difference = (precise_ours - precise_theirs).square().sum()
    return torch.stack([difference, precise_theirs.square().sum()])


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors_in(part)


def _join(value: Any, like: Tensor) -> Tensor:
    """Return all numbers of a result as one, none where it is None: the small beside the rest may be rounding alone."""
    parts = [part.flatten().float() for part in _tensors_in(value)]
    return torch.cat([*parts, like.new_zeros(0).float()])


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(_copy(part) for part in value)
    return value


def _put(tensors: list[Tensor], values: list[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
