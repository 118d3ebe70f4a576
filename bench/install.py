"""What installing Potentia costs: environments made anew from the wheel, their size, and the first minutes in them.

    python bench/install.py                 the core and what runs models, in new environments below a temporary folder
    python bench/install.py --doors core    the core alone
    python bench/install.py --python python3.12 --doors core

For each environment it prints the seconds of the installation, the size of what was installed (without pip), the
processor seconds of ``import potentia``, of ``potentia --help`` and of the first report of a CSV; where models can be
run, also the seconds from the start of the demo to its report. The environments are removed at the end.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCORES = ROOT / "examples" / "real-models.csv"
DOORS = {"core": "", "run": "[run]"}
LARGEST_CORE = 350  # MB
SLOWEST_IMPORT = 0.1  # processor seconds
SLOWEST_REPORT = 3.0


@dataclass(frozen=True)
class Spent:
    """What a command took: seconds by the clock, and of a processor."""

    wall: float
    processor: float


@dataclass(frozen=True)
class Door:
    """What one way of installing Potentia costs."""

    name: str
    install: Spent
    megabytes: float
    python: Spent
    imported: Spent
    help: Spent
    report: Spent
    demo: Spent | None

    @property
    def import_seconds(self) -> float:
        """The processor seconds of ``import potentia`` beyond those of Python itself."""
        return max(0.0, self.imported.processor - self.python.processor)


def measure(*command: str, cwd: Path) -> Spent:
    """Run a command and return what it took; one that fails ends the measurement with its words."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(wall, processor)


def least(*command: str, cwd: Path, times: int = 3) -> Spent:
    """Return the run of several that took least of a processor."""
    runs = [measure(*command, cwd=cwd) for _ in range(times)]
    return min(runs, key=lambda spent: spent.processor)


def build_wheel(folder: Path) -> Path:
    """Build the wheel that would be published."""
    measure(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
        *("--wheel-dir", str(folder), str(ROOT)),
        cwd=folder,
    )
    return next(folder.glob("potentia-*.whl"))


def installed_megabytes(environment: Path) -> float:
    """Return the size of an environment's packages without pip, as the disk holds them."""
    total = 0
    for packages in environment.glob("lib/python*/site-packages"):
        for path in packages.rglob("*"):
            if path.relative_to(packages).parts[0].startswith("pip"):
                continue
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_blocks * 512
    return total / 1e6


def measure_door(name: str, wheel: Path, python: str, folder: Path) -> Door:
    """Install Potentia in a new environment and take its first steps there."""
    environment = folder / name
    measure(python, "-m", "venv", str(environment), cwd=folder)
    bin_folder = environment / "bin"
    own_python = str(bin_folder / "python")
    potentia = str(bin_folder / "potentia")
    requirement = f"potentia{DOORS[name]} @ {wheel.as_uri()}"
    install = measure(own_python, "-m", "pip", "install", "--quiet", requirement, cwd=folder)
    report = measure(potentia, "report", str(SCORES), "-o", "report.html", cwd=folder)
    demo = None
    if name == "run":
        demo = measure(potentia, "demo", "-o", "demo", cwd=folder)
    return Door(
        name=name,
        install=install,
        megabytes=installed_megabytes(environment),
        python=least(own_python, "-c", "pass", cwd=folder),
        imported=least(own_python, "-c", "import potentia", cwd=folder),
        help=least(potentia, "--help", cwd=folder),
        report=report,
        demo=demo,
    )


def print_door(door: Door) -> None:
    """Print what one door costs, and what is beyond the goals."""
    print(f"== potentia{DOORS[door.name]}")
    print(f"installation       {door.install.wall:8.1f} s")
    print(f"installed size     {door.megabytes:8.0f} MB")
    print(f"import potentia    {door.import_seconds:8.2f} s of a processor")
    print(f"potentia --help    {door.help.processor:8.2f} s of a processor")
    print(
        f"first report       {door.report.processor:8.2f} s of a processor, {door.report.wall:.2f} s by the clock"
    )
    if door.demo is not None:
        total = door.install.wall + door.demo.wall
        print(
            f"demo               {door.demo.wall:8.1f} s, {total:.0f} s from an empty environment to the report"
        )


def find_misses(door: Door) -> list[str]:
    """Return the goals that a door misses."""
    goals = {
        f"import potentia under {SLOWEST_IMPORT} s": door.import_seconds < SLOWEST_IMPORT,
        f"first report under {SLOWEST_REPORT} s": door.report.processor < SLOWEST_REPORT,
    }
    if door.name == "core":
        goals[f"core under {LARGEST_CORE} MB"] = door.megabytes < LARGEST_CORE
    return [goal for goal, is_met in goals.items() if not is_met]


def main() -> None:
    """Measure every door that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=list(DOORS))
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter of the environments"
    )
    arguments = parser.parse_args()
    misses = []
    with tempfile.TemporaryDirectory(prefix="potentia-install-") as temporary:
        folder = Path(temporary)
        wheel = build_wheel(folder)
        print(f"wheel              {wheel.stat().st_size / 1e6:8.1f} MB")
        for name in arguments.doors:
            door = measure_door(name, wheel, arguments.python, folder)
            print_door(door)
            misses += find_misses(door)
    if misses:
        sys.exit("missed: " + "; ".join(misses))


if __name__ == "__main__":
    main()
