"""The package as people install it: one version, groups for developers, and an analysis that needs no torch."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

import potentia

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
    done = subprocess.run(code, capture_output=True, text=True, timeout=300)
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
    for file in (".pre-commit-config.yaml", ".github/workflows/ci.yml"):
        assert yaml.safe_load((ROOT / file).read_text())
