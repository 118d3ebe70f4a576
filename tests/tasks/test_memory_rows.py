"""Rows of a DataFrame are what the user sees: a blank is a blank, and a whole number is one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ticket_files
from potentia import tasks
from potentia.selection import write_rows
from potentia.tasks import list_rows


def test_blanks_of_a_data_frame_are_none_and_whole_numbers_stay_whole() -> None:
    frame = pd.DataFrame(
        {
            "text": ["a", None, "c"],
            "label": [1, None, 2],  # which pandas keeps as 1.0 and NaN
            "size": [0.5, 2.0, None],
            "day": pd.to_datetime(["2024-01-01", None, None]),
            "kind": pd.Categorical(["x", None, "y"]),
        }
    )
    rows = list_rows(frame)
    assert rows[1] == {"text": None, "label": None, "size": 2.0, "day": None, "kind": None}
    assert [row["label"] for row in rows] == [1, None, 2]
    assert rows[0]["size"] == 0.5
    assert list_rows([{"a": np.nan, "b": pd.NA, "c": [1, 2]}, "a text"]) == [
        {"a": None, "b": None, "c": [1, 2]},
        "a text",
    ]


@pytest.mark.parametrize("as_records", [False, True])
def test_blank_rows_of_a_data_frame_are_no_class(tmp_path: Path, as_records: bool) -> None:
    rows = ticket_files.english(60)
    frame = pd.DataFrame([*rows, (np.nan, np.nan), (np.nan, np.nan)], columns=["text", "label"])
    data = frame.to_dict("records") if as_records else frame
    file = write_rows(data, tmp_path)
    assert "NaN" not in Path(file).read_text()
    task = tasks.load(file)
    assert set(task.labels) == set(ticket_files.TEMPLATES)
    assert any("2 blank rows skipped" in note for note in task.notes)


def test_a_number_that_is_none_in_a_file_is_no_class(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text, "label": label}) for text, label in ticket_files.english(60)]
    file = tmp_path / "tickets.jsonl"
    file.write_text("\n".join([*lines, '{"text": NaN, "label": NaN}']))
    assert set(tasks.load(str(file)).labels) == set(ticket_files.TEMPLATES)
