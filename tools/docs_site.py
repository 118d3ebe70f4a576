"""Build the site of the documentation: pages read off the code, README as the front page, formulas as MathML.

python tools/docs_site.py              # into site/
python tools/docs_site.py FOLDER

Zensical reads ``mkdocs.yml`` but runs no hooks. So the pages are laid out in a folder of their own in front of the
build. Formulas are written ``$…$`` and ``$$…$$`` and become MathML after it: a page needs no script and no network to
show them.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CONTRIBUTORS = "For contributors"

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


def build_site(site: Path) -> None:
    """Build the site into a folder; a broken link or anchor ends the build."""
    with tempfile.TemporaryDirectory() as folder:
        config_file = lay_out_pages(Path(folder))
        zensical = Path(sys.executable).with_name("zensical")
        command = [str(zensical), "build", "--strict", "--config-file", str(config_file)]
        subprocess.run(command, check=True, cwd=folder)
        shutil.copytree(Path(folder, "site"), site, dirs_exist_ok=True)
    for page in sorted(site.rglob("*.html")):
        text = page.read_text("utf-8")
        page.write_text(FORMULA.sub(_set_formula, text), "utf-8")


def lay_out_pages(folder: Path) -> Path:
    """Write every page of the site, those of docs/ and the made ones, and return the config that builds them."""
    pages = folder / "pages"
    shutil.copytree(ROOT / "docs", pages)
    for name, text in make_pages().items():
        (pages / name).write_text(text, "utf-8")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    config["docs_dir"] = "pages"
    config["site_dir"] = "site"
    _name_every_page(config["nav"], pages)
    config_file = folder / "mkdocs.yml"
    config_file.write_text(yaml.safe_dump(config, allow_unicode=True, sort_keys=False), "utf-8")
    return config_file


def make_pages() -> dict[str, str]:
    """Return the pages that are not files of docs/."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]
    from python_reference import api_page
    from reference_pages import cli_page, examples_page

    return {
        "index.md": front_page((ROOT / "README.md").read_text("utf-8")),
        "changelog.md": front_page((ROOT / "CHANGELOG.md").read_text("utf-8")),
        "contributing.md": front_page((ROOT / "CONTRIBUTING.md").read_text("utf-8")),
        "cli.md": cli_page(),
        "api.md": api_page(),
        "examples.md": examples_page(),
    }


def _name_every_page(navigation: list[dict[str, Any]], pages: Path) -> None:
    """Give every page a place in the navigation: a new one stands among those for contributors."""
    named_pages = set(re.findall(r"[\w-]+\.md", str(navigation)))
    for part in navigation:
        if CONTRIBUTORS in part:
            part[CONTRIBUTORS] += [
                page.name for page in sorted(pages.glob("*.md")) if page.name not in named_pages
            ]


def front_page(readme: str) -> str:
    """Return a file of the root as a page of the site: its links lead to the page of the same thing."""
    for pattern, target in LINKS:
        readme = pattern.sub(target, readme)
    return readme


def _set_formula(formula: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    is_block = formula[2] == "["
    display = "block" if is_block else "inline"
    math = convert(html.unescape(formula[3]).strip(), display=display)
    if "\\" in math:
        raise ValueError(f"a formula has a command that is not known: {formula[3]}")
    return f'<div class="formula">{math}</div>' if is_block else math


def main() -> None:
    """Build the site into the folder that is named, or into site/."""
    site = ROOT / "site"
    if len(sys.argv) > 1:
        site = Path(sys.argv[1])
    else:
        shutil.rmtree(site, ignore_errors=True)  # pages of an earlier build
    build_site(site)
    print(f"== open {site / 'index.html'}")


if __name__ == "__main__":
    main()
