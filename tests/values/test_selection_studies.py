"""The names of a selection's studies are read as they were written."""

from __future__ import annotations

import pytest

from potentia.values.selection_studies import SelectionPart, SelectionStudy


@pytest.mark.parametrize(
    ("name", "study"),
    [
        ("tickets-direct", SelectionStudy("tickets", SelectionPart.DIRECT)),
        ("tickets-round-12", SelectionStudy("tickets", SelectionPart.ROUND, 12)),
        ("my-round-1-final", SelectionStudy("my-round-1", SelectionPart.FINAL)),
        ("a-embeddings", SelectionStudy("a", SelectionPart.EMBEDDINGS)),
    ],
)
def test_a_name_says_which_part_of_which_selection_it_is(name: str, study: SelectionStudy) -> None:
    assert SelectionStudy.parse(name) == study
    assert study.name == name


@pytest.mark.parametrize(
    "name", ["tickets", "mmlu-5", "tickets-round", "final", "-final", "a-round-x"]
)
def test_other_studies_are_no_selections(name: str) -> None:
    """A study that is called ``mmlu-5`` was taken for a part of a selection ``mmlu``."""
    assert SelectionStudy.parse(name) is None
