"""Files made to do harm, sent through every entrance: none may run anything or take memory and time without bound.

    python -m fuzz.hostile                      # every file through every entrance that reads its kind: an hour
    python -m fuzz.hostile --rotate             # every file through one of its entrances, in turn: minutes
    python -m fuzz.hostile --entrance predict   # one entrance
    python -m fuzz.hostile --only adapter       # files whose name holds this
    python -m fuzz.hostile --harmless           # files that every entrance must take

Each is read in a fork. Counted: how it ended (taken, refused with a sentence, crash, hang), whether the mark of its
code appeared, and memory over 2 GB or more than 30 seconds of a processor. Ends with 1 where there was any.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fuzz.entrances import ENTRANCES, CommandRefused, Entrance, HostileInput, entrances_for
from fuzz.hostile_files import HostileCase, Workshop, all_cases, harmless_cases

ROOT = Path(__file__).resolve().parents[2]
MOST_SECONDS = 30.0  # of a processor
MOST_BYTES = 2 * 10**9
PATIENCE = 240.0  # seconds by the clock: other work may keep the machine busy
OUTCOMES = ("taken", "refused", "crash", "hang", "ran code", "too much")


@dataclass(frozen=True)
class Outcome:
    """How a hostile file ended at an entrance."""

    end: str  # one of OUTCOMES
    seconds: float  # of a processor
    bytes: int  # of the largest process
    words: str

    @property
    def is_bad(self) -> bool:
        """Whether this must not happen."""
        return self.end not in ("taken", "refused")


def judge(case: HostileCase, entrance: Entrance, workshop: Workshop) -> Outcome:
    """Make a hostile file and send it through an entrance, in a fork."""
    root = workshop.folder.parent
    outside = root / "outside"
    shutil.rmtree(workshop.folder, ignore_errors=True)
    shutil.rmtree(outside, ignore_errors=True)
    workshop.mark.unlink(missing_ok=True)
    workshop.folder.mkdir()
    outside.mkdir()
    path = case.make(workshop)
    hostile_input = HostileInput(case.kind, path, workshop.folder, workshop.base, workshop.adapter)
    output_file = root / "said.txt"
    output_file.write_bytes(b"")
    process = os.fork()
    if process == 0:
        _enter(entrance, hostile_input, output_file)
    return _await(process, output_file, workshop.mark, outside)


def _enter(entrance: Entrance, hostile_input: HostileInput, output_file: Path) -> None:
    """Enter in this fork, with all that is printed going to a file; never returns."""
    os.setsid()
    os.chdir(hostile_input.folder)
    output = os.open(output_file, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    from potentia.errors import PotentiaError

    code = 3
    try:
        entrance.enter(hostile_input)
        code = 0
    except (CommandRefused, PotentiaError) as error:
        print(error, flush=True)
        code = 1
    except BaseException as error:
        print(f"Traceback (most recent: {type(error).__name__}: {error}"[:500], flush=True)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _await(process: int, output_file: Path, mark: Path, outside: Path) -> Outcome:
    """Wait for a fork, end it where it takes too long, and judge what it did."""
    began = time.monotonic()
    ended, status, usage = os.wait4(process, os.WNOHANG)
    while not ended and time.monotonic() - began < PATIENCE and _processor_seconds(process) < 60:
        time.sleep(0.01)
        ended, status, usage = os.wait4(process, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    hung = not ended
    if hung:
        _, status, usage = os.wait4(process, 0)
    seconds = usage.ru_utime + usage.ru_stime
    largest = usage.ru_maxrss * 1024
    words = output_file.read_text("utf-8", "replace")
    end = "refused" if os.waitstatus_to_exitcode(status) == 1 else "taken"
    if "Traceback (most recent" in words or os.waitstatus_to_exitcode(status) not in (0, 1):
        end = "crash"
    if seconds > MOST_SECONDS or largest > MOST_BYTES:
        end = "too much"
    if hung:
        end = "hang"
    if mark.exists() or any(outside.iterdir()):
        end = "ran code"
    return Outcome(end, seconds, largest, " ".join(words.split())[-300:])


def _processor_seconds(process: int) -> float:
    """Return the seconds of a processor that a process and the children it waited for have taken."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    ticks = sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def prepare_workshop(root: Path) -> Workshop:
    """Make the harmless files that hostile ones begin with."""
    from made_adapter import make_adapter, make_base  # type: ignore[import-not-found]
    from made_store import make_store  # type: ignore[import-not-found]

    base = make_base(root / "base")
    adapter = make_adapter(root / "adapter", base)
    store = make_store(root / "store.db")
    return Workshop(root / "case", root / "mark", base, adapter, store)


def import_everything() -> None:
    """Import what the entrances import, so that forks need not."""
    import datasets.load
    import lm_eval.api.task
    import peft
    import pyarrow.parquet
    import starlette.testclient
    from transformers.models.llama import modeling_llama

    import potentia.api
    import potentia.cli.app
    import potentia.engine
    import potentia.engine.scoring
    import potentia.engine.training
    import potentia.evidence
    import potentia.run
    import potentia.show
    import potentia.show.board.app
    import potentia.tasks
    from potentia.extensions import ExtensionKind, load_extensions

    for kind in ExtensionKind:
        load_extensions(kind)
    assert all((datasets, lm_eval, modeling_llama, peft, pyarrow, potentia, starlette))


def choose_entrances(
    case: HostileCase, number: int, names: list[str], rotate: bool
) -> list[Entrance]:
    """Return the entrances that a case goes through."""
    entrances = entrances_for(case.kind, names)
    if rotate and entrances:
        return [entrances[number % len(entrances)]]
    return entrances


def print_table(counts: Counter[tuple[str, str]], largest: dict[str, tuple[float, int]]) -> None:
    """Print how files ended at each entrance, with the most that one took."""
    print(f"{'entrance':16}" + "".join(f"{name:>10}" for name in ("files", *OUTCOMES)), end="")
    print(f"{'most s':>10}{'most GB':>10}")
    for name in [*(entrance.name for entrance in ENTRANCES), "all"]:
        row = [
            sum(
                n
                for (entrance_name, e), n in counts.items()
                if e == end and name in (entrance_name, "all")
            )
            for end in OUTCOMES
        ]
        seconds, size = largest.get(name, (0.0, 0))
        print(f"{name:16}{sum(row):10,}" + "".join(f"{n:10,}" for n in row), end="")
        print(f"{seconds:10.1f}{size / 1e9:10.2f}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [entrance.name for entrance in ENTRANCES]
    parser.add_argument("--every", type=int, default=1, help="only every so many-th file")
    parser.add_argument("--from", dest="first", type=int, default=0, help="how many to pass over")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="files whose name holds one of these"
    )
    parser.add_argument("--entrance", action="append", default=[], choices=names)
    parser.add_argument("--harmless", action="store_true", help="files that must be taken")
    parser.add_argument("--rotate", action="store_true", help="each file through one entrance")
    return parser.parse_args()


def main() -> int:
    """Send them through, print what must not happen, and a table by entrance."""
    arguments = parse_arguments()
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    import_everything()
    gc.collect()
    gc.freeze()  # a fork that collects garbage would copy the memory of all libraries
    counts: Counter[tuple[str, str]] = Counter()
    largest: dict[str, tuple[float, int]] = {}
    files = 0
    with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
        root = Path(temporary)
        os.environ |= {"HF_DATASETS_CACHE": str(root / "cache")}
        workshop = prepare_workshop(root)
        cases = list(harmless_cases() if arguments.harmless else all_cases())
        for number, case in enumerate(cases[arguments.first :: arguments.every]):
            if not any(words in case.name for words in arguments.only):
                continue
            files += 1
            for entrance in choose_entrances(case, number, arguments.entrance, arguments.rotate):
                outcome = judge(case, entrance, workshop)
                counts[entrance.name, outcome.end] += 1
                for name in (entrance.name, "all"):
                    seconds, size = largest.get(name, (0.0, 0))
                    largest[name] = max(seconds, outcome.seconds), max(size, outcome.bytes)
                if outcome.is_bad or (arguments.harmless and outcome.end != "taken"):
                    print(
                        f"{case.name} at {entrance.name}: {outcome.end}, {outcome.seconds:.1f} s, ",
                        end="",
                    )
                    print(f"{outcome.bytes / 1e9:.2f} GB: {outcome.words}", flush=True)
    gc.unfreeze()  # libraries print what leaked otherwise
    print(f"{files} {'harmless' if arguments.harmless else 'hostile'} files")
    print_table(counts, largest)
    good = ("taken",) if arguments.harmless else ("taken", "refused")
    return int(any(end not in good for _, end in counts))


if __name__ == "__main__":
    sys.exit(main())
