"""The light core: what works with nothing but it, and the line that every other part names."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from made_store import make_store
from one_process import CommandResult, run_commands
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
"""
ENOUGH_WITH_THE_CORE = (
    f"report {SCORES} -o report.html --figures figures.svg",
    f"analyze rankings {SCORES} --json",
    f"compare Qwen2.5-Coder-0.5B-Instruct SmolLM2-135M-Instruct {SCORES}",
    f"export {SCORES} -o scores.csv",
    f"analyze rankings {SCORES} --figures drawings",
    "report run.db -o run.html",
    "analyze rankings run.db",
    "compare alpha beta run.db",
    "doctor",
)
NEEDS_AN_EXTRA = {
    "run --models a --tasks arc_easy": Extra.RUN,
    "select --data scores.csv --models a b": Extra.RUN,
    "demo": Extra.RUN,
    f"export {SCORES} -o scores.parquet": Extra.PARQUET,
    f"report {SCORES} --figures figures.png": Extra.FIGURES,
    "status postgresql://user@host/name": Extra.POSTGRES,
}

CALLS_THAT_NEED_MODELS = {
    "plan_study": "potentia.plan_study(study)",
    "run_study": "potentia.run_study(study)",
    "evaluate": "potentia.evaluate(models=['a', 'b'], tasks=['arc_easy'])",
    "select": "potentia.select([{'text': 'yes', 'label': 'no'}] * 50, ['a', 'b'])",
    "predict": "potentia.predict('adapter', ['text'])",
}
MAKE_STUDY = """
import potentia

study = potentia.make_study({"models": ["a", "b"], "tasks": ["arc_easy"]})
"""
CATCH_ERROR = """
import json, os
from potentia.errors import MissingExtraError

try:
    {call}
except MissingExtraError as error:
    print(json.dumps([error.hint, os.listdir()]))
"""


@pytest.fixture(scope="module")
def results_without_extras(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CommandResult]:
    """What commands do in an interpreter that has the core alone; those that need more come first."""
    lines = [*NEEDS_AN_EXTRA, *ENOUGH_WITH_THE_CORE]
    commands = [line.split() for line in lines]
    folder = tmp_path_factory.mktemp("core")
    make_store(folder / "run.db")  # with results by example, as every run writes them
    results = run_commands(commands, folder, prelude=WITHOUT_EXTRAS)
    return dict(zip(lines, results, strict=True))


@pytest.mark.parametrize("line", ENOUGH_WITH_THE_CORE)
def test_the_core_analyses_compares_and_reports(
    line: str, results_without_extras: dict[str, CommandResult]
) -> None:
    done = results_without_extras[line]
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "line", ["report run.db -o run.html", "analyze rankings run.db", "compare alpha beta run.db"]
)
def test_without_results_by_example_one_line_names_the_extra(
    line: str, results_without_extras: dict[str, CommandResult]
) -> None:
    notes = results_without_extras[line].stderr.splitlines()
    assert [note for note in notes if "by example" in note] == [
        "results by example are left out, and differences are judged by standard errors alone;"
        f" to read them: {Extra.PARQUET.install_command}"
    ]


def test_figures_without_a_format_are_drawn_as_svg(
    results_without_extras: dict[str, CommandResult],
) -> None:
    done = results_without_extras[f"analyze rankings {SCORES} --figures drawings"]
    assert done.new_files == ("drawings",)
    assert f"figures are drawn as SVG; for PNG and PDF: {Extra.FIGURES.install_command}" in (
        done.stderr.splitlines()
    )


@pytest.mark.parametrize(
    ("line", "extra"), NEEDS_AN_EXTRA.items(), ids=lambda value: str(value).split()[0]
)
def test_what_needs_more_names_one_line_and_writes_nothing(
    line: str, extra: Extra, results_without_extras: dict[str, CommandResult]
) -> None:
    done = results_without_extras[line]
    assert done.returncode == 2, done.stderr[-2000:]
    assert extra.install_command in done.stderr
    assert "Traceback" not in done.stderr
    assert done.new_files == ()


@pytest.mark.parametrize("call", CALLS_THAT_NEED_MODELS.values(), ids=CALLS_THAT_NEED_MODELS)
def test_a_function_that_needs_more_names_one_line_and_writes_nothing(
    call: str, tmp_path: Path
) -> None:
    script = WITHOUT_EXTRAS + MAKE_STUDY + CATCH_ERROR.format(call=call)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    hint, new_files = json.loads(done.stdout)
    assert hint == Extra.RUN.install_command
    assert new_files == []


def test_a_missing_package_is_named_as_the_index_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "sklearn")
    with pytest.raises(
        MissingExtraError, match="a tree needs scikit-learn, which is not"
    ) as caught:
        require_extra(Extra.TREES, "a tree", otherwise="do without")
    assert caught.value.hint == f"{Extra.TREES.install_command}, or do without"


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, "pip install 'potentia[run]'"),
        (
            {"url": "file:///home/me/my%20code/potentia", "dir_info": {}},
            "pip install '/home/me/my code/potentia[run]'",
        ),
        (
            {"url": "file:///home/me/potentia", "dir_info": {"editable": True}},
            "pip install --editable '/home/me/potentia[run]'",
        ),
        (
            {"url": "file:///tmp/potentia-0.3.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'potentia[run] @ file:///tmp/potentia-0.3.0-py3-none-any.whl'",
        ),
        (
            {
                "url": "https://example.org/potentia.git",
                "vcs_info": {"vcs": "git", "commit_id": "0a1b2c"},
            },
            "pip install 'potentia[run] @ git+https://example.org/potentia.git@0a1b2c'",
        ),
    ],
    ids=["index", "checkout", "editable checkout", "wheel", "repository"],
)
def test_the_line_installs_from_where_potentia_came(
    direct_url: dict[str, object] | None,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = tmp_path / "potentia-9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.4\nName: potentia\nVersion: 9.9\n")
    if direct_url is not None:
        (metadata / "direct_url.json").write_text(json.dumps(direct_url))
    monkeypatch.syspath_prepend(tmp_path)
    assert Extra.RUN.install_command == command


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
