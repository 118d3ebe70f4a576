"""What a docstring or a page names exists: modules, functions, files and commands."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest
import typer

from potentia.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "potentia"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = (ROOT, ROOT / "src", PACKAGE)
EXAMPLES = {  # names of others: columns, checkpoints, tasks and labels that a docstring shows
    "billing_issue",
    "global_step5000",
    "mmlu_continuation",
    "mmlu_stderr",
    "test_mcc",
    "test_mcc_se",
}
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def docstrings_of(tree: ast.Module) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
    return [text for text in found if text]


@cache
def words_of_the_code() -> frozenset[str]:
    """Every identifier of the sources, and every word of their strings that is no docstring."""
    words: set[str] = set()
    for path in SOURCES:
        text = path.read_text("utf-8")
        for documentation in docstrings_of(ast.parse(text)):
            for line in documentation.splitlines():
                text = text.replace(line.strip(), "") if line.strip() else text
        words.update(WORD.findall(text))
        words.update(path.relative_to(PACKAGE).with_suffix("").parts)
    return frozenset(words)


def exists(dotted: str) -> bool:
    """Whether a dotted name leads to a module, or to something inside one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            fields = getattr(found, "__dataclass_fields__", {})
            found = fields.get(part) if part in fields else getattr(found, part, None)
        return found is not None
    return False


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_docstring_names_what_exists(path: Path) -> None:
    gone = []
    for documentation in docstrings_of(ast.parse(path.read_text("utf-8"))):
        for name in re.findall(r"``([^`\s]+)``", documentation):
            if re.fullmatch(r"potentia(\.[A-Za-z_]\w*)+", name) and name != "potentia.db":
                if not exists(name):
                    gone.append(name)
            elif re.fullmatch(r"[\w/]+\.py", name) and "NAME" not in name:
                if not any((folder / name).exists() for folder in (*FOLDERS, path.parent)):
                    gone.append(name)
            elif (
                re.fullmatch(r"[A-Za-z]\w*_\w+", name)
                and not name.startswith("SBATCH_")
                and name not in words_of_the_code()
            ):
                gone += [name] if name not in EXAMPLES else []
    assert gone == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_what_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    dotted = set(re.findall(r"`(potentia(?:\.[a-z_]\w*)*\.[A-Za-z_]\w*)(?:\(\))?`", text))
    files = {name for name in dotted if name.rpartition(".")[2] in ("db", "yaml", "csv", "ipynb")}
    assert [name for name in sorted(dotted - files) if not exists(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_commands_that_exist(page: Path) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    named = re.findall(r"`potentia ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", page.read_text("utf-8"))
    gone = set()
    for name, inner in named:
        group = getattr(commands.get(name), "commands", None)
        if name not in commands or (group and inner and inner not in group):
            gone.add(f"{name} {inner}".strip())
    assert gone == set()
