"""The package as people install it: one version, groups for developers, and an analysis that needs no torch."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import potentia
from speed import PATIENCE

ROOT = Path(__file__).parents[1]

BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "peft", "accelerate", "lm_eval", "datasets"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import potentia
evidence = potentia.read(sys.argv[1])
found = potentia.find_rankings(evidence)
assert found.scoreboard.headline()
potentia.write_report(sys.argv[1], sys.argv[2])
assert not {"torch", "transformers", "peft", "lm_eval"} & set(sys.modules)
"""


def test_scores_are_analysed_without_torch_installed(tmp_path: Path) -> None:
    table = tmp_path / "scores.csv"
    rows = [
        f"{m},{t},{p},{0.4 + 0.05 * i + 0.02 * k},0.02"
        for i, m in enumerate("abcdef")
        for k, t in enumerate("xyz")
        for p in ("direct", "train_before_test")
    ]
    table.write_text("\n".join(["model,task,protocol,score,stderr", *rows]))
    code = [sys.executable, "-c", BLOCKED, str(table), str(tmp_path / "report.html")]
    done = subprocess.run(code, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == potentia.__version__


def test_tools_of_developers_are_no_published_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert not {"dev", "docs"} & set(project["project"]["optional-dependencies"])
    assert {"dev", "docs"} <= set(project["dependency-groups"])
    assert "Typing :: Typed" in project["project"]["classifiers"]
    assert (ROOT / "src" / "potentia" / "py.typed").exists()


FORGE_FILES = [ROOT / ".pre-commit-config.yaml", *sorted((ROOT / ".github").rglob("*.yml"))]


@pytest.mark.parametrize("path", FORGE_FILES, ids=lambda path: path.name)
def test_files_of_the_forge_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_every_python_that_is_named_is_tested() -> None:
    """The workflow left 3.14 out when all packages had come to it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        classifier.rpartition(" ")[2]
        for classifier in project["classifiers"]
        if re.search(r"Python :: 3\.\d+$", classifier)
    ]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == named
    assert jobs["core"]["strategy"]["matrix"]["python"] == [named[0], named[-1]]
    assert project["requires-python"] == f">={named[0]}"


def _workflow_commands() -> list[str]:
    """Return what the workflows run, each with the expressions of the forge as plain words."""
    commands = []
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            commands += [step["run"] for step in job["steps"] if "run" in step]
    return [re.sub(r"\$\{\{.*?\}\}", "expression", command) for command in commands]


@pytest.mark.parametrize("command", _workflow_commands())
def test_steps_of_workflows_are_shell_and_name_what_exists(command: str) -> None:
    subprocess.run(["bash", "-n", "-c", command], check=True)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", command)) <= targets
    for file in re.findall(r"(?:examples|\.ci)/[\w.-]+", command):
        assert (ROOT / file).exists(), file
