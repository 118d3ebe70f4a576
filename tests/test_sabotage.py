"""A sample of deliberate breaks: the checks notice them. ``make sabotage`` tries all."""

from __future__ import annotations

import pytest
import torch

import sabotage

SAMPLE = (
    "residual: attention counts 0.98",
    "attention: sees other rows",
    "routing: gradients to another lane",
    "scale: α/r left out",
    "loss: the prompt's last token counts",
    "optimizer: no clipping",
    "mask: sees a sibling's first token",
    "tail: temperature of 1.02",
    "routing: requests to other adapters",
    "cache: positions stand still",
    "slots: beyond the third never move",
    "routing: slot modulo four, packed",
    "passes: the last left out",
    "passes: the first counts twice, packed",
    "slots: a new lane inherits moments",
    "rate: twice, in the update's table",
    "loss: the end of text is not learned",
    "resume: moments not saved",
)


def test_there_are_forty_of_every_kind() -> None:
    names = [one.name for one in sabotage.breaks()]
    assert len(names) == len(set(names)) >= 40
    kinds = {name.partition(":")[0] for name in names}
    assert kinds >= {
        "norm",
        "routing",
        "scale",
        "loss",
        "gradient",
        "optimizer",
        "mask",
        "window",
        "positions",
        "tail",
    }
    assert kinds >= {"tokens", "cache"}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_break_is_noticed(name: str) -> None:
    (broken,) = [one for one in sabotage.breaks() if one.name == name]
    assert sabotage.noticed(broken, torch.float32)


def test_nothing_is_noticed_where_nothing_is_broken() -> None:
    from contextlib import nullcontext

    for by in (
        "hand",
        "long",
        "shared",
        "first",
        "first packed",
        "score",
        "adapters",
        "write",
        "seats",
    ):
        assert not sabotage.noticed(sabotage.Break("nothing", by, nullcontext), torch.float32), by
