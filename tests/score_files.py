"""Scores of a file or a store, without the rest of the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from potentia.evidence import read
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix


def read_scores(source: str | Path, **options: Any) -> dict[Protocol, ScoreMatrix]:
    return dict(read(source, **options).scores)
