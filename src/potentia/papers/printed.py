"""The numbers that a document prints, typed into the file ``printed.json`` of its package."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def read_printed_numbers(paper: str) -> dict[str, Any]:
    """Return the printed tables and numbers of a paper, by the name of its package."""
    path = Path(__file__).parent / paper / "printed.json"
    return dict(json.loads(path.read_text("utf-8")))
