"""A short schedule of faults; ``make faults`` goes through a long one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import postgres
from faults import FAULTS, World, begun


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[World]:
    server: postgres.Server = request.getfixturevalue("postgres_own")
    new_world = World.make(
        tmp_path_factory.mktemp("faults"), server=server, documents=120, epochs=3
    )
    new_world.several = False
    yield new_world
    new_world.close()


SHORT = [
    ("two-drivers", "sqlite"),
    ("two-drivers", "postgres"),
    ("kills", "sqlite"),
    ("stops", "sqlite"),
    ("lost-database", "postgres"),
]


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize(("fault", "kind"), SHORT)
def test_the_scores_are_those_of_an_undisturbed_run(world: World, fault: str, kind: str):
    FAULTS[fault](world, kind, random.Random(1))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
def test_killed_runs_end_with_the_same_scores(world: World, seed: int):
    FAULTS["kills"](world, "sqlite", random.Random(seed))


def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(world: World):
    store = world.store("sqlite")
    driver = world.drive(store)
    while "[2/8]" not in driver.said:  # the first model has been scored as it is; its tuning begins
        assert driver.alive, driver.said
        time.sleep(0.02)
    driver.signal(signal.SIGINT)
    assert driver.wait() == 130, driver.said
    assert f"To go on: potentia run {world.study} --store {store}\n" in driver.said, (
        "on one line, to be pasted"
    )
    world.finish(store)


def test_a_store_removed_under_a_run_is_an_error(world: World):
    store = Path(world.store("sqlite"))
    driver = world.drive(str(store))
    begun(driver, str(store))
    driver.signal(signal.SIGSTOP)
    for file in store.parent.glob(f"{store.name}*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    driver.signal(signal.SIGCONT)
    assert driver.wait() == 1, driver.said
    assert "the store was removed while it was in use" in driver.said
    assert "Traceback" not in driver.said, driver.said
    assert not store.exists()


@pytest.mark.skipif(
    not os.environ.get("POTENTIA_LONG"),
    reason="workers take long to start; make faults has them too",
)
def test_workers_that_cannot_save_end_the_run_with_a_word(world: World):
    driver = world.drive(world.store("sqlite"), "--workers", "2", limits={"FSIZE": 150_000})
    assert driver.wait() == 1, driver.said
    assert "free some space" in driver.said
    assert "Traceback" not in driver.said, driver.said
