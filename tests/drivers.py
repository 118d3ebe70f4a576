"""Runs of a study as processes of their own, started at once: forked from one that has everything loaded.

A command line that imports torch and its friends anew takes seconds; tests that start hundreds would take hours. The
nursery is a process without threads which imports them once and forks a child for each run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from potentia.store.records import process_start
from speed import PATIENCE


class Driver:
    """A run under way; its process is the leader of a group of its own."""

    def __init__(self, pid: int, driver_folder: Path) -> None:
        self.pid, self.place, self.began = pid, driver_folder, process_start(pid)

    @property
    def said(self) -> str:
        return self.place.with_suffix(".out").read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.began is not None and process_start(self.pid) == self.began

    def signal(self, number: int, *, group: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):  # it was quicker
            (os.killpg if group else os.kill)(self.pid, number)

    def wait(self, timeout: float = PATIENCE) -> int | None:
        """Return the exit code, negative where a signal ended it; None where it runs on."""
        end = time.monotonic() + timeout
        while self.alive:
            if time.monotonic() > end:
                return None
            time.sleep(0.02)
        code = self.place.with_suffix(".rc")
        return int(code.read_text()) if code.exists() else -signal.SIGKILL


class Nursery:
    """Starts runs; close it in the end."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.made = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def start(
        self,
        *arguments: str,
        cwd: Path | None = None,
        limits: dict[str, int] | None = None,
        **environment: str,
    ) -> Driver:
        """Start ``potentia ARGUMENTS`` in a folder, within limits of the system: ``FSIZE`` as on a full disk."""
        self.made += 1
        driver_folder = self.folder / f"driver-{self.made}"
        driver_folder.with_suffix(".out").touch()
        assert self.process.stdin is not None
        order = [str(driver_folder), limits or {}, str(cwd or "."), environment, *arguments]
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return Driver(int(self._answer()), driver_folder)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _nurse() -> None:
    import datasets
    import lm_eval.api.registry
    import peft
    import pyarrow.parquet
    import sqlalchemy.dialects.postgresql
    import transformers.models.llama.modeling_llama

    import potentia.cli
    import potentia.cli.run
    import potentia.engine.scoring
    import potentia.engine.training
    import potentia.run.row
    import potentia.store
    import potentia.tasks

    assert all((datasets, lm_eval, peft, pyarrow, sqlalchemy, transformers, potentia))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    print("ready", flush=True)
    for line in sys.stdin:
        driver_folder, limits, cwd, environment, *arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.environ.update(environment)
            os.chdir(cwd)
            _child(Path(driver_folder), limits, arguments)
        print(pid, flush=True)


def _child(driver_folder: Path, limits: dict[str, int], arguments: list[str]) -> None:
    import resource

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(driver_folder.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    sys.argv = ["potentia", *arguments]
    code: object = 1
    try:
        from potentia.cli import main

        main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    aside = driver_folder.with_suffix(f".{os.getpid()}")
    aside.write_text(str(code))  # a few bytes: also where files cannot grow
    aside.replace(driver_folder.with_suffix(".rc"))
    os._exit(int(code) if isinstance(code, int) else 1)


if __name__ == "__main__":
    _nurse()
