"""What a docstring or a page names exists: modules, functions, files and commands."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

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
FILES_OF_USERS = ("potentia.db", "potentia.json")  # names of files that look like names of modules


@cache
def docstrings_of(path: Path) -> tuple[str, ...]:
    tree = ast.parse(path.read_text("utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    result = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
    return tuple(text for text in result if text)


@cache
def words_of_the_code() -> frozenset[str]:
    """Every identifier of the sources, and every word of their strings that is no docstring."""
    words: set[str] = set()
    for path in SOURCES:
        text = path.read_text("utf-8")
        for documentation in docstrings_of(path):
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
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            fields = getattr(module, "__dataclass_fields__", {})
            module = fields.get(part) if part in fields else getattr(module, part, None)
        return module is not None
    return False


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_docstring_names_what_exists(path: Path) -> None:
    gone = []
    for documentation in docstrings_of(path):
        for name in re.findall(r"``([^`\s]+)``", documentation):
            if re.fullmatch(r"potentia(\.[A-Za-z_]\w*)+", name) and name not in FILES_OF_USERS:
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


EXPLAINED = re.compile(
    r"[Ww]ith(?:out)? ``([a-z_]\w*)``"
    r"|``([a-z_]\w*)`` (?:is|are|says?|names|maps|counts|takes|holds?|returns|chooses|makes|asks|gives|keeps|lists)\b"
)
EXPLAINED_WORDS = {  # functions of other modules, a kind of models, a column, a prefix of fields, a command
    "attending",
    "instruct",
    "name",
    "ngram",
    "predict",
    "scoreboard",
}


def words_of_definition(definition: ast.AST, documentation: str) -> set[str]:
    """Every identifier of a function or class, and every word of its strings but the docstring."""
    words: set[str] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.update(WORD.findall(node.value) if node.value != documentation else ())
        for attribute in ("id", "arg", "attr", "name"):
            words.add(str(getattr(node, attribute, "")))
    return words


def find_unknown_parameters(node: ast.AST, words_around: frozenset[str]) -> list[str]:
    """Return what docstrings below a node explain that is nothing of their function, class or module."""
    unknown = []
    for child in ast.iter_child_nodes(node):
        words = words_around
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            documentation = ast.get_docstring(child, clean=False) or ""
            words |= words_of_definition(child, documentation)
            explained = {first or second for first, second in EXPLAINED.findall(documentation)}
            unknown += [f"{child.name}: {name}" for name in explained - words]
        unknown += find_unknown_parameters(child, words)
    return unknown


@cache
def definitions_in(path: Path) -> frozenset[str]:
    """Every function and class of a module: a docstring may say what another one does."""
    return frozenset(re.findall(r"^ *(?:def|class) (\w+)", path.read_text("utf-8"), re.MULTILINE))


@cache
def names_of_functions() -> frozenset[str]:
    """Every function of the package whose name has several words; one word may mean a parameter."""
    return frozenset(name for path in SOURCES for name in definitions_in(path) if "_" in name)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_docstring_explains_parameters_that_exist(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    known = names_of_functions() | definitions_in(path) | EXPLAINED_WORDS
    assert find_unknown_parameters(tree, known) == []


def test_a_parameter_that_was_renamed_is_noticed() -> None:
    source = 'def pack(rows, max_tokens):\n    """Pack rows of ``rows``; ``most`` is how many tokens."""\n'
    assert find_unknown_parameters(ast.parse(source), frozenset()) == ["pack: most"]


def test_the_vocabulary_names_what_exists() -> None:
    page = (ROOT / "docs" / "vocabulary.md").read_text("utf-8")
    explained = re.findall(r"^\| ([^|]*) \| ([^|]*) \|", page, re.MULTILINE)
    names = {name for cells in explained for name in re.findall(r"`(\w+)`", " ".join(cells))}
    assert {name for name in names if name.strip("_") not in words_of_the_code()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_what_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    dotted = set(re.findall(r"`(potentia(?:\.[a-z_]\w*)*\.[A-Za-z_]\w*)(?:\(\))?`", text))
    files = {name for name in dotted if name.rpartition(".")[2] in ("db", "yaml", "csv", "ipynb")}
    assert [name for name in sorted(dotted - files) if not exists(name)] == []


def test_the_recipes_for_contributors_name_what_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    known = words_of_the_code() | {path.stem for path in (ROOT / "tests").glob("*.py")}
    gone = []
    for mentioned in set(re.findall(r"`([^`\n]+)`", text)):
        if re.fullmatch(r"[\w./]+\.(py|md|toml|yaml)|[\w/]+/", mentioned):
            if not any((folder / mentioned).exists() for folder in FOLDERS):
                gone.append(mentioned)
        elif re.fullmatch(r"_?[A-Za-z]\w*(_\w+)+|([A-Z][a-z]+){2,}|@\w+\(.*\)", mentioned):
            gone += [word for word in WORD.findall(mentioned)[:1] if word not in known]
    assert gone == []


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


@cache
def options_of_commands() -> frozenset[str]:
    """Return every option of every command."""
    options = {"--help"}
    commands: list[Any] = [typer.main.get_command(app)]
    while commands:
        command = commands.pop()
        for parameter in command.params:
            options |= {*parameter.opts, *parameter.secondary_opts}
        commands += getattr(command, "commands", {}).values()
    return frozenset(options)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_options_that_exist(page: Path) -> None:
    """In commands of Potentia, and in code that is an option alone; others name their program before their options."""
    text = page.read_text("utf-8")
    codes = re.findall(r"`((?:potentia |--)[^`\n]+)`", text)
    codes += re.findall(r"^potentia .*$", text, re.MULTILINE)
    named = {option for code in codes for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)}
    assert named - options_of_commands() == set()


OPTIONS_OF_OTHERS = {  # pip, Inspect, lm-eval and Ray
    "--editable",
    "--upgrade",
    "--head",
    "--output-dir",
    "--gen_kwargs",
    "--model_args",
}
OLD_OPTIONS = PACKAGE / "cli" / "old_names.py"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_sentence_names_options_that_exist(path: Path) -> None:
    """Hints, notes and help; only the table of old options may name those that are gone."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named |= set(re.findall(r"(?<![\w-])--[a-z][a-z_-]+", node.value))
    if path != OLD_OPTIONS:
        assert named - options_of_commands() - OPTIONS_OF_OTHERS == set()
