"""Cells as tests of stores and files make them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from potentia.store import CellRecord
from potentia.values.metric import Metric
from potentia.values.scores import Score


@pytest.fixture
def make_cell() -> Callable[..., CellRecord]:
    """Make a cell; every field can be given."""

    def make(key: str = "k1", *, value: float = 0.5, **fields: object) -> CellRecord:
        known: dict[str, object] = {
            "key": key,
            "study": "s1",
            "model": "m",
            "task": "t",
            "protocol": "direct",
            "metric": "acc",
            "scores": {
                "acc": Score(value, 0.01, 100, Metric.of("acc")),
                "acc_norm": Score(value / 2, 0.02, 100, Metric.of("acc_norm")),
            },
        }
        return CellRecord(**{**known, **fields})

    return make
