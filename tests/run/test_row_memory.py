"""Memory that would not suffice is said before a row starts, with what to change; a row that fits says nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ticket_files
from potentia.cli.progress_view import ProgressView
from potentia.run import estimate_cost, memory, plan_study, run_study
from potentia.run.plan import Row
from potentia.store import Store
from potentia.study import read_study
from potentia.zoo import write_model_folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    ticket_files.write(folder / "tickets.csv", ticket_files.of_the_zoo(60))
    write_model_folders(folder / "zoo", ["birch-71k"])
    return folder


def make_row(folder: Path, *, parameters: float, **fields: Any) -> Row:
    model = {"name": str(folder / "zoo" / "birch-71k"), "parameters": parameters}
    settings = {
        "name": "memory",
        "models": [model],
        "tasks": [{"name": "tickets", "file": str(folder / "tickets.csv")}],
        "protocols": ["train_before_test"],
        "store": str(folder / "memory.db"),
        **fields,
    }
    return plan_study(read_study(None, settings)).rows[0]


def test_a_row_of_8b_parameters_on_24_gb(folder: Path) -> None:
    row = make_row(folder, parameters=8e9, dtype="bfloat16")
    need = memory.estimate_memory(row, "cuda")
    assert need.weights == pytest.approx(16e9)
    # an adapter of rank 8 and a row of zeros: about 21 million numbers each, 16 bytes a number
    assert need.training == pytest.approx(2 * 21e6 * 16, rel=0.34)
    assert memory.describe_shortage(row, "cuda", 24e9) is None
    # more rates wait for their turn: they were counted as if all trained at once, and 24 GB said not to suffice
    rates = [2e-6 * 1.3**number for number in range(30)]
    many = make_row(folder, parameters=8e9, dtype="bfloat16", tuning={"learning_rates": rates})
    assert memory.describe_shortage(many, "cuda", 24e9) is None
    shortage = memory.describe_shortage(row, "cuda", 12e9)
    assert shortage is not None
    assert "weights 16 GB" in shortage
    assert "12 GB are free" in shortage
    assert "quantise: 4bit" in shortage
    precise = make_row(folder, parameters=8e9, dtype="float32")
    assert memory.estimate_memory(precise, "cpu").weights == pytest.approx(32e9)
    assert "dtype: bfloat16 halves" in str(memory.describe_shortage(precise, "cpu", 24e9))


def test_what_to_change_follows_from_what_takes_most(folder: Path) -> None:
    full = make_row(folder, parameters=1e9, tuning={"method": "full"})
    assert "tuning.method: lora" in str(memory.describe_shortage(full, "cuda", 8e9))
    few_bits = make_row(folder, parameters=8e9, dtype="bfloat16")
    few_bits = replace(few_bits, model=few_bits.model.model_copy(update={"quantise": "4bit"}))
    assert memory.estimate_memory(few_bits, "cuda").weights == pytest.approx(6e9)
    assert "device: spread" in str(memory.describe_shortage(few_bits, "cuda", 5e9))
    wide = make_row(folder, parameters=1e8, tuning={"rank": 4096})
    assert "tuning.rank" in str(memory.describe_shortage(wide, "cuda", 4e9))
    long_texts = make_row(folder, parameters=1e8, tuning={"max_tokens": 200_000})
    assert "tuning.max_tokens" in str(memory.describe_shortage(long_texts, "cuda", 8e9))


def test_nothing_is_said_where_nothing_is_known(folder: Path) -> None:
    row = make_row(folder, parameters=8e9)
    assert memory.describe_shortage(row, "cuda", None) is None
    assert memory.find_free_bytes("spread") is None
    free_bytes = memory.find_free_bytes("cpu")
    assert free_bytes is None or free_bytes > 1e8


def test_it_is_told_before_the_row_and_the_row_is_tried(folder: Path) -> None:
    # a size that no machine has, of a model that is small: the estimate goes by what the study says
    settings = {
        "name": "memory",
        "models": [{"name": str(folder / "zoo" / "birch-71k"), "parameters": 1e14}],
        "tasks": [{"name": "tickets", "file": str(folder / "tickets.csv")}],
        "protocols": ["direct"],
        "device": "cpu",
        "store": str(folder / "told.db"),
    }
    plan = plan_study(read_study(None, settings))
    with Store.open(plan.study.store, create=True) as store:
        store.studies.open(plan.study.name, plan.key, {})
        view = ProgressView(plan, store)
        result = run_study(plan)
        lines = view.collect_news()
    assert result.computed == 1
    assert "needs about 400000 GB of memory" in lines[0]
    assert lines[1].startswith("[1/1]")
    assert view.warnings == lines[:1]


def test_a_plan_tells_before_it_calibrates(folder: Path) -> None:
    """Calibration loads the largest model; one that does not fit is named and left out."""
    models = [
        {"name": "small", "path": str(folder / "zoo" / "birch-71k")},
        {"name": "huge", "path": str(folder / "zoo" / "birch-71k"), "parameters": 1e14},
    ]
    settings = {
        "name": "memory",
        "models": models,
        "tasks": [{"name": "tickets", "file": str(folder / "tickets.csv")}],
        "protocols": ["direct"],
        "device": "cpu",
        "store": str(folder / "planned.db"),
    }
    calibrated: list[str] = []
    cost = estimate_cost(plan_study(read_study(None, settings)), report=calibrated.append)
    assert list(cost.shortages) == ["huge"]
    assert "needs about 400000 GB of memory" in cost.shortages["huge"]
    assert calibrated == ["calibrating on small"]


def test_the_dtype_of_a_model_counts_before_the_studys(folder: Path) -> None:
    row = make_row(folder, parameters=8e9, dtype="bfloat16")
    in_float32 = replace(row, model=row.model.model_copy(update={"dtype": "float32"}))
    assert memory.estimate_memory(in_float32, "cuda").weights == pytest.approx(32e9)
    assert "dtype: bfloat16 halves" in str(memory.describe_shortage(in_float32, "cuda", 24e9))
