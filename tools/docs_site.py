"""Hooks of the site (``mkdocs.yml``): pages read off the code, README as the front page, formulas as MathML.

Formulas are written ``$…$`` and ``$$…$$`` and become MathML when the site is built, so a page needs no script and no
network to show them.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
LINKS = (
    (re.compile(r"\]\(docs/"), "]("),
    (re.compile(r"\]\(examples/([\w-]+)\.yaml\)"), r"](examples.md#\1)"),
    (re.compile(r"\]\(examples/([\w-]+)\.ipynb\)"), r"](quickstart.md#in-a-notebook)"),
    (re.compile(r"\]\(CHANGELOG\.md\)"), "](changelog.md)"),
    (re.compile(r"\]\(CONTRIBUTING\.md\)"), "](contributing.md)"),
    (re.compile(r"\[([A-Z_]+\.md)\]\([A-Z_]+\.md\)"), r"`\1`"),  # pages of the checkout alone
    (re.compile(r'src="docs/'), 'src="'),
)


def on_config(config: Any) -> Any:
    """Give every page of docs/ a place: a new one stands among those for contributors."""
    named = set(re.findall(r"[\w-]+\.md", str(config.nav)))
    for page in sorted(Path(config.docs_dir).glob("*.md")):
        if page.name not in named:
            place = next(
                part["For contributors"] for part in config.nav if "For contributors" in part
            )
            place.append(page.name)
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are not files of docs/."""
    from mkdocs.structure.files import File

    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]
    from reference_pages import api_page, cli_page, examples_page

    made = {
        "index.md": front_page((ROOT / "README.md").read_text("utf-8")),
        "changelog.md": front_page((ROOT / "CHANGELOG.md").read_text("utf-8")),
        "contributing.md": front_page((ROOT / "CONTRIBUTING.md").read_text("utf-8")),
        "cli.md": cli_page(),
        "api.md": api_page(),
        "examples.md": examples_page(),
    }
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def front_page(readme: str) -> str:
    """Return a file of the root as a page of the site: its links lead to the page of the same thing."""
    for pattern, target in LINKS:
        readme = pattern.sub(target, readme)
    return readme


def on_page_content(content: str, **_: Any) -> str:
    """Set the formulas of a page."""
    return FORMULA.sub(_set, content)


def _set(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    block = found[2] == "["
    written = convert(html.unescape(found[3]).strip(), display="block" if block else "inline")
    if "\\" in written:
        raise ValueError(f"a formula has a command that is not known: {found[3]}")
    return f'<div class="formula">{written}</div>' if block else written
