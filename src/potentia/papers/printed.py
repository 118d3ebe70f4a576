"""The numbers that the documents print, typed from their text and tables into ``printed.json``: nothing is computed.

Of the train-before-test paper: table 5 (mean agreement of each benchmark with all others: direct, 5-shot, tuned),
table 3 (bits per byte on arXiv, Wiki and Stack), table 4 (billions of parameters and of tokens, 10^18 FLOPs), tables 6
and 8, and what its text says, direct scores before tuned ones.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def printed(document: str) -> dict[str, Any]:
    """Return the tables of one document."""
    return dict(json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))[document])
