"""Counts for Prometheus: what each study has, what runs, and how fast, in the text format 0.0.4."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from potentia.run import is_running
from potentia.show.board.board_state import Desk

KIND = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, str], float]


def metrics(desk: Desk) -> str:
    """Return every study's counts, and the pace of the rows that run now."""
    summaries = desk.summaries()
    parts = [
        _family(
            "potentia_cells",
            "Cells of a study: asked for, done and failed.",
            (
                ({"study": s["name"], "key": s["key"], "state": state}, float(s[state]))
                for s in summaries
                for state in ("asked", "done", "failed")
                if s[state] is not None  # imported scores were never asked for
            ),
        ),
        _family(
            "potentia_rows_running",
            "Rows (models) of a study that are computed now.",
            (({"study": s["name"], "key": s["key"]}, float(s["running"])) for s in summaries),
        ),
        _family(
            "potentia_cell_seconds_total",
            "Seconds that the cells of a study took to compute.",
            (({"study": s["name"], "key": s["key"]}, float(s["seconds"])) for s in summaries),
            kind="counter",
        ),
    ]
    rows = [
        ({"study": s["name"], "model": name}, state)
        for s in summaries
        if s["running"]
        for name, state in desk.store.get_progress(s["key"]).items()
        if is_running(state)
    ]
    for field, name, words in (
        ("tokens_per_second", "potentia_row_tokens_per_second", "Tokens a second of a row that is tuned now."),
        ("left", "potentia_row_seconds_left", "Seconds that the present phase of a row will take."),
        ("lanes_active", "potentia_row_lanes", "Lanes of a row that are tuned now."),
    ):
        told = ((labels, float(state[field])) for labels, state in rows if state.get(field) is not None)
        parts.append(_family(name, words, told))
    silent = ((labels, max(0.0, time.time() - float(state["at"]))) for labels, state in rows if state.get("at"))
    parts.append(_family("potentia_row_silent_seconds", "Seconds since a running row last spoke.", silent))
    return "".join(parts)


def _family(name: str, words: str, samples: Iterable[Sample], *, kind: str = "gauge") -> str:
    lines = [f"{name}{{{_labels(labels)}}} {value:.10g}" for labels, value in samples]
    return "\n".join([f"# HELP {name} {words}", f"# TYPE {name} {kind}", *lines, ""])


def _labels(labels: Mapping[str, Any]) -> str:
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    plain = text.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
