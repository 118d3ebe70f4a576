"""A pure function of arrays remembers its latest answers.

The analyses of one set of scores ask for the same resampled correlations again and again (agreement, its change, by
group, by measure), each from its own module and with the same seed. Answers are kept by the content of the arguments,
so no caller has to know of another; they are read-only, since several share them.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
MOST_BYTES = 256 << 20  # of answers kept by one function
LEAST_BYTES = 1 << 16  # smaller answers are made again sooner than they are found


def remembered(function: F) -> F:
    """Keep the latest large answers of a pure function of arrays."""
    known: OrderedDict[bytes, Any] = OrderedDict()
    lock = threading.Lock()

    @functools.wraps(function)
    def ask(*arguments: Any, **named: Any) -> Any:
        if not any(np.size(value) * 8 >= LEAST_BYTES for value in (*arguments, *named.values())):
            return function(*arguments, **named)
        key = _key([*arguments, *(part for pair in sorted(named.items()) for part in pair)])
        with lock:
            if key in known:
                known.move_to_end(key)
                return known[key]
        answer = function(*arguments, **named)
        if answer.nbytes >= LEAST_BYTES:
            answer.setflags(write=False)
            with lock:
                known[key] = answer
                while sum(kept.nbytes for kept in known.values()) > MOST_BYTES:
                    known.popitem(last=False)
        return answer

    ask.forget = known.clear  # type: ignore[attr-defined]
    return ask  # type: ignore[return-value]


def _key(parts: list[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if part is None or isinstance(part, (str, bool, int, float)):
            digest.update(repr(part).encode())
            continue
        array = np.ascontiguousarray(part)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.data.cast("B") if array.size else b"")
    return digest.digest()
