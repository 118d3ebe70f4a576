"""The documents hold what they promise: every block runs or is parsed, the site builds, the notebook executes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import doc_blocks
import python_reference
import reference_pages
from doc_blocks import Block, blocks, pages, parse
from speed import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
SLOW = bool(os.environ.get("POTENTIA_SLOW_DOCS"))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What became of every block: one process runs all pages, so that libraries are loaded once."""
    file = tmp_path_factory.mktemp("docs") / "told.json"
    command = [
        sys.executable,
        str(ROOT / "tools" / "doc_blocks.py"),
        "--json",
        str(file),
        *(["--slow"] if SLOW else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert file.exists(), done.stderr[-3000:]
    return {page["page"]: page["blocks"] for page in json.loads(file.read_text())}


@pytest.mark.parametrize("page", [page.name for page in pages()])
def test_every_block_of_a_page_runs(told: dict[str, list[dict[str, Any]]], page: str) -> None:
    problems = [f"{block['block']}\n{block['problem']}" for block in told[page] if block["problem"]]
    assert not problems, "\n".join(problems)


def test_most_blocks_are_run_and_not_only_parsed(told: dict[str, list[dict[str, Any]]]) -> None:
    live = {
        b.name: b
        for page in pages()
        for b in blocks(page)
        if b.language in ("bash", "sh", "python")
    }
    counter = Counter(
        block["how"] for page in told.values() for block in page if block["block"] in live
    )
    marked = [b for b in live.values() if b.mark]
    assert counter["run"] == len(live) - (
        sum(b.mark == "not run" for b in marked) if SLOW else len(marked)
    )
    assert counter["run"] >= 0.5 * len(live), counter


@pytest.mark.parametrize(
    ("language", "text", "mark", "reason"),
    [
        ("bash", "potentia run --no-such-option x", "", ""),
        ("bash", "potentia analyze nothing scores.csv", "not run", "needs a GPU"),
        ("bash", "if", "", ""),
        ("bash", "potentia doctor", "not run", "because"),
        ("ruby", "puts 1", "", ""),
        ("python", "import potentia\npotentia.no_such_name()", "slow", "a minute"),
        ("python", "print(", "", ""),
        ("yaml", "modells: [a]", "", ""),
        ("json", "{", "", ""),
    ],
)
def test_a_wrong_block_is_found_without_running_it(
    language: str, text: str, mark: str, reason: str
) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - a parser's own error each
        parse(Block("page", 1, language, text, mark, reason))


def test_commands_are_run_also_where_a_block_does_not_name_its_language(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```\npotentia doctor --no-such-option\n```\n\n```\n<folder>/<file>\n```\n\n-\n\n  ```python\n  x = 1\n  ```\n"
    )
    commands, layout, inner = blocks(page)
    assert (commands.language, layout.language, inner.text) == ("bash", "", "x = 1")
    with pytest.raises(ValueError, match="no-such-option"):
        parse(commands)
    parse(layout)


def test_a_block_that_fails_when_run_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doc_blocks.Runner()
    for language, text in (
        ("bash", "potentia status nothing.db"),
        ("bash", "false"),
        ("python", "1 / 0"),
    ):
        with pytest.raises((RuntimeError, ZeroDivisionError)):
            runner.run(Block("page", 1, language, text))


def test_the_site_builds_without_a_warning_and_asks_nobody(tmp_path: Path) -> None:
    _build_site(tmp_path, ROOT)
    made = {page.name: page.read_text("utf-8") for page in tmp_path.glob("*.html")}
    assert {f"{page.stem}.html" for page in pages() if page.stem != "README"} <= set(made)
    asked = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//')
    assert not [name for name, text in made.items() if asked.search(text)]
    style = " ".join(file.read_text("utf-8") for file in tmp_path.rglob("*.css"))
    assert not re.search(r"url\(['\"]?(?:https?:)?//", style)
    assert made["methods.html"].count("<math") > 20
    assert "arithmatex" not in made["methods.html"]


def test_a_broken_link_ends_the_build_of_the_site(tmp_path: Path) -> None:
    for name in ("docs", "examples", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    with (tmp_path / "docs" / "zoo.md").open("a", encoding="utf-8") as page:
        page.write("\n[nowhere](run.md#no-such-heading)\n")
    with pytest.raises(AssertionError, match="anchor does not exist"):
        _build_site(tmp_path / "site", tmp_path)


def _build_site(site: Path, checkout: Path) -> None:
    """Build the site of a checkout as ``make docs`` does."""
    if os.environ.get("POTENTIA_REQUIRE_SYSTEM") != "1":
        pytest.importorskip("zensical", reason="Zensical, which builds the site, is not installed")
    command = [sys.executable, str(checkout / "tools" / "docs_site.py"), str(site)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=checkout, env=environment
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    assert "Warning" not in output


def test_the_references_name_every_command_and_every_public_name() -> None:
    import typer

    import potentia
    from potentia.cli.app import app

    commands = reference_pages.cli_page()
    for name, command in reference_pages.commands(typer.main.get_command(app), "potentia"):
        assert f"## {name}\n" in commands
        for parameter in command.params:
            assert (
                parameter.name == "help"
                or f"`{parameter.opts[0]}`" in commands
                or parameter.name.upper() in commands
            )
    names = python_reference.api_page()
    rooms = {"analysis", "engine", "facts", "tasks"}
    assert not [
        name
        for name in set(dir(potentia)) - rooms
        if name[0] != "_" and f"### {name}\n" not in names
    ]


def test_the_page_on_python_is_written_for_people() -> None:
    """It printed addresses of functions, and under every field the docstring of the type of its default."""
    page = python_reference.api_page()
    for nonsense in ("0x", "int([x])", "Built-in", "str(object", "<lambda>", "model_config"):
        assert nonsense not in page
    prose = re.sub(r"```.*?```|`[^`]*`", "", page, flags=re.DOTALL)
    assert not re.findall(r"\b(?:cells?|lanes?|documents?|twins?|Args|Example):?\b", prose)
    assert "| `store` | SQLite file or database URL; `potentia.db` where absent. |" in page
    assert "| `stderr` | `float` |  | of the test examples" in page


def test_the_notebook_executes_and_its_outputs_are_kept_small(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    file = ROOT / "examples" / "potentia.ipynb"
    content = nbformat.read(file, as_version=4)
    assert file.stat().st_size < 200_000
    code = [cell for cell in content.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]
    fresh = nbclient.NotebookClient(
        deepcopy(content), timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    for old, new in zip(
        code, [cell for cell in fresh.cells if cell.cell_type == "code"], strict=True
    ):
        assert _shown(old) == _shown(new)


def _shown(cell: Any) -> list[tuple[str, list[str]]]:
    """What a cell put out, and in which forms; warnings of the libraries do not count."""
    return [
        (out.output_type, sorted(out.get("data", {})))
        for out in cell.outputs
        if out.get("name") != "stderr"
    ]


def test_the_wheel_stays_small(tmp_path: Path) -> None:
    """What the wheel holds, compressed as it is there: under 15 MB."""
    with zipfile.ZipFile(tmp_path / "potentia.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in (ROOT / "src" / "potentia").rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                wheel.write(file, file.relative_to(ROOT / "src"))
    assert (tmp_path / "potentia.whl").stat().st_size < 15e6
