"""``potentia status --watch``: a store looked at again and again, on a terminal in place, elsewhere a line a change."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from potentia.cli.output import console
from potentia.run import is_running, store_status
from potentia.values.findings import Table, clock

EVERY = 2.0  # seconds between two looks


def follow(store: str, study: str | None, show: Callable[[dict[str, Any]], None], *, as_json: bool) -> None:
    """Look at the store until interrupted; ``show`` prints a state as the command does."""
    said: dict[str, str] = {}
    try:
        while True:
            state = store_status(store, study)
            if console.is_terminal and not as_json:
                console.clear()
                show(state)
                console.print(f"{time.strftime('%H:%M:%S')} · every {EVERY:g} s · Ctrl-C ends", style="dim")
            else:
                for line, key in lines(state, as_json=as_json):
                    if said.get(key) != line:
                        said[key] = line
                        console.print(line, markup=False, soft_wrap=True)
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return


def lines(state: dict[str, Any], *, as_json: bool) -> list[tuple[str, str]]:
    """Return one line for each study, with its key: it is told again when it changes."""
    wanted = ("name", "key", "done", "asked", "failed", "running")
    told = []
    for one in state["studies"]:
        facts = {name: one[name] for name in wanted}
        asked = f"/{one['asked']}" if one["asked"] is not None else ""
        words = f"{one['name']}: {one['done']}{asked} cells, {one['failed']} failed, {one['running']} rows running"
        told.append((json.dumps(facts) if as_json else words, one["key"]))
    return told


def running(state: dict[str, Any]) -> Table:
    """Return the rows that run now: the phase, how far, how fast, how long still; which process runs it, since when."""
    rows = []
    for one in state["studies"]:
        leases = {lease["row"]: lease for lease in one["leases"]}
        for name in dict.fromkeys([*one["rows"], *leases]):
            row, lease = one["rows"].get(name, {}), leases.get(name)
            if lease is not None or is_running(row):
                who = f"process {lease['pid']} on {lease['host']}" if lease else ""
                since = clock(max(0.0, time.time() - lease["since"])) if lease else ""
                far = f"{row.get('done') or 0}/{row['total']}" if row.get("total") else ""
                left = clock(row["left"]) if row.get("left") is not None else ""
                rows.append((one["name"], name, str(row.get("phase", "")), far, row.get("tokens_per_second"), left,
                             who, since))  # fmt: skip
    columns = ("study", "model", "now", "done", "tokens/s", "left", "by", "for")
    return Table("Rows that run now", columns, tuple(rows), digits=0)
