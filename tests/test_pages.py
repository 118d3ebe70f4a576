"""The pages for users: few, short, and each in the navigation once."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from potentia.evidence import read
from potentia.show import ReportOptions, build_sections, make_answer, make_report

ROOT = Path(__file__).resolve().parents[1]
FOR_CONTRIBUTORS = "For contributors"
WRITTEN_BY_TOOLS = {"index.md", "examples.md", "cli.md", "api.md", "changelog.md"}
MOST_PAGES = 16
MOST_WORDS = 20_000


def navigation() -> list[dict[str, Any]]:
    """Return the sections of the site's navigation; the file has tags that only its builder knows."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    section = re.search(r"^nav:\n(?:[ -].*\n?)+", text, re.MULTILINE)
    assert section
    entries: list[dict[str, Any]] = yaml.safe_load(section[0])["nav"]
    return entries


def pages_of_users() -> list[str]:
    pages: list[str] = []
    for entry in navigation():
        for title, content in entry.items():
            if title != FOR_CONTRIBUTORS and isinstance(content, list):
                pages += [page for named in content for page in named.values()]
    return [page for page in pages if page not in WRITTEN_BY_TOOLS]


def words_of_prose(page: str) -> int:
    """Count the words of a page outside its code blocks and comments."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return len(re.findall(r"[A-Za-z][\w'’-]*", text))


def test_the_pages_for_users_are_few() -> None:
    assert 10 < len(pages_of_users()) <= MOST_PAGES


def test_the_pages_for_users_are_short() -> None:
    words = {page: words_of_prose(page) for page in pages_of_users()}
    assert sum(words.values()) <= MOST_WORDS, words


def test_every_page_is_in_the_navigation_once() -> None:
    named = [
        page
        for entry in navigation()
        for content in entry.values()
        for page in (
            [content] if isinstance(content, str) else [p for n in content for p in n.values()]
        )
    ]
    assert len(named) == len(set(named))
    written = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert written <= set(named)


def test_the_readme_shows_the_study_file_that_it_names() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    (shown,) = re.findall(r"examples/first\.yaml\):\n\n```yaml\n(.*?)```", readme, flags=re.DOTALL)
    file = (ROOT / "examples" / "first.yaml").read_text("utf-8")
    assert shown == "".join(line for line in file.splitlines(True) if not line.startswith("#"))


def test_a_reader_learns_how_to_type_potentia_after_the_installation() -> None:
    """Every later command of README ended in "command not found"."""
    for page in ("README.md", "docs/quickstart.md"):
        text = (ROOT / page).read_text("utf-8")
        assert "make setup" in text.partition("source .venv/bin/activate")[0], page
    for target in ("setup", "demo"):
        command = ["make", "--dry-run", "--always-make", target]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        assert "source .venv/bin/activate" in done.stdout.splitlines()[-1], target


def test_the_command_under_the_picture_writes_a_page_that_begins_with_it() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert (
        "\npotentia report examples/real-models.csv -o report.html\n" in readme.partition("## ")[0]
    )
    options = ReportOptions(only=("answer",))
    report = make_report(read(ROOT / "examples" / "real-models.csv"), options=options)
    ((_, _, answer),) = build_sections(report)
    figures = re.findall(r'<figure class="figure [a-z]*" id="fig-([a-z-]+)"', answer)
    assert figures == ["opening-copies-by-model"]
    headline = make_answer(report).headline
    assert "score 13.5 points more than their originals" in headline
    assert answer.index("copies-by-model") < answer.index("Where each model stands")
    originals = [
        model for model in report.evidence.models if model not in report.evidence.exposed_copies
    ]
    assert make_report(report.evidence.narrowed(models=originals)).opening is None
