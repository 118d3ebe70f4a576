"""A task's name says which benchmark, in which prompt form, and which fold: ``mmlu:choice:4#1/5``.

It is a string that knows its parts, as ``Protocol`` is: tables and files hold plain text,
and nobody else takes it apart.
"""

from __future__ import annotations

import re

_FOLD = re.compile(r"(.+)#(\d+)/(\d+)", re.DOTALL)


class TaskName(str):
    """``arc_easy``, ``arc_easy:cloze`` (a prompt form), ``arc_easy#2/5`` (the second of five folds)."""

    __slots__ = ()

    @property
    def whole(self) -> TaskName:
        """The task that a fold is of, as scores call it; the name itself where it is no fold."""
        found = _FOLD.fullmatch(self)
        return TaskName(found[1]) if found else self

    @property
    def fold(self) -> tuple[int, int] | None:
        """Which fold of how many; None where it is no fold."""
        found = _FOLD.fullmatch(self)
        return (int(found[2]), int(found[3])) if found else None

    @property
    def base(self) -> str:
        """The benchmark without form and fold."""
        return self.whole.partition(":")[0]

    @property
    def form(self) -> str:
        """The prompt form with its arguments (``choice:4``); empty for the benchmark's own."""
        return self.whole.partition(":")[2]

    @property
    def choices(self) -> int | None:
        """The number of options that a form ``choice:K`` leaves; None for every other."""
        form, _, count = self.form.partition(":")
        count = count.partition(":")[0]
        return int(count) if form == "choice" and count.isdigit() and int(count) > 0 else None

    def with_form(self, form: str) -> TaskName:
        """Return the same benchmark in another form."""
        return TaskName(f"{self.base}:{form}" if form else self.base)
