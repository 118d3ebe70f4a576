"""What an input must not do: raise anything but Potentia's errors, hang, write outside its folder, start a program."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from potentia.errors import PotentiaError

SECONDS = 20  # of processor time, after which an input hangs
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Hang(BaseException):
    """An input took too long."""


class Watch:
    """Sees files opened for writing and programs started, by Python's audit events."""

    def __init__(self, folder: Path, *also: Path) -> None:
        self.inside = (*(str(p.resolve()) for p in (folder, *also)), "/dev/null")
        self.active = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)
        signal.signal(signal.SIGVTALRM, self._alarm)

    def _alarm(self, *_: Any) -> None:
        raise Hang

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "subprocess.Popen" and "limited.py" in str(arguments[1]):
            return  # where a user's templates are rendered
        if event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork"):
            self.seen.append(f"{event}: {str(arguments)[:200]}")
        places: tuple[Any, ...] = ()
        if (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        ) or event in (
            "os.mkdir",
            "os.remove",
            "os.rmdir",
            "os.truncate",
        ):
            places = (arguments[0],)
        elif event in ("os.rename", "os.link", "os.symlink"):
            places = arguments[:2]
        for allowed_folder in places:
            if isinstance(allowed_folder, (str, bytes, os.PathLike)) and not self._may(
                os.fsdecode(allowed_folder)
            ):
                self.seen.append(f"{event}: {os.fsdecode(allowed_folder)[:200]}")

    def _may(self, path: str) -> bool:
        return os.path.abspath(path).startswith(self.inside) or path.endswith(".pyc")  # noqa: PTH100

    @contextmanager
    def _watching(self) -> Any:
        self.active, self.seen = True, []
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self.active = False

    def judge(self, act: Callable[[], str | None]) -> tuple[str, str]:
        """Do it; return how it ended (``taken``, ``refused``, ``crash``, ``hang``, ``outside``) and what about it."""
        try:
            with self._watching():
                wrong = act()
            ended = ("crash", wrong) if wrong else ("taken", "")
        except PotentiaError as error:
            ended = ("refused", "") if str(error).strip() else ("crash", "an error without words")
        except Hang:
            ended = ("hang", "".join(traceback.format_exc(limit=-3)))
        except (Exception, SystemExit) as error:
            ended = ("crash", kind(error))
        if self.seen:
            return "outside", self.seen[0]
        return ended


def kind(error: BaseException) -> str:
    """Name a crash by its type and the last place of ours in it, so that equal ones count as one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/potentia/" in f.filename]
    at = ours[-1] if ours else frames[-1] if frames else None
    last = frames[-1] if frames else None
    position = f"{Path(at.filename).name}:{at.lineno} {at.name}" if at else "?"
    deep = f" ← {Path(last.filename).name}:{last.lineno}" if last and last is not at else ""
    words = re.sub(r"\d+", "N", str(error))[:100]
    return f"{type(error).__name__} at {position}{deep}: {words!r}"
