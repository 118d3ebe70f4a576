"""Mutations of texts, bytes and values, all drawn from one seeded stream."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

NASTY: tuple[Any, ...] = (
    "",
    " ",
    "0",
    "-1",
    "1e999",
    "nan",
    "NaN",
    "-inf",
    "null",
    "true",
    "~",
    "[/ird]",
    "[bold red]x",
    "[link=x]y[/link]",
    "\\",
    "a\\[b",
    "../../../../tmp/out",
    "/etc/passwd",
    "..",
    ".",
    "x" * 5_000,
    "a/" * 2_000,
    "é" * 300,
    "\u202e",
    "\x1b[2J",
    "\r\n",
    "\t",
    "\0",
    "'",
    '"',
    "=1+1",
    "@SUM(A1)",
    "-2+3",
    "<script>",
    "{{ 7*7 }}",
    "{% for x in range(99999) %}a{% endfor %}",
    "{{ ''.__class__ }}",
    "%s%n",
    "$(id)",
    "`id`",
    "; ls",
    "file:///etc/passwd",
    "postgresql://u:p@h/d",
    "sqlite:///x.db",
    "direct",
    "few_shot:999999999999",
    "few_shot:-1",
    "adjust@0",
    "train_before_test",
    "\ud800",
    "\udcff",
    "A" * 100_000,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63),
    10**400,
    1e308,
    -1e308,
    5e-324,
    float("nan"),
    float("inf"),
    True,
    False,
    None,
    [],
    {},
    [[]],
    {"": ""},
    {"a": {"b": {"c": {}}}},
    [None] * 50,
    list(range(200)),
)
TOKENS = (
    "&a ",
    "*a",
    "<<: *a",
    "!!python/object:os.system ",
    "!function os.system",
    "!!binary x",
    "!!set {a}",
    "? ",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "|\n",
    ">-\n",
    "'",
    '"',
    ",",
    ",,",
    ";",
    "\t",
    "\n",
    "\r",
    "\0",
    "#",
    "---\n",
    "...\n",
    "\ufeff",
    "\ud83d",
    "\\ud800",
    "\\u0000",
    "0x",
    "1_000",
    "2024-13-45",
    "%",
    "1e999",
    "NaN",
    "null",
    "{{",
    "}}",
    "{%",
    "%}",
    "[/x]",
    "=",
    "../",
    "//",
    "\\",
    "PAR1",
    "PK\x03\x04",
)


def text(stream: Random, source: str) -> str:
    """Change a text in one to six places."""
    mutated = source
    for _ in range(stream.choice((1, 1, 1, 2, 3, 6))):
        at = stream.randrange(len(mutated) + 1)
        to = min(len(mutated), at + stream.choice((1, 1, 2, 5, 20, 100)))
        mutation = stream.randrange(7)
        if mutation == 0:
            mutated = mutated[:at] + mutated[to:]
        elif mutation == 1:
            mutated = mutated[:at] + stream.choice(TOKENS) + mutated[at:]
        elif mutation == 2:
            mutated = mutated[:at] + mutated[at:to] * stream.choice((2, 3, 50)) + mutated[to:]
        elif mutation == 3:
            mutated = (
                mutated[:at]
                + chr(stream.choice((stream.randrange(128), stream.randrange(0x2FFF), 0x1F600)))
                + mutated[to:]
            )
        elif mutation == 4:
            worse = stream.choice([n for n in NASTY if isinstance(n, str)])
            mutated = mutated[:at] + worse + mutated[to:]
        elif mutation == 5:
            lines = mutated.splitlines(keepends=True)
            stream.shuffle(lines)
            mutated = "".join(lines[: stream.randrange(len(lines) + 1)])
        else:
            mutated = mutated[:at]
    return mutated


def data(stream: Random, source: bytes) -> bytes:
    """Change bytes in a few places, or cut them off."""
    mutated = bytearray(source)
    for _ in range(stream.choice((1, 1, 2, 8, 64))):
        if not mutated:
            break
        at = stream.randrange(len(mutated))
        mutation = stream.randrange(5)
        if mutation == 0:
            mutated[at] = stream.randrange(256)
        elif mutation == 1:
            mutated[at] ^= 1 << stream.randrange(8)
        elif mutation == 2:
            mutated[at : at + 8] = stream.choice((b"\0" * 8, b"\xff" * 8, b"\x7f\xff\xff\xff"))
        elif mutation == 3:
            del mutated[at : at + stream.choice((1, 4, 100))]
        elif stream.random() < 0.2:
            del mutated[at:]
    return bytes(mutated)


def value(stream: Random, source: Any) -> Any:
    """Change a nested value in one to three places: replaced, doubled, dropped, renamed."""
    mutated = copy.deepcopy(source)
    for _ in range(stream.choice((1, 1, 2, 3))):
        holder, key = _spot(stream, mutated)
        if holder is None:
            return copy.deepcopy(stream.choice(NASTY))
        mutation = stream.randrange(6)
        if mutation <= 2:
            holder[key] = copy.deepcopy(stream.choice(NASTY))
        elif mutation == 3:
            del holder[key]
        elif mutation == 4 and isinstance(holder, dict):
            renamed = stream.choice([str(n) for n in NASTY])
            holder[renamed] = holder.pop(key)
        else:
            holder[key] = [holder[key]] * 2
    return mutated


def _spot(stream: Random, container: Any) -> tuple[Any, Any]:
    spots: list[tuple[Any, Any]] = []
    todo = [container]
    while todo:
        here = todo.pop()
        inner = (
            here.items()
            if isinstance(here, dict)
            else enumerate(here)
            if isinstance(here, list)
            else ()
        )
        for key, below in list(inner):
            spots.append((here, key))
            todo.append(below)
    return stream.choice(spots) if spots else (None, None)


def as_json(mutated: Any) -> bytes:
    """Write a value as JSON, NaN and lone surrogates included, as careless programs do."""
    try:
        return json.dumps(mutated).encode()
    except (ValueError, TypeError):
        return repr(mutated).encode("utf-8", "surrogatepass")


def as_bytes(mutated: str) -> bytes:
    """Write a text, half characters included."""
    return mutated.encode("utf-8", "surrogatepass")
