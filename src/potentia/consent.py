"""What the user has allowed by name: code of task definitions, pickled or missing weights. Nothing else grants it.

Kept in the environment, so that worker processes know it, and no file that someone else wrote can say it.
"""

from __future__ import annotations

import os

CODE = "POTENTIA_ALLOW_CODE"
PICKLE = "POTENTIA_ALLOW_PICKLE"
MISSING_WEIGHTS = "POTENTIA_ALLOW_MISSING_WEIGHTS"


def allowed(what: str) -> bool:
    """Say whether this was allowed."""
    return os.environ.get(what, "") not in ("", "0")


def allow(what: str) -> None:
    """Allow it, here and in the processes started from here."""
    os.environ[what] = "1"
