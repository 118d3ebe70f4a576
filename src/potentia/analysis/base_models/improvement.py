"""How much one method improves on another: a difference of two taus on the same models, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potentia.values.findings import Bars, Interval, Table


@dataclass(frozen=True)
class Improvement:
    """How much more stable (or consistent) one method is than another on the same models."""

    series: str
    task: str
    method: str
    baseline: str
    difference: Interval

    @property
    def real(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.difference.low > 0 or self.difference.high < 0


def improvement_table(title: str, improvements: Sequence[Improvement], group: str) -> Table:
    """Lay out improvements: one row per benchmark and method, with whether the interval leaves out zero."""
    return Table(
        title,
        (group, "task", "method", "difference", "low", "high", "real"),
        tuple(
            (
                i.series,
                i.task,
                i.method,
                i.difference.value,
                i.difference.low,
                i.difference.high,
                "yes" if i.real else "no",
            )
            for i in improvements
        ),
        note="real: the interval leaves out zero.",
    )


def improvement_chart(name: str, title: str, improvements: Sequence[Improvement]) -> Bars:
    """Draw improvements as bars with intervals, one group per benchmark and one colour per method."""
    labels = tuple(dict.fromkeys(f"{i.task} ({i.series})" for i in improvements))
    methods = tuple(dict.fromkeys(i.method for i in improvements))
    table = {(f"{i.task} ({i.series})", i.method): i.difference for i in improvements}
    missing = Interval(float("nan"), float("nan"), float("nan"))

    def pick(part: str) -> dict[str, tuple[float, ...]]:
        return {m: tuple(float(getattr(table.get((label, m), missing), part)) for label in labels) for m in methods}

    return Bars(
        name,
        title,
        f"Difference in Kendall's tau to {improvements[0].baseline}, with 95 % intervals; above zero is better.",
        labels=labels,
        series=pick("value"),
        low=pick("low"),
        high=pick("high"),
        y_label="difference in tau",
    )
