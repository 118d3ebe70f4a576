"""The light core: what works with nothing but it, and the line that every other part names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from potentia import extras
from potentia.errors import MissingExtraError
from potentia.extras import Extra, require_extra

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCORES = ROOT / "examples" / "real-models.csv"

WITHOUT_EXTRAS = """
import sys
from potentia.extras import Extra

absent = {module for extra in Extra for module in extra.modules} | {"statsmodels"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from potentia.cli.app import run_command_line
run_command_line()
"""


def call_without_extras(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in an interpreter that has the core alone."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.mark.parametrize(
    "command",
    [
        f"report {SCORES} -o report.html --figures figures.svg",
        f"analyze rankings {SCORES} --json",
        f"compare Qwen2.5-Coder-0.5B-Instruct SmolLM2-135M-Instruct {SCORES}",
        f"export {SCORES} -o scores.csv",
        "doctor",
    ],
    ids=lambda command: command.split()[0],
)
def test_the_core_analyses_compares_and_reports(command: str, tmp_path: Path) -> None:
    done = call_without_extras(*command.split(), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("run --models a --tasks arc_easy", Extra.RUN),
        ("select --data scores.csv --models a b", Extra.RUN),
        ("demo", Extra.RUN),
        (f"export {SCORES} -o scores.parquet", Extra.PARQUET),
        (f"report {SCORES} --figures figures.png", Extra.FIGURES),
        ("status postgresql://user@host/name", Extra.POSTGRES),
    ],
    ids=lambda value: str(value).split()[0],
)
def test_what_needs_more_names_one_line_and_writes_nothing(
    command: str, extra: Extra, tmp_path: Path
) -> None:
    done = call_without_extras(*command.split(), folder=tmp_path)
    assert done.returncode == 2, done.stderr[-2000:]
    assert f"pip install 'potentia[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_as_the_index_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "sklearn")
    with pytest.raises(
        MissingExtraError, match="a tree needs scikit-learn, which is not"
    ) as caught:
        require_extra(Extra.TREES, "a tree", otherwise="do without")
    assert caught.value.hint == "pip install 'potentia[trees]', or do without"


def test_the_extras_of_the_code_are_those_of_the_project() -> None:
    assert set(PROJECT["optional-dependencies"]) == set(Extra)


def test_every_import_is_declared() -> None:
    """What a module of ours imports is a dependency by itself, not a guest of another package."""
    requirements = list(PROJECT["dependencies"])
    for extra_requirements in PROJECT["optional-dependencies"].values():
        requirements += extra_requirements
    declared = set()
    for requirement in requirements:
        declared.add(_normalise(re.split(r"[\[<>=;! ]", requirement)[0]))
    distributions = packages_distributions()
    undeclared = {}
    for path in (ROOT / "src").rglob("*.py"):
        for module in _imported_modules(path) - set(sys.stdlib_module_names):
            names = {_normalise(name) for name in distributions.get(module, [module])}
            if not names & declared:
                undeclared[module] = str(path.relative_to(ROOT))
    brought_by_torch = {"triton"}
    assert undeclared.keys() <= brought_by_torch | {"potentia"}, undeclared


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules
