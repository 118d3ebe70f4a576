"""The reference of the study file: every field is described, and the page in the docs is the schema's."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

import study_reference
from potentia.study import Study


def records() -> dict[type[BaseModel], str]:
    result: dict[type[BaseModel], str] = {}
    study_reference._collect(Study, "study", result)
    return result


def test_every_field_is_described():
    assert len(records()) == 12
    bare = [
        f"{record.__name__}.{name}"
        for record in records()
        for name, field in record.model_fields.items()
        if not field.description
    ]
    assert not bare


def test_the_page_is_up_to_date():
    assert study_reference.PAGE.read_text("utf-8") == study_reference.page(), (
        "run python tools/study_reference.py"
    )


@pytest.mark.parametrize(
    "line",
    [
        "| `models` | list of records | needed | hub names and folders, or records |",
        "| `epochs` | whole number > 0 | `5` | passes over the training examples |",
        "| `learning_rates` | list of numbers > 0 | `[0.0003, 0.001, 0.003]` | the grid; validation chooses from it |",
        "| `dropout` | number ≥ 0, < 1 | `0` | dropout on the adapters' input |",
        "| `method` | `lora` or `rslora` or `full` | `lora` |"
        " train adapters (LoRA, rsLoRA or an extension's), or all weights |",
    ],
)
def test_a_line_says_what_a_key_takes(line: str):
    assert line in study_reference.page().splitlines()
