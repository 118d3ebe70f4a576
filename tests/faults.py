"""Faults that a study meets in life, made on purpose: the study, its drivers, and what must hold in the end.

python tests/faults.py --list                 # what there is, and what each does
python tests/faults.py --rounds 20            # the long schedule: every fault in turn, printed as a table
python tests/faults.py two-drivers --rounds 20
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import postgres
import tiny
from drivers import Driver, Nursery
from potentia.errors import PotentiaError
from potentia.store import Store
from speed import PATIENCE

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
        "tasks": [
            {"name": "colours", "file": "colours.jsonl"},
            {"name": "notes", "file": "notes.jsonl"},
        ],
        "tuning": {"learning_rates": [1e-3, 1e-2], "epochs": epochs},
        "device": "cpu",
    }
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    return file


def scores(store: str) -> Scores:
    """Return every score of a store, to the last bit."""
    with Store.open(store, readonly=True) as opened:
        return {
            (c.model, c.task, c.protocol): (c.score.value, c.score.stderr)
            for c in opened.cells.read()
        }


def check(store: str, expected: Scores) -> None:
    """Assert that nothing was lost, doubled, different, failed or left behind."""
    assert scores(store) == expected, (
        f"the scores are those of a run that was never disturbed, not {scores(store)}"
    )
    with Store.open(store, readonly=True) as opened:
        assert opened.failures.read() == [], opened.failures.read()
        assert opened.leases.read() == [], opened.leases.read()
        (record,) = opened.studies.read()
        ended = [
            (e.payload["row"], e.payload["task"], e.payload["protocol"])
            for e in opened.events.read(record.key, limit=10**6)
            if e.kind == "cell"
        ]
        assert sorted(ended) == sorted(expected), (
            f"every cell was computed once, not {sorted(ended)}"
        )
        assert not opened.lanes_folder.exists(), "no lanes are left behind"
        assert not list(opened.items_folder.glob("*/.*")), "no half-written files are left behind"
        for cell in opened.cells.read():
            assert len(opened.cells.read_items(cell.key)) == cell.score.n, (
                cell,
                len(opened.cells.read_items(cell.key)),
            )


@dataclass
class World:
    """A study, its scores when nothing happens, how long that takes, and places for stores."""

    folder: Path
    study: Path
    expected: Scores
    seconds: float
    nursery: Nursery
    server: postgres.Server | None = None
    preload: bool = False  # runs can have a clock that jumps and locks that fail
    several: bool = True  # runs may have worker processes, which take seconds to start
    made: int = 0
    kills: int = 0
    losses: int = 0  # of a database while a run was under way

    @classmethod
    def make(cls, folder: Path, *, server: postgres.Server | None = None, **shape: int) -> World:
        """Write the study and run it undisturbed."""
        compiler, library = shutil.which("cc"), folder / "preload.so"
        if compiler is not None:
            source = Path(__file__).with_name("preload.c")
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True
            )
        preloaded = {"LD_PRELOAD": str(library)} if compiler else {}
        study, nursery = make_study(folder, **shape), Nursery(folder / "drivers", **preloaded)
        store, began = str(folder / "undisturbed.db"), time.monotonic()
        driver = nursery.start("run", str(study), "--store", store)
        assert driver.wait() == 0, driver.said
        return cls(
            folder, study, scores(store), time.monotonic() - began, nursery, server, bool(preloaded)
        )

    def drive(self, store: str, *more: str, **how: Any) -> Driver:
        """Start a run of the study."""
        return self.nursery.start("run", str(self.study), "--store", store, *more, **how)

    def ask(self, *arguments: str, code: int = 0, **how: Any) -> str:
        """Run another command to its end and return what it said."""
        driver = self.nursery.start(*arguments, **how)
        assert driver.wait() == code, driver.said
        assert "Traceback" not in driver.said, driver.said
        return driver.said

    def place(self) -> Path:
        """Return a new folder."""
        self.made += 1
        new_folder = self.folder / f"place-{self.made}"
        new_folder.mkdir()
        return new_folder

    def store(self, kind: str) -> str:
        """Return the place of a store that is not there yet."""
        if kind == "sqlite":
            return str(self.place() / "store.db")
        assert self.server is not None
        return f"{self.server.database()}?items={self.place() / 'items'}"

    def workers(self, stream: random.Random) -> list[str]:
        """Return options that let some runs have two workers, and some of these share the tasks of one row."""
        two_workers = ["--workers", "2"]
        return stream.choice([[], two_workers, [*two_workers, "--split"]]) if self.several else []

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
            if opened.cells.read():
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
    driver = world.drive(store, *more, limits={"FSIZE": stream.choice([6_000, 40_000, 150_000])})
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
        with contextlib.closing(sqlite3.connect(store, timeout=30)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(stream.uniform(0.5, 4.0))
            connection.rollback()
    assert driver.wait() == 0, driver.said
    assert "Traceback" not in driver.said, driver.said
    check(store, world.expected)


# what a run writes to its log as it begins something: the kind of line, and how its phase begins
PHASES = (
    ("lease", ""),
    ("phase", "loading"),
    ("phase", "scoring"),
    ("cell", ""),
    ("phase", "validating"),
    ("phase", "tuning"),
    ("phase", "testing"),
    ("row", ""),
)


def lost_by_phase(world: World, kind: str, stream: random.Random) -> None:
    """Take the database away in every phase of one run: planning a row, loading, scoring, tuning, testing, its end."""
    store = world.store(kind)
    assert world.server is not None
    folder = world.folder / f"place-{world.made}"
    driver = world.drive(store)
    lines_seen = 0
    for line_kind, phase in PHASES:
        lines_seen = _await_line(driver, folder, line_kind, phase, lines_seen)
        world.server.stop(stream.choice(["immediate", "fast"]))
        time.sleep(stream.uniform(0.1, 1.5))
        world.server.start()
        world.losses += driver.alive
    assert driver.wait() == 0, driver.said
    assert "Traceback" not in driver.said, driver.said
    check(store, world.expected)


def _await_line(driver: Driver, folder: Path, kind: str, phase: str, lines_seen: int) -> int:
    """Wait until the log of a run has a line of this kind after those seen, or the run is over; return its number."""
    while driver.alive:
        lines = [line for log in folder.rglob("*.jsonl") for line in log.read_text().splitlines()]
        for number, line in enumerate(lines[lines_seen:], lines_seen + 1):
            with contextlib.suppress(ValueError):  # a line that is being written
                event = json.loads(line)
                if event["kind"] == kind and event.get("phase", "").startswith(phase):
                    return number
        time.sleep(0.01)
    return lines_seen


def node_loss(world: World, kind: str, stream: random.Random) -> None:
    """Run on a cluster of two machines, here two of Ray's nodes, and kill one of them in the middle."""
    from ray.cluster_utils import Cluster

    store = world.store(kind)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        new_node = cluster.add_node(num_cpus=1)
        driver = world.drive(store, "--executor", "ray", RAY_ADDRESS=cluster.address)
        end = time.monotonic() + PATIENCE
        while driver.alive and driver.said.count("] m") < 2 and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(stream.uniform(0, 0.3) * world.seconds)
        cluster.remove_node(new_node, allow_graceful=False)  # SIGKILL to all of its processes
        world.kills += 1
        assert driver.wait() == 0, driver.said
        check(store, world.expected)
    finally:
        cluster.shutdown()


def two_directories(world: World, kind: str, stream: random.Random) -> None:
    """Run one study from two directories at once, then a third; SQLite through links: one store, one place of items."""
    store, folders = world.store(kind).partition("?")[0], [world.place() for _ in range(3)]
    named = [store] * 3  # nobody says where the items are to lie
    if kind == "sqlite":
        for folder in folders[1:]:
            (folder / "linked.db").symlink_to(store)
        named[1:] = ["linked.db"] * 2
    first = world.drive(named[0], cwd=folders[0])
    begun(first, store)
    time.sleep(stream.uniform(0.0, 0.3) * world.seconds)
    second = world.drive(named[1], cwd=folders[1])
    assert (first.wait(), second.wait()) == (0, 0), f"{first.said}\n---\n{second.said}"
    check(store, world.expected)
    text = world.ask("run", str(world.study), "--store", named[2], cwd=folders[2])
    check(store, world.expected)  # nothing was computed again
    assert "missing" not in text, text
    assert not [file for folder in folders[1:] for file in folder.glob("*.items")], (
        "items lie in one place"
    )


def clock_jumps(world: World, kind: str, stream: random.Random) -> None:
    """Set the wall clock an hour forward and back while two runs share a study; one may be killed."""
    store, clock = world.store(kind), world.place() / "clock"
    clock.write_bytes(struct.pack("d", 0.0))
    first, second = (world.drive(store, FAULTS_CLOCK=str(clock)) for _ in range(2))
    for jump in stream.sample([3600.0, -3600.0, 0.0], 3):
        time.sleep(stream.uniform(0.1, 0.3) * world.seconds)
        with clock.open("r+b") as file:
            file.write(struct.pack("d", jump))
    if stream.random() < 0.5 and second.alive:
        second.signal(signal.SIGKILL, group=True)
        world.kills += 1
    assert first.wait() == 0, first.said
    second.wait()
    for driver_output in (first.said, second.said):
        assert "Traceback" not in driver_output, driver_output
        assert not re.search(r"-\d+ (s|min|h)\b", driver_output), (
            f"no time is negative: {driver_output}"
        )
    world.finish(store)
    state = json.loads(world.ask("status", store, "--json", FAULTS_CLOCK=str(clock)))
    assert state["studies"][0]["running"] == 0, state


def no_locks(world: World, kind: str, stream: random.Random) -> None:
    """Keep a store where the file system has no locks: refused at once and clearly; a store made before can be read."""
    folder = world.place()
    text = world.ask(
        "run",
        str(world.study),
        "--store",
        str(folder / "s.db"),
        code=1,
        FAULTS_NO_LOCKS=str(folder),
    )
    assert "no locks" in text, text
    world.finish(str(folder / "s.db"))
    text = world.ask("status", str(folder / "s.db"), "--json", FAULTS_NO_LOCKS=str(folder))
    assert json.loads(text)["studies"][0]["done"] == len(world.expected), text


def killed_writers(world: World, kind: str, stream: random.Random) -> None:
    """Kill commands while they write: reports, tables, adapters, merged models, predictions are whole or not there."""
    store, target_folder = str(world.folder / "undisturbed.db"), world.place()
    with Store.open(store, readonly=True) as opened:
        model = next(
            c.model
            for c in opened.cells.read()
            if c.task == "colours" and opened.adapters.find(c.key)
        )
    questions = str(world.folder / "colours.jsonl")
    commands = {
        "adapter": ["adapters", "export", store, "--model", model, "--task", "colours"],
        "merged": ["adapters", "export", "--merge", str(target_folder / "adapter")],
        "predicted.csv": ["predict", str(target_folder / "adapter"), questions],
        "report.html": ["report", store],
        "scores.csv": ["export", store],
        "scores.parquet": ["export", store],
    }
    for name, command in commands.items():
        target = target_folder / name
        world.ask(*command, "-o", str(target))
        expected_sizes = _sizes(target)
        for _ in range(3):
            if target.is_dir():
                shutil.rmtree(target)
            elif stream.random() < 0.5:
                target.write_text("old")
            before = _sizes(target)
            driver = world.nursery.start(*command, "-o", str(target))
            _kill_while_writing(driver, target_folder, stream)
            world.kills += driver.wait() == -signal.SIGKILL
            remaining_sizes = _sizes(target)
            assert remaining_sizes == before or (
                remaining_sizes.keys() == expected_sizes.keys()
                and min(remaining_sizes.values()) > len("old")
            ), (name, remaining_sizes)
        if remaining_sizes != expected_sizes:
            target.unlink(missing_ok=True)
            world.ask(*command, "-o", str(target))


def _sizes(target: Path) -> dict[str, int]:
    """Return the bytes of a file, or of every file of a folder; nothing where there is none."""
    files = [target, *target.rglob("*")]
    return {
        str(file.relative_to(target.parent)): file.stat().st_size
        for file in files
        if file.is_file()
    }


def _kill_while_writing(driver: Driver, target_folder: Path, stream: random.Random) -> None:
    """Kill a command a moment after anything in the folder has changed."""

    def state() -> set[tuple[str, int]]:
        result = set()
        for file in target_folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                result.add((str(file), file.stat().st_mtime_ns))
        return result

    before = state()
    while driver.alive and state() == before:
        time.sleep(0.0005)
    time.sleep(stream.choice([0.0, 0.0, 0.001, 0.005, 0.02]))
    driver.signal(signal.SIGKILL, group=True)


def full_writers(world: World, kind: str, stream: random.Random) -> None:
    """Write reports and tables on a full disk: a sentence, and the old file stays."""
    target_folder = world.place()
    for name in ("report.html", "scores.csv", "scores.parquet"):
        target, command = target_folder / name, "report" if name == "report.html" else "export"
        target.write_text("old")
        driver = world.nursery.start(
            command, str(world.folder / "undisturbed.db"), "-o", str(target), limits={"FSIZE": 200}
        )
        assert driver.wait() in (1, 2), driver.said
        assert "Traceback" not in driver.said, driver.said
        assert [(file.name, file.read_text()) for file in target_folder.glob(f"*{name}*")] == [
            (name, "old")
        ], driver.said


def damaged_store(world: World, kind: str, stream: random.Random) -> None:
    """Damage a finished store somewhere: its check sees it, or nothing that is read has changed."""
    store = Path(world.store("sqlite"))
    with contextlib.closing(sqlite3.connect(world.folder / "undisturbed.db")) as whole:
        whole.execute("VACUUM INTO ?", (str(store),))
    shutil.copytree(world.folder / "undisturbed.db.items", f"{store}.items")
    file = stream.choice([store, store, *sorted(Path(f"{store}.items").glob("*/*.parquet"))])
    content = bytearray(file.read_bytes())
    start = stream.randrange(len(content))
    content[start : start + 64] = b"" if stream.random() < 0.3 else stream.randbytes(64)
    file.write_bytes(content)
    driver = world.nursery.start("status", "--check", str(store))
    good = driver.wait() == 0
    assert "Traceback" not in driver.said, driver.said
    assert not good or scores(str(store)) == world.expected, driver.said


def few_descriptors(world: World, kind: str, stream: random.Random) -> None:
    """Open more connections to the board than its 80 descriptors: no traceback, and it answers again afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    store = str(world.folder / "undisturbed.db")
    board = world.nursery.start("serve", store, "--port", str(address[1]), limits={"NOFILE": 80})
    try:
        _asked(address)
        many = [
            socket.create_connection(address, timeout=PATIENCE)
            for _ in range(stream.choice([90, 150, 250]))
        ]
        for connection in many:
            connection.sendall(b"GET /api/studies HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        time.sleep(2)
        for connection in many:
            connection.close()
        _asked(address)
    finally:
        board.signal(signal.SIGINT)
        code = board.wait()
        board.signal(signal.SIGKILL, group=True)
    assert code in (0, 130), board.said
    assert "Traceback" not in board.said, board.said[-3000:]


def _asked(address: tuple[str, int]) -> None:
    """Ask the board for its first page until it gives it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(address, timeout=5) as connection,
        ):
            connection.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            if b" 200 " in connection.recv(100):
                return
        time.sleep(0.2)
    raise AssertionError("the board does not answer")


def _program(what: str, command: str) -> Callable[[World, str, random.Random], None]:
    """Make a fault of a program that ends well where all is well."""

    def act(world: World, kind: str, stream: random.Random) -> None:
        root = Path(__file__).resolve().parents[1]
        paths = os.pathsep.join(
            [str(root / "tests"), str(root / "tools"), os.environ.get("PYTHONPATH", "")]
        )
        order = [sys.executable, "-m", *command.replace("SOME", str(stream.randrange(25))).split()]
        environment = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(order, cwd=root, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]

    act.__doc__ = what
    return act


HARM = "Read one in 25 of the files made to do harm: none runs anything, or goes past 2 GB and 30 s (all: make hostile)."  # noqa: E501
TOLD = "Run every command on a store with a password, and search all that it says and writes."
CUTS = "Cut the connection of a run at each statement, before and after COMMIT."
Fault = Callable[[World, str, random.Random], None]
FAULTS: dict[str, Fault] = {
    "hostile-files": _program(HARM, "fuzz.hostile --every 25 --from SOME"),
    "two-directories": two_directories,
    "secrets": _program(TOLD, "pytest -q tests/store/test_password.py"),
    "lost-database": lost_database,
    "lost-by-phase": lost_by_phase,
    "cuts": _program(CUTS, "pytest -q tests/store/test_cuts.py"),
    "damaged-store": damaged_store,
    "full-disk": full_disk,
    "full-writers": full_writers,
    "killed-writers": killed_writers,
    "kills": kills,
    "stops": stops,
    "pauses": pauses,
    "two-drivers": two_drivers,
    "clock-jumps": clock_jumps,
    "no-locks": no_locks,
    "few-descriptors": few_descriptors,
    "node-loss": node_loss,
}
ON_POSTGRES_ALONE = {
    "node-loss",
    "secrets",
    "cuts",
    "lost-by-phase",
}  # a file cannot be shared between machines
ON_SQLITE_ALONE = {
    "hostile-files",
    "damaged-store",
    "full-writers",
    "killed-writers",
    "no-locks",
    "few-descriptors",
}
WITH_A_COMPILER = {"clock-jumps", "no-locks"}


def main() -> int:
    """Go through the schedule and print what happened."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("faults", nargs="*", default=list(FAULTS), help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--list", action="store_true", help="say what each does, and do nothing")
    parser.add_argument("--rounds", type=int, default=20, help="of each fault on each store")
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.list:
        for name, fault in FAULTS.items():
            print(f"{name:<16} {str(fault.__doc__).strip()}")
        return 0
    server = postgres.Server() if "postgres" in chosen.stores else None
    wrong = 0
    try:
        with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
            world = World.make(Path(folder), server=server)
            print(f"undisturbed: {len(world.expected)} cells in {world.seconds:.1f} s", flush=True)
            for name in chosen.faults:
                if name in WITH_A_COMPILER and not world.preload:
                    print(f"{name:<16} not tried: there is no C compiler")
                    continue
                alone = {"sqlite": ON_POSTGRES_ALONE, "postgres": ON_SQLITE_ALONE}
                for kind in (kind for kind in chosen.stores if name not in alone[kind]):
                    wrong += try_fault(world, name, kind, chosen.rounds, chosen.seed)
            print(f"{world.kills} kills, {world.losses} losses of the database in a phase")
            world.close()
    finally:
        if server is not None:
            server.close()
    return int(wrong > 0)


def try_fault(world: World, name: str, kind: str, rounds: int, seed: int) -> int:
    """Try a fault some times, print a line, and return how often it went wrong."""
    began, wrong = time.monotonic(), 0
    for number in range(seed, seed + rounds):
        try:
            FAULTS[name](world, kind, random.Random(number))
        except Exception as error:
            wrong += 1
            print(
                f"  {name}, {kind}, seed {number}: {type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )
    spent, what = time.monotonic() - began, str(FAULTS[name].__doc__).strip()
    print(
        f"{name:<16} {kind:<9} {rounds - wrong} of {rounds} equal, {spent:.0f} s: {what}",
        flush=True,
    )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
