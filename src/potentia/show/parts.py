"""The data of a page, by need: small values stand in it as they are, large ones packed, or at an address of their own.

A report of hundreds of models holds more numbers than anyone looks at. In the one-file report a large value is packed
(gzip in base64) and unpacked when its figure or table comes into view; on the board it is fetched then.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from potentia.values.findings import jsonable, slug

LARGE = 6_000  # characters of JSON, from which on a value is packed


class Parts:
    """Takes the values of a page and returns the elements that carry them; ``live`` is the board's address."""

    def __init__(self, live: str = "") -> None:
        self.live = live
        self.kept: dict[str, bytes] = {}  # name → packed JSON, for the board to serve

    def script(self, value: Any, name: str, *, kind: str = "", label: str = "") -> Any:
        """Return the element with this id (or class, where ``kind`` is given) that carries the value."""
        from markupsafe import Markup

        text = to_json(value)
        mark = Markup('class="{}"').format(kind) if kind else Markup('id="{}"').format(name)
        mark += Markup(' data-label="{}"').format(label) if label else Markup("")
        if len(text) < LARGE:
            return Markup('<script type="application/json" {}>{}</script>').format(mark, Markup(harmless(text)))
        packed = gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0)
        if self.live:
            key = self._new(slug(name))
            self.kept[key] = packed
            where = f"{self.live}/data/{key}"
            return Markup('<script type="application/json" {} data-from="{}"></script>').format(mark, where)
        base = base64.b64encode(packed).decode("ascii")
        return Markup('<script type="text/plain" {} data-packed>{}</script>').format(mark, base)

    def _new(self, key: str) -> str:
        taken = sum(known == key or known.startswith(f"{key}.") for known in self.kept)
        return f"{key}.{taken + 1}" if taken else key


def to_json(value: Any) -> str:
    """Write a value as JSON; arrays, dataclasses and NaN become what JSON can hold."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(jsonable(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def harmless(text: str) -> str:
    """Write JSON so that it is safe inside a ``script`` element: no ``<`` survives, so no tag can end it."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
