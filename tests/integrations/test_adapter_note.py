"""What an exported folder says of itself, and what is said of a folder or file that is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from potentia.errors import InputError
from potentia.integrations.adapter_note import read_note
from potentia.integrations.adapters import adapter_card
from potentia.store import CellRecord
from potentia.values.provenance import Provenance
from potentia.values.selection import Selection


def test_the_folder_above_names_the_folders_to_give(tmp_path: Path) -> None:
    for name in ("adapter", "classifier"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "potentia.json").write_text("{}")
    with pytest.raises(InputError) as refused:
        read_note(tmp_path)
    assert (
        refused.value.hint == f"give one of its folders: {tmp_path}/adapter, {tmp_path}/classifier"
    )


def test_a_file_in_the_folders_place_names_the_order(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text\nhello\n")
    with pytest.raises(InputError) as refused:
        read_note(tmp_path / "new.csv")
    assert "the folder comes first" in str(refused.value.hint)


def test_another_folder_names_the_commands_that_write_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_note(tmp_path)
    assert "potentia select or potentia adapters export" in str(refused.value.hint)


def test_the_card_of_an_untuned_model_says_so_and_names_the_task_not_its_fold(
    make_cell: Callable[..., CellRecord],
) -> None:
    cell = make_cell(
        model="org/m",
        task="tickets#1/5",
        protocol="train_before_test",
        selection=Selection(style="plain", epoch=0, tuned=False),
    )
    card = adapter_card(cell, "org/m", (), "adapter", tested_folds=5)
    assert "`org/m` unchanged: fine-tuning on tickets did not help on validation" in card
    assert "The scores are over 5 folds" in card
    assert "learning rate None" not in card
    assert "tickets#1/5" not in card


def test_the_card_of_an_adjusted_model_has_the_recipe_that_it_inherits(
    make_cell: Callable[..., CellRecord],
) -> None:
    tuning = {"learning_rates": [0.003], "epochs": 7, "batch": 8, "rank": 8, "method": "lora"}
    cell = make_cell(
        model="org/m",
        task="tickets",
        protocol="adjust",
        selection=Selection(style="plain", epoch=2, tuned=True, learning_rate=0.003),
        provenance=Provenance(adjust={"data": "arc", "tuning": None}, adjusted_with=tuning),
    )
    card = adapter_card(cell, "org/m", (), "adapter")
    assert "| epochs | 7 |" in card
    assert "| learning rates | 0.003 |" in card
