"""Operations computed twice, by kernels and plainly: in 16 bits a pass hides what one operation shows.

The structure of a form is judged in float32 by the plain operations (see ``engine.proof.training_check``), so kernels
are not compiled for numbers that no run computes with. That they compute what the plain ones do is judged here, in
the dtype of the run and on its own values, operation by operation: rounding is a hundredth there, where the gradient
of a whole model may be off by half of its size. What all calls of a pass give is judged together: a layer whose
gradients cancel is rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from potentia.engine.operations import plain

FORWARD, BACKWARD = (
    0.05,
    0.09,
)  # of an operation's results: gradients lose more, where what they add up cancels
WRITTEN = {
    "thin": (1,),
    "thin_back": (1,),
    "attend_back": (9,),
    "gate_back_": (0, 1),
}  # arguments that are written to
ALIKE = {
    "attend": 1
}  # results that are compared, where not all: each form has log-sums in a base of its own


class Compared:
    """The kernels; each call is made by the plain operation too, and how far the two differ is summed up."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels
        self._readying = False
        self._gaps: dict[
            str, list[Tensor]
        ] = {}  # by operation: squares of gaps and of results, one by one (k, 2)

    def judge(self) -> dict[str, float]:
        """Return how far kernels are off, as shares of all their results; refuse what is off by more than rounding."""
        found = {}
        for name, sums in self._gaps.items():
            gaps = torch.stack(sums).double().sum(0)  # (results, 2)
            found[name] = float((gaps[:, 0] / gaps[:, 1].clamp(min=1e-30)).max().sqrt())
            if not found[name] <= (BACKWARD if "back" in name or name == "thin_sums" else FORWARD):
                raise ArithmeticError(
                    f"the kernel of {name} is off by {found[name]:.1e} of its results"
                )
        return {name: float(f"{off:.1e}") for name, off in found.items()}

    @contextmanager
    def _compiling(
        self, readying: Callable[..., AbstractContextManager[None]], *kind: str
    ) -> Iterator[None]:
        """Let kernels be compiled alone inside the block: they write nothing that could be compared."""
        self._readying = True
        try:
            with readying(*kind):
                yield
        finally:
            self._readying = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ours: Callable[..., Any] = getattr(self.kernels, name)
        if name == "readying":
            return partial(self._compiling, ours)
        return ours if self._readying else partial(self._both, name, ours, getattr(plain, name))

    def _both(
        self,
        name: str,
        ours: Callable[..., Any],
        theirs: Callable[..., Any],
        *args: Any,
        **options: Any,
    ) -> Any:
        written = WRITTEN.get(name, (0,) if name.endswith("_") else ())
        copies, kept = _copied([*args]), {key: _copied(value) for key, value in options.items()}
        sums = _sums(*args[-2:]) if name == "thin_sums" else []
        before = _copied(sums)
        result = ours(*args, **options)
        added = _copied(sums)
        found = [
            *_results(name, result),
            *(_joint(args[place], args[0]) for place in written),
            _joint(sums, args[0]),
        ]
        _put(sums, before)
        plainly = _results(name, theirs(*copies, **kept))
        wanted = [
            *plainly,
            *(_joint(copies[place], args[0]) for place in written),
            _joint(sums, args[0]),
        ]
        _put(sums, added)
        self._gaps.setdefault(name, []).append(torch.stack([*map(_squares, found, wanted)]))
        return result


def _sums(group: Any, route: Any) -> list[Tensor]:
    """Return the lanes' gradients of a group's adapters, which are added to."""
    return [route.bank.grads[:, site.offset : site.offset + site.size] for site in group.sites]


def _squares(one: Tensor, other: Tensor) -> Tensor:
    """Return ‖one − other‖² and ‖other‖²."""
    one, other = one.detach().float(), other.detach().float()
    return torch.stack([(one - other).square().sum(), other.square().sum()])


def _results(name: str, result: Any) -> list[Tensor]:
    return [*_tensors(result)][: ALIKE.get(name)]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _joint(value: Any, like: Tensor) -> Tensor:
    """Return all numbers of a result as one, none where it is None: the small beside the rest may be rounding alone."""
    return torch.cat([part.flatten().float() for part in (*_tensors(value), like.new_zeros(0))])


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return type(value)(map(_copied, value)) if type(value) in (tuple, list) else value


def _put(into: list[Tensor], values: list[Tensor]) -> None:
    for part, value in zip(into, values, strict=True):
        part.copy_(value)
