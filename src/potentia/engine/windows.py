"""Windows: lengths at which a model may begin to compute otherwise. What holds for short rows need not hold beyond."""

from __future__ import annotations

from typing import Any

_NAMES = ("window", "chunk", "local", "original_max", "block", "topk", "stride", "compress", "span")


def horizons(config: Any, longest: int) -> list[int]:
    """Find the numbers of a config that may be a window shorter than ``longest``."""
    found: set[int] = set()

    def look(entries: dict[Any, Any]) -> None:
        for name, value in entries.items():
            if isinstance(value, dict):
                look(value)
            elif any(word in str(name) for word in _NAMES):
                values = value if isinstance(value, list | tuple) else [value]
                found.update(v for v in values if isinstance(v, int) and not isinstance(v, bool) and 1 < v < longest)

    look(config.to_dict())
    return sorted(found)
