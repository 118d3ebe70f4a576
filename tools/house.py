"""Measures of the house: how deep imports go, how much of it a run wakes, how long it is, who reaches past a door.

python tools/house.py            # prints them, with the chain and the modules by name
python tools/house.py --check    # says whether every measure holds; part of `make lint`

Checked: no cycle of rooms, nor of the packages inside a room, and no room entered past its door. Printed only: how
long the longest chain of imports is, and how many modules a run wakes. Lines, modules and depth are not limited: a
module is as long as its idea needs, and dividing one must never cost more than leaving it whole.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "potentia"
MOST_RUN = 32
# Rooms that may go past another's door, each for a reason.
EXCEPTIONS = {
    (
        "potentia.papers",
        "potentia.analysis",
    ): "the papers' tables are made of the analyses' parts, one by one",
    ("potentia.papers", "potentia.formats"): "the papers' own layouts of scores",
    (
        "potentia.cli",
        "potentia.show",
    ): "FastAPI is loaded by the command that serves, and by no other",
}


def modules() -> dict[str, Path]:
    """Return every module of the wheel by its name; a package by its ``__init__``."""
    path_by_module = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        path_by_module[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return path_by_module


# --- imports ---------------------------------------------------------------------------------------------------------


def imports(
    name: str, path: Path, path_by_module: dict[str, Path], *, lazy: bool, through: bool = False
) -> set[str]:
    """Return our modules that a module imports when it is loaded; with ``lazy`` also those inside its functions.

    ``potentia.run.plan_study`` is one too: the room is loaded when it is first named.
    Imports under ``if TYPE_CHECKING`` do not count, nor does the package that a named module lies in. ``from package
    import name`` is the package where its ``__init__`` gives the name, else the module of that name; ``through`` looks
    behind the door, at the module that the name comes from.
    """
    imported: set[str] = set()

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names if alias.name in path_by_module)
            elif isinstance(node, ast.ImportFrom) and node.module in path_by_module:
                imported.update(
                    _home(node.module, alias.name, path_by_module, through=through)
                    for alias in node.names
                )
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                visit(node.orelse)
            elif lazy or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for field in ("body", "orelse", "finalbody"):
                    visit(getattr(node, field, []))
                for handler in getattr(node, "handlers", []):
                    visit(handler.body)

    tree = ast.parse(path.read_text("utf-8"))
    visit(tree.body)
    for node in ast.walk(tree) if lazy else ():
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "potentia"
        ):
            imported.update({f"potentia.{node.attr}"} & path_by_module.keys())
    return imported - {name}


def _home(module: str, name: str, path_by_module: dict[str, Path], *, through: bool) -> str:
    defined_by = _given(path_by_module[module])
    if name in defined_by:
        origin, original = defined_by[name] or (module, name)
        return (
            _home(origin, original, path_by_module, through=True)
            if through and origin in path_by_module and origin != module
            else module
        )
    return inner if (inner := f"{module}.{name}") in path_by_module else module


@cache
def _given(path: Path) -> dict[str, tuple[str, str] | None]:
    """Return the names that a module imports, with where they come from, and those it defines."""
    defined_by: dict[str, tuple[str, str] | None] = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            defined_by |= {
                alias.asname or alias.name: (node.module, alias.name) for alias in node.names
            }
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined_by[node.name] = None
    return defined_by


def longest_chain(*, lazy: bool = False) -> list[str]:
    """Return the longest way from module to module by imports, no module twice; cycles are cut.

    Doors do not count: a name that comes through a room's ``__init__`` is an import of the module it is made in.
    """
    path_by_module = modules()
    rooms = {name for name, path in path_by_module.items() if path.name == "__init__.py"}
    graph = {
        name: imports(name, path, path_by_module, lazy=lazy, through=True) - rooms
        for name, path in path_by_module.items()
        if name not in rooms
    }
    on_the_way: list[str] = []

    @cache
    def longest(name: str) -> list[str]:
        on_the_way.append(name)
        ways = [longest(imported) for imported in sorted(graph[name]) if imported not in on_the_way]
        on_the_way.pop()
        return [name, *max(ways, key=lambda way: len(way), default=[])]

    return max((longest(name) for name in graph), key=lambda way: len(way))


def past_doors() -> list[str]:
    """Return every import that goes past another room's ``__init__``, at load time or later.

    A room is a package right below ``potentia``; a package inside it is a door of its own (``engine.scoring``). The
    modules beside the rooms (scores, errors …) have no door.
    """
    path_by_module = modules()
    packages = {name for name, path in path_by_module.items() if path.name == "__init__.py"}

    def room(name: str) -> str:
        return ".".join(name.split(".")[:2])

    violations = []
    for name, path in path_by_module.items():
        for imported in sorted(imports(name, path, path_by_module, lazy=True)):
            inside = (
                imported not in packages and room(imported) != "potentia.values"
            )  # values are entered by their modules
            beyond = room(imported) in packages and room(imported) != room(name) and inside
            if beyond and (room(name), room(imported)) not in EXCEPTIONS:
                violations.append(f"{name} reaches past {room(imported)} for {imported}")
    return violations


def room_cycles() -> list[str]:
    """Return the rooms that reach each other, and the packages of a room that do, with an import that ties them."""
    path_by_module = modules()
    divided_rooms = {
        name.split(".")[1]
        for name, path in path_by_module.items()
        if path.name == "__init__.py" and name.count(".") > 1
    }
    ways_between_rooms: Ways = {}
    ways_inside: dict[str, Ways] = {room: {} for room in divided_rooms}
    for name, path in path_by_module.items():
        own_parts = name.split(".")
        for imported in sorted(imports(name, path, path_by_module, lazy=True) - {"potentia"}):
            other_parts = imported.split(".")
            tie = f"{name} → {imported}"
            if own_parts[:2] != other_parts[:2]:
                own_room = own_parts[1] if len(own_parts) > 1 else own_parts[0]
                if own_room != "potentia":
                    _add_way(ways_between_rooms, own_room, other_parts[1], tie)
            elif own_parts[1] in divided_rooms and len(own_parts) > 2 and len(other_parts) > 2:
                own_package, other_package = (
                    ".".join(parts[1:3]) for parts in (own_parts, other_parts)
                )
                if own_package != other_package:
                    _add_way(ways_inside[own_parts[1]], own_package, other_package, tie)
    cycles = _find_cycles(ways_between_rooms)
    for ways in ways_inside.values():
        cycles += _find_cycles(ways)
    return cycles


Ways = dict[str, dict[str, str]]  # from a room to those that it imports, each with an import


def _add_way(ways: Ways, begin: str, end: str, tie: str) -> None:
    ways.setdefault(begin, {}).setdefault(end, tie)


def _find_cycles(ways: Ways) -> list[str]:
    """Return the rooms that reach each other."""

    def reached(room: str) -> set[str]:
        visited: set[str] = set()
        todo = [room]
        while todo:
            new = set(ways.get(todo.pop(), {})) - visited
            visited |= new
            todo += new
        return visited

    reach = {room: reached(room) for room in ways}
    return [
        f"{room} and {imported} reach each other: {tie}"
        for room, beyond in ways.items()
        for imported, tie in beyond.items()
        if room in reach.get(imported, ())
    ]


def all_lines() -> int:
    """Return the lines of the wheel."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in modules().values())


# --- complexity ------------------------------------------------------------------------------------------------------

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def _decisions(node: ast.AST) -> int:
    """Count the decisions in a piece of code as radon does; functions inside a function are left out."""
    inner = sum(map(_decisions, ast.iter_child_nodes(node)))
    if isinstance(node, (*_FUNCTION, ast.ClassDef)):
        return 0
    if isinstance(node, ast.BoolOp):
        return inner + len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return inner + 1 + len(node.ifs)
    if isinstance(node, ast.Try):
        return inner + len(node.handlers) + bool(node.orelse)
    if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
        return inner + 1 + bool(node.orelse)
    return inner + isinstance(node, (ast.If, ast.IfExp, ast.Assert))


def mean_complexity() -> float:
    """Return the mean cyclomatic complexity of functions, methods and classes (these: of their methods), as radon."""
    complexities: list[int] = []
    for node in (
        node for path in modules().values() for node in ast.parse(path.read_text("utf-8")).body
    ):
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        methods = [
            1 + sum(map(_decisions, function.body))
            for function in inside
            if isinstance(function, _FUNCTION)
        ]
        complexities += methods
        if isinstance(node, ast.ClassDef):
            complexities.append(
                int((1 + sum(methods)) / len(methods)) + (len(methods) > 1) if methods else 1
            )
    return sum(complexities) / len(complexities)


# --- a run -----------------------------------------------------------------------------------------------------------

_TRACED = """
import sys, threading
source, out = sys.argv[1], sys.argv[2]
seen = set()

def look(frame, event, _):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(source) or code.co_name == "<module>" or code in known:
        return
    above = frame.f_back
    while above is not None:  # what runs while a module is loaded is no part of the run
        if above.f_code.co_name == "<module>" and above.f_code.co_filename.startswith(source):
            return
        above = above.f_back
    known.add(code)
    seen.add(code.co_filename)

known = set()
threading.setprofile(look)
sys.setprofile(look)
from potentia.cli.progress_view import watch_study
from potentia.run import run_study
from potentia.study import read_study
result = run_study(read_study(sys.argv[3]), watch=watch_study)
sys.setprofile(None)
import json
open(out, "w").write(json.dumps(sorted(seen)))
sys.exit(result.exit_code)
"""


def run_modules() -> list[str]:
    """Return our modules whose functions a small real run executes: two zoo models, a file of questions, two protocols.

    Counted are functions called after their module was loaded, from reading the study file to the last cell, with the
    terminal's view of it; generated methods of dataclasses lie in no file. The ranking that ``potentia run`` ends with
    is an analysis, and no part of it.
    """
    from potentia import zoo

    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        models = zoo.write_model_folders(folder / "models", ["aster-71k", "birch-71k"])
        zoo.write_task_files(folder / "tasks")
        lines = [
            (folder / "tasks" / "ask" / f"{split}.jsonl").read_text().splitlines()[:40]
            for split in ("train", "test")
        ]
        (folder / "ask.jsonl").write_text("\n".join(line for part in lines for line in part) + "\n")
        (folder / "study.yaml").write_text(
            json.dumps(  # JSON is YAML
                {
                    "models": [{"name": name, "path": str(path)} for name, path in models.items()],
                    "tasks": ["ask.jsonl"],
                    "tuning": {"epochs": 1, "learning_rates": [1e-3]},
                    "device": "cpu",
                    "store": str(folder / "s.db"),
                }
            )
        )
        out = folder / "seen.json"
        command = [
            sys.executable,
            "-c",
            _TRACED,
            str(PACKAGE),
            str(out),
            str(folder / "study.yaml"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"the traced run failed:\n{done.stderr[-2000:]}")
        names = {str(path): name for name, path in modules().items()}
        return [names[file] for file in json.loads(out.read_text())]


def main() -> None:
    """Print the measures, or check them."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--check", action="store_true", help="fail where a measure does not hold")
    reaching = past_doors()
    if options.parse_args().check:
        sys.exit("\n".join([*reaching, *room_cycles()]) or 0)
    print(f"Python in the wheel: {all_lines():,} lines in {len(modules())} modules")
    print(f"mean cyclomatic complexity: {mean_complexity():.2f}")
    for kind, lazy in (("when loaded", False), ("with those inside functions", True)):
        chain = longest_chain(lazy=lazy)
        print(f"longest import chain, {kind}: {len(chain)} modules")
        print("  " + " → ".join(name.removeprefix("potentia.") for name in chain))
    print(f"rooms that reach each other: {len(room_cycles())}")
    print(
        f"imports past another room's door: {len(reaching)}, beside {len(EXCEPTIONS)} pairs of rooms that may"
    )
    print("".join(f"  {line}\n" for line in reaching), end="")
    modules_of_a_run = run_modules()
    rooms = Counter(name.split(".")[1] if "." in name else "potentia" for name in modules_of_a_run)
    outside = [name for name in modules_of_a_run if not name.startswith("potentia.engine")]
    counted = f"{len(modules_of_a_run)}, of which {len(outside)} outside the engine"
    print(f"modules that a run executes: {counted} ({MOST_RUN} asked)")
    print("  " + ", ".join(f"{room} {count}" for room, count in sorted(rooms.items())))
    print("  " + ", ".join(name.removeprefix("potentia.") for name in outside))


if __name__ == "__main__":
    main()
