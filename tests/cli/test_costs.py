"""Costs are told before and after, where a price is known: plan, run, status, report."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import ticket_files
from potentia.cli.app import app
from potentia.zoo import write_model_folders


def run(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("price")
    ticket_files.write(folder / "tickets.csv", ticket_files.of_the_zoo(60))
    write_model_folders(folder / "zoo", ["birch-71k"])
    return folder


def test_costs_before_and_after(world: Path) -> None:
    store = world / "s.db"
    study = ["--models", world / "zoo" / "birch-71k", "--tasks", world / "tickets.csv"]
    study += [
        "--protocols",
        "direct",
        "--store",
        store,
        "--device",
        "cpu",
        "--set",
        "price=3600 EUR/h",
    ]
    planned = run("run", *study, "--dry-run")
    assert " EUR" in planned.stdout
    ran = run("run", *study)
    assert "cost" in ran.stdout
    assert "EUR (3600 EUR/h)" in ran.stdout
    status = run("status", store)
    assert " EUR" in status.stdout
    run("report", store, "-o", world / "r.html")
    assert "cost at 3600 EUR/h" in (world / "r.html").read_text()


def test_a_price_that_is_none_is_refused(world: Path) -> None:
    words = [
        "run",
        "--dry-run",
        "--models",
        world / "zoo" / "birch-71k",
        "--tasks",
        world / "tickets.csv",
    ]
    words += ["--store", world / "n.db", "--device", "cpu", "--set", "price=cheap"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code != 0
    assert "'cheap' is no price" in str(result.exception)
