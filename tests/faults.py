"""Faults that a study meets in life, made on purpose: the study, its drivers, and what must hold in the end.

python tests/faults.py --rounds 20            # the long schedule: every fault in turn, printed as a table
python tests/faults.py two-drivers --rounds 20
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

import postgres
import tiny
from drivers import Driver, Nursery
from potentia.errors import PotentiaError
from potentia.store import Store

Scores = dict[tuple[str, str, str], tuple[float, float]]


def make_study(folder: Path, *, models: int = 2, documents: int = 120, epochs: int = 2) -> Path:
    """Write a study of tiny models and two tasks, both protocols."""
    for seed in range(models):
        tiny.save_model(folder / f"m{seed}", seed=seed)
    tiny.save_questions(folder / "colours.jsonl", n=documents)
    tiny.save_texts(folder / "notes.jsonl", n=documents // 2)
    study = {
        "name": "faults",
        "models": [{"name": f"m{seed}", "path": f"m{seed}"} for seed in range(models)],
        "tasks": [{"name": "colours", "file": "colours.jsonl"}, {"name": "notes", "file": "notes.jsonl"}],
        "tuning": {"learning_rates": [1e-3, 1e-2], "epochs": epochs},
        "device": "cpu",
    }
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    return file


def scores(store: str) -> Scores:
    """Return every score of a store, to the last bit."""
    with Store.open(store, readonly=True) as opened:
        return {(c.model, c.task, c.protocol): (c.score.value, c.score.stderr) for c in opened.cells()}


def check(store: str, expected: Scores) -> None:
    """Assert that nothing was lost, doubled, different, failed or left behind."""
    assert scores(store) == expected, f"the scores are those of a run that was never disturbed, not {scores(store)}"
    with Store.open(store, readonly=True) as opened:
        assert opened.failures() == [], opened.failures()
        assert opened.leases() == [], opened.leases()
        (record,) = opened.studies()
        ended = [
            (e.payload["row"], e.payload["task"], e.payload["protocol"])
            for e in opened.events(record.key, limit=10**6)
            if e.kind == "cell"
        ]
        assert sorted(ended) == sorted(expected), f"every cell was computed once, not {sorted(ended)}"
        assert not opened.lanes_folder.exists(), "no lanes are left behind"
        assert not list(opened.items_folder.glob("*/.*")), "no half-written files are left behind"
        for cell in opened.cells():
            assert len(opened.items(cell.key)) == cell.score.n, (cell, len(opened.items(cell.key)))


@dataclass
class World:
    """A study, its scores when nothing happens, how long that takes, and places for stores."""

    folder: Path
    study: Path
    expected: Scores
    seconds: float
    nursery: Nursery
    server: postgres.Server | None = None
    several: bool = True  # runs may have worker processes, which take seconds to start
    made: int = 0
    kills: int = 0

    @classmethod
    def make(cls, folder: Path, *, server: postgres.Server | None = None, **shape: int) -> World:
        """Write the study and run it undisturbed."""
        study, nursery = make_study(folder, **shape), Nursery(folder / "drivers")
        store, began = str(folder / "undisturbed.db"), time.monotonic()
        driver = nursery.start("run", str(study), "--store", store)
        assert driver.wait() == 0, driver.said
        return cls(folder, study, scores(store), time.monotonic() - began, nursery, server)

    def drive(self, store: str, *more: str, file_bytes: int | None = None, **environment: str) -> Driver:
        """Start a run of the study."""
        return self.nursery.start(
            "run", str(self.study), "--store", store, *more, file_bytes=file_bytes, **environment
        )  # fmt: skip

    def store(self, kind: str) -> str:
        """Return the place of a store that is not there yet."""
        self.made += 1
        if kind == "sqlite":
            return str(self.folder / f"store-{self.made}.db")
        assert self.server is not None
        return f"{self.server.database()}?items={self.folder / f'store-{self.made}.items'}"

    def workers(self, stream: random.Random) -> list[str]:
        """Return an option that makes some runs have two workers."""
        return stream.choice([[], ["--workers", "2"]]) if self.several else []

    def finish(self, store: str, *more: str) -> None:
        """Run to the end and check."""
        driver = self.drive(store, *more)
        assert driver.wait() == 0, driver.said
        check(store, self.expected)

    def close(self) -> None:
        """Let the processes go."""
        self.nursery.close()


def begun(driver: Driver, store: str) -> None:
    """Wait until a run has its first cell, or is over."""
    while driver.alive:
        with contextlib.suppress(PotentiaError), Store.open(store, readonly=True) as opened:
            if opened.cells():
                return
        time.sleep(0.02)


def two_drivers(world: World, kind: str, stream: random.Random) -> None:
    """Start two runs of the study on one store: both end well, and every cell is computed once."""
    store = world.store(kind)
    first = world.drive(store)
    time.sleep(stream.choice([0.0, 0.0, 0.1, 0.3, 0.6]) * world.seconds)
    second = world.drive(store)
    assert (first.wait(), second.wait()) == (0, 0), f"{first.said}\n---\n{second.said}"
    check(store, world.expected)


def kills(world: World, kind: str, stream: random.Random) -> None:
    """Kill a run again and again, by itself or with all its workers, then let one end."""
    store = world.store(kind)
    for _ in range(4 if world.several else 2):
        driver = world.drive(store, *world.workers(stream))
        if driver.wait(stream.uniform(0.1, 0.9) * world.seconds) is not None:
            break  # it was quicker than the killer
        driver.signal(signal.SIGKILL, group=stream.random() < 0.5)
        driver.wait()
        world.kills += 1
    world.finish(store)


def stops(world: World, kind: str, stream: random.Random) -> None:
    """Ask a run to stop as schedulers and people do: it says how to go on, and fails no cell."""
    store = world.store(kind)
    driver = world.drive(store, *world.workers(stream))
    begun(driver, store)
    if driver.wait(stream.uniform(0.0, 0.4) * world.seconds) is None:
        number = stream.choice([signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
        driver.signal(number, group=True)
        if number == signal.SIGINT and stream.random() < 0.5:
            time.sleep(0.3)
            driver.signal(number, group=True)
        assert driver.wait() in (0, 130), driver.said
        assert "Traceback" not in driver.said, driver.said
    world.finish(store)


def pauses(world: World, kind: str, stream: random.Random) -> None:
    """Let a run sleep for a while beside another."""
    store = world.store(kind)
    first, second = world.drive(store), world.drive(store)
    time.sleep(stream.uniform(0.2, 0.6) * world.seconds)
    first.signal(signal.SIGSTOP)
    time.sleep(stream.uniform(0.5, 3.0))
    first.signal(signal.SIGCONT)
    assert (first.wait(), second.wait()) == (0, 0), f"{first.said}\n---\n{second.said}"
    check(store, world.expected)


def full_disk(world: World, kind: str, stream: random.Random) -> None:
    """Let files not grow beyond some size: the run ends with a word, and goes on when there is space."""
    store = world.store(kind)
    more = world.workers(stream)
    driver = world.drive(store, *more, file_bytes=stream.choice([6_000, 40_000, 150_000]))
    assert driver.wait() in (0, 1), driver.said
    assert "Traceback" not in driver.said, driver.said
    world.finish(store)


def lost_database(world: World, kind: str, stream: random.Random) -> None:
    """Take the database away for a while: the run waits and goes on. A file is locked by another instead."""
    store = world.store(kind)
    driver = world.drive(store, *world.workers(stream))
    begun(driver, store)
    driver.wait(stream.uniform(0.0, 0.4) * world.seconds)
    if kind == "postgres":
        assert world.server is not None
        world.server.stop(stream.choice(["immediate", "fast"]))
        time.sleep(stream.uniform(0.5, 4.0))
        world.server.start()
    elif Path(store).exists():
        with contextlib.closing(sqlite3.connect(store, timeout=30)) as other:
            other.execute("BEGIN EXCLUSIVE")
            time.sleep(stream.uniform(0.5, 4.0))
            other.rollback()
    assert driver.wait() == 0, driver.said
    assert "Traceback" not in driver.said, driver.said
    check(store, world.expected)


def node_loss(world: World, kind: str, stream: random.Random) -> None:
    """Run on a cluster of two machines, here two of Ray's nodes, and kill one of them in the middle."""
    from ray.cluster_utils import Cluster

    store = world.store(kind)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        other = cluster.add_node(num_cpus=1)
        driver = world.drive(store, "--executor", "ray", RAY_ADDRESS=cluster.address)
        end = time.monotonic() + 240
        while driver.alive and driver.said.count("] m") < 2 and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(stream.uniform(0, 0.3) * world.seconds)
        cluster.remove_node(other, allow_graceful=False)  # SIGKILL to all of its processes
        world.kills += 1
        assert driver.wait() == 0, driver.said
        check(store, world.expected)
    finally:
        cluster.shutdown()


FAULTS: dict[str, Callable[[World, str, random.Random], None]] = {
    "two-drivers": two_drivers,
    "kills": kills,
    "stops": stops,
    "pauses": pauses,
    "full-disk": full_disk,
    "lost-database": lost_database,
    "node-loss": node_loss,
}
ON_POSTGRES_ALONE = {"node-loss"}  # a file cannot be shared between machines


def main() -> int:
    """Go through the schedule and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", default=list(FAULTS), help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--rounds", type=int, default=20, help="of each fault on each store")
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    server = postgres.Server() if "postgres" in chosen.stores else None
    wrong = 0
    try:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            world = World.make(Path(folder), server=server)
            print(f"undisturbed: {len(world.expected)} cells in {world.seconds:.1f} s", flush=True)
            print(f"{'fault':<14} {'store':<10} {'rounds':>6} {'equal':>6} {'seconds':>8}", flush=True)
            for name in chosen.faults:
                for kind in chosen.stores:
                    if kind == "sqlite" and name in ON_POSTGRES_ALONE:
                        continue
                    began, good = time.monotonic(), 0
                    for number in range(chosen.rounds):
                        try:
                            FAULTS[name](world, kind, random.Random(chosen.seed + number))
                            good += 1
                        except AssertionError as error:
                            print(f"  round {number}: {error}", file=sys.stderr, flush=True)
                    wrong += chosen.rounds - good
                    spent = time.monotonic() - began
                    print(f"{name:<14} {kind:<10} {chosen.rounds:>6} {good:>6} {spent:>8.0f}", flush=True)
            print(f"{world.kills} kills")
            world.close()
    finally:
        if server is not None:
            server.close()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
