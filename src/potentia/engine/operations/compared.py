"""Operations computed twice, by kernels and plainly: in 16 bits a pass hides what one operation shows.

The structure of a form is judged in float32 by the plain operations (see ``engine.tune.check``), so kernels are not
compiled for numbers that no run computes with. That they compute what the plain ones do is judged here, in the dtype of
the run and on its own values, operation by operation: rounding is a hundredth there, where the gradient of a whole
model may be off by half of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from potentia.engine.operations import plain

FORWARD, BACKWARD = 0.1, 0.5  # of an operation's result: gradients lose more, where what they add up cancels
WRITTEN = {"thin": 1, "thin_back": 2, "attend_back": 9}  # the argument that an operation writes into, else its first
ALIKE = {"attend": 1}  # results that are compared, where not all: each form has log-sums in a base of its own


class Compared:
    """The kernels; each call is made by the plain operation too, and refused where the two differ."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels
        self.worst: dict[str, float] = {}  # by operation
        self._readying = False

    @contextmanager
    def _compiling(self, readying: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Let kernels be compiled alone inside the block: they write nothing that could be compared."""
        self._readying = True
        try:
            with readying():
                yield
        finally:
            self._readying = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ours: Callable[..., Any] = getattr(self.kernels, name)
        if name == "readying":
            return partial(self._compiling, ours)
        if self._readying:
            return ours
        theirs = getattr(plain, name)
        written = WRITTEN.get(name, 0 if name.endswith("_") else None)

        def both(*args: Any, **options: Any) -> Any:
            copies, plain_options = _copied([*args]), {key: _copied(value) for key, value in options.items()}
            sums = _sums(*args[-2:]) if name == "thin_back" else []
            before = _copied(sums)
            results = [ours(*args, **options)]
            found = [*_tensors(results)][: ALIKE.get(name)] + _copied(sums)
            _put(sums, before)
            plainly = [*_tensors([theirs(*copies, **plain_options)])][: ALIKE.get(name)] + _copied(sums)
            if written is not None and args[written] is not None:
                found, plainly = [_joint(args[written]), *found], [_joint(copies[written]), *plainly]
            _put(sums, found[len(found) - len(sums) :])
            self._judge(name, found, plainly)
            return results[0]

        return both

    def _judge(self, name: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
        off = float(torch.stack([_gap(one, other) for one, other in zip(ours, theirs, strict=True)]).max())
        if not off <= (BACKWARD if "back" in name else FORWARD):
            raise ArithmeticError(f"the kernel of {name} is off by {off:.1e} of its result")
        self.worst[name] = max(float(f"{off:.1e}"), self.worst.get(name, 0.0))


def _sums(group: Any, route: Any) -> list[Tensor]:
    """Return the lanes' gradients of a group's adapters, which are added to."""
    return [route.bank.grads[:, site.offset : site.offset + site.size] for site in group.sites]


def _gap(one: Tensor, other: Tensor) -> Tensor:
    """Return ‖one − other‖ / ‖other‖."""
    one, other = one.detach().float(), other.detach().float()
    gap: Tensor = torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other).clamp(min=1e-30)
    return gap


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _joint(value: Any) -> Tensor:
    """Return all numbers of a result as one: what is small beside the rest may be rounding alone."""
    return torch.cat([part.flatten().float() for part in _tensors(value)])


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return type(value)(map(_copied, value)) if type(value) in (tuple, list) else value


def _put(into: list[Tensor], values: list[Tensor]) -> None:
    for part, value in zip(into, values, strict=True):
        part.copy_(value)
