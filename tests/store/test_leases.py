"""A row belongs to one process; what a dead one had is anyone's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from potentia.store import Store, schema
from potentia.store import records as module

CLAIM = """
import sys, time
from potentia.store import Store
with Store.open(sys.argv[1]) as store:
    lease = store.leases.claim("s1", "m", sys.argv[2].split(","))
    print(store.leases.is_mine(lease), flush=True)
    time.sleep(float(sys.argv[3]))
"""


def other(url: str, keys: str, seconds: float = 60) -> subprocess.Popen[str]:
    """Let another process claim cells; it lives on for a while."""
    command = [sys.executable, "-c", CLAIM, url, keys, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    process.answer = process.stdout.readline().strip()
    return process


def test_cells_are_claimed_by_one_process_until_it_lets_go(store: Store, store_url: str):
    lease = store.leases.claim("s1", "m", ["a", "b"], run_id="r")
    assert store.leases.is_mine(lease)
    with Store.open(store_url) as second:
        other_lease = second.leases.claim("s1", "m", ["b", "c"])
        assert not second.leases.is_mine(other_lease)
        assert (other_lease.pid, other_lease.run, other_lease.row) == (os.getpid(), "r", "m")
        assert f"process {os.getpid()} on " in other_lease.owner
        free = second.leases.claim("s1", "n", ["c"])
        assert second.leases.is_mine(free), (
            "what nobody has can be had, and b was not taken on the way"
        )
        assert [lease_record.row for lease_record in store.leases.read(study="first")] == ["m", "n"]
        second.leases.release(free)
        store.leases.release(lease)
        assert second.leases.is_mine(second.leases.claim("s1", "m", ["b", "c"]))


def test_what_a_killed_process_had_is_taken_over_at_once(store: Store, store_url: str):
    process = other(store_url, "a,b")
    assert process.answer == "True"
    assert not store.leases.is_mine(store.leases.claim("s1", "m", ["a"]))
    process.kill()
    process.wait()
    assert store.leases.read() == [], "the dead run nothing"
    assert store.leases.is_mine(store.leases.claim("s1", "m", ["a"]))


def test_from_another_machine_only_a_lease_without_a_beat_is_taken(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
):
    lease = store.leases.claim("s1", "m", ["a"])
    monkeypatch.setattr(module, "process_space", lambda: "elsewhere")
    with Store.open(store_url) as far:
        assert not far.leases.is_mine(far.leases.claim("s1", "m", ["a"])), (
            "its process may be alive"
        )
        with store.database.writing() as connection:
            connection.execute(
                schema.leases.update().values(beat=schema.leases.c.beat - module.LEASE_SECONDS)
            )
        assert store.leases.beat(lease)
        assert not far.leases.is_mine(far.leases.claim("s1", "m", ["a"])), "it has just said so"
        for jump in (3600, -3600):  # a clock that was set: what beats is not taken
            with store.database.writing() as connection:
                connection.execute(schema.leases.update().values(beat=schema.leases.c.beat + jump))
            assert not far.leases.is_mine(far.leases.claim("s1", "m", ["a"]))
            assert store.leases.beat(lease)
            monkeypatch.setattr(module, "BEAT_SECONDS", 0.0)
            assert not far.leases.is_mine(far.leases.claim("s1", "m", ["a"])), "it has just said so"
            monkeypatch.setattr(module, "BEAT_SECONDS", 10.0)
        with store.database.writing() as connection:
            connection.execute(
                schema.leases.update().values(beat=schema.leases.c.beat - module.LEASE_SECONDS - 1)
            )
        assert not far.leases.is_mine(far.leases.claim("s1", "m", ["a"])), "it may beat in a moment"
        monkeypatch.setattr(module, "BEAT_SECONDS", 0.0)
        assert far.leases.is_mine(far.leases.claim("s1", "m", ["a"]))
        assert not store.leases.beat(lease), "the first owner hears that it lost it"


def test_many_claim_at_once_and_one_gets_it(store: Store, store_url: str):
    several = [other(store_url, "x,y,z") for _ in range(3)]
    answers = [process.answer for process in several]
    for process in several:
        process.kill()
        process.wait()
    assert sorted(answers) == ["False", "False", "True"]
