"""The pictures of pages in docs/images, taken anew so that they show what a reader sees.

python tools/screenshots.py potentia-demo/potentia.db   # the store of ``potentia demo``

The report and the picture of the README are of the study in examples/; the board is of the store. Marks and arrows are
drawn into the page.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH = 1180
COLORS = 64  # of a picture: pages have few
PORT = 8797
CHROMIUM = "/usr/bin/chromium"

# The report is of these: with their copies it begins with the picture of the README.
ORIGINALS = (
    "stories15M",
    "SmolLM2-135M-Instruct",
    "gemma-3-270m",
    "Qwen2.5-Coder-0.5B-Instruct",
    "TinyLlama-1.1B-Chat-v1.0",
)

# What docs/report.md explains by number: where the mark's arrow ends, and on which side of it the mark stands.
MARKS = (
    (1, ".headline", "right"),
    (2, ".rung >> nth=0 >> .scores .dot", "right"),
    (3, ".rung >> nth=0 >> .ranks .ring", "right"),
    (4, "p.lead.todo", "right"),
    (5, "nav[aria-label=Sections] a >> nth=0", "left"),
)
DRAW_MARK = """
([number, x, y, side]) => {
  const mark = document.createElement("div");
  mark.textContent = side === "left" ? `${number} →` : `← ${number}`;
  const place = side === "left" ? `right: ${innerWidth - x + 6}px` : `left: ${x + 6}px`;
  mark.style.cssText = `position: absolute; top: ${y - 17}px; ${place}; z-index: 99; padding: 3px 10px;
    border-radius: 17px; background: #c62828; color: white; font: bold 19px sans-serif; line-height: 28px`;
  document.body.append(mark);
}
"""


def draw_marks(page: Page) -> None:
    """Draw the numbered marks of the page that docs/report.md explains."""
    for number, selector, side in MARKS:
        box = _read_box(page, selector)
        x = box["x"] if side == "left" else box["x"] + box["width"]
        y = box["y"] + box["height"] / 2
        page.evaluate(DRAW_MARK, [number, x, y, side])


def _read_box(page: Page, selector: str) -> dict[str, float]:
    """Return where an element is; of a text, which may be narrower than its element, where its words are."""
    box: dict[str, Any] = page.locator(selector).first.evaluate(
        """element => {
          const range = document.createRange();
          range.selectNodeContents(element);
          const shape = element.textContent ? range : element;
          const { x, y, width, height } = shape.getBoundingClientRect();
          return { x, y, width, height };
        }"""
    )
    return box


def shrink(path: Path) -> None:
    """Store a picture with few colours."""
    Image.open(path).convert("RGB").quantize(COLORS).save(path, optimize=True)


def take_report(page: Page, report: Path) -> None:
    """Take the first screen of a report, with its marks, and its evidence."""
    page.goto(report.as_uri())
    page.wait_for_timeout(500)
    draw_marks(page)
    end = page.locator(".tiles").bounding_box()
    assert end is not None
    height = end["y"] + end["height"] + 16
    page.screenshot(
        path=IMAGES / "report-reading.png",
        clip={"x": 0, "y": 0, "width": WIDTH, "height": height},
        full_page=True,
    )
    page.goto(f"{report.as_uri()}#evidence")
    page.reload()
    page.locator(".pairs").scroll_into_view_if_needed()
    page.wait_for_timeout(1000)
    page.add_style_tag(content=".pairs { padding: 0 14px 8px; }")
    page.locator(".pairs").screenshot(path=IMAGES / "report-evidence.png")


def take_board(page: Page, store: str) -> None:
    """Take the board of a store."""
    command = [sys.executable, "-m", "potentia", "serve", store, "--port", str(PORT)]
    board = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert board.stdout is not None
        board.stdout.readline()
        page.goto(f"http://127.0.0.1:{PORT}/")
        page.locator("a.card").first.click()
        page.locator("#answer .headline").wait_for()
        page.wait_for_timeout(500)
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=IMAGES / "board.png", full_page=True)
    finally:
        board.terminate()
        board.wait()


def draw_readme_picture(folder: Path) -> None:
    """Draw the picture of the README, which the report begins with, as a file."""
    source = str(ROOT / "examples" / "real-models.csv")
    command = [sys.executable, "-m", "potentia", "papers", "test-task", source, "--quiet"]
    subprocess.run([*command, "--figures", str(folder)], check=True, stdout=subprocess.DEVNULL)
    shutil.copy(folder / "copies-by-model.png", IMAGES / "real-models.png")


def main() -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report = Path(folder) / "report.html"
        source = str(ROOT / "examples" / "real-models.csv")
        command = [sys.executable, "-m", "potentia", "report", source, "-o", str(report), "--quiet"]
        subprocess.run([*command, "--models", *ORIGINALS], check=True)
        draw_readme_picture(Path(folder))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        take_report(page, report)
        if len(sys.argv) > 1:
            take_board(page, sys.argv[1])
        browser.close()
    for path in IMAGES.glob("*.png"):
        shrink(path)


if __name__ == "__main__":
    main()
