"""``potentia status --watch``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from made_store import make_store
from potentia.cli.stores import running_rows_table
from potentia.run import read_store_status
from potentia.store import Store
from speed import PATIENCE

POTENTIA = str(Path(sys.executable).with_name("potentia"))


def test_a_store_is_followed_until_interrupted(tmp_path: Path):
    path = make_store(tmp_path / "made.db")
    process = subprocess.Popen(
        [POTENTIA, "status", str(path), "--watch", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell in the background has it ignored
    )
    assert process.stdout is not None
    try:
        first = json.loads(process.stdout.readline())
        assert (first["failed"], first["running"]) == (
            read_store_status(str(path))["studies"][0]["failed"],
            0,
        )
        with Store.open(path) as store:
            store.events.save_progress(
                first["key"],
                "a [/model]",
                {"at": time.time(), "phase": "direct x", "total": 5, "done": 2},
            )
        second = json.loads(process.stdout.readline())
        assert second == {**first, "running": 1}
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 0
    assert running_rows_table(read_store_status(str(path))).rows[0][1:4] == (
        "a [/model]",
        "direct x",
        "2/5",
    )
    result = subprocess.run([POTENTIA, "status", str(path)], capture_output=True, text=True)
    assert "a [/model]" in result.stdout
