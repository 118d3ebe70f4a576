"""Draw a chart: into the page, as a file for a paper, or for a notebook. One drawing, with or without its title."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path

from potentia.errors import InputError
from potentia.files import write_file
from potentia.show.charts import draw_chart
from potentia.show.svg import LINE, Sheet, wrapped
from potentia.values.findings import Chart, draws

FORMATS = ("pdf", "png", "svg")
MARGIN = 14.0
HEADING = 14.0  # letters of the title


@dataclass(frozen=True)
class Drawing:
    """A chart as a picture, which a notebook shows by itself."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write it as PDF, PNG or SVG, by the file's ending."""
        path = Path(path)
        write_file(path, _converted(self.svg, path.suffix.lstrip(".").lower()))
        return path


@draws
def drawing(chart: Chart) -> Drawing:
    """Return the picture of a chart."""
    return Drawing(_alone(chart, titles=True))


def draw(chart: Chart, format: str = "pdf", *, titles: bool = True) -> bytes:
    """Return the chart as PDF, PNG or SVG."""
    return _converted(_alone(chart, titles=titles), format)


def draw_all(
    charts: Iterable[Chart], folder: Path, formats: Sequence[str] = ("pdf",), *, titles: bool = True
) -> list[Path]:
    """Write every chart into a folder in every format, and return the files."""
    for format in formats:
        _check(format)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for chart in charts:
        svg = _alone(chart, titles=titles)
        for format in formats:
            path = folder / f"{chart.name}.{format}"
            write_file(path, _converted(svg, format))
            files.append(path)
    return files


def inline_svg(chart: Chart) -> tuple[str, float]:
    """Return the drawing as the page holds it, which has title and colours, and its width."""
    sheet, width, height = draw_chart(chart)
    label = escape(f"{chart.title}. {chart.caption}".strip(" ."))
    size = (
        f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" style="--w: {width:.0f}px"'
    )
    return f'<svg class="chart" {size} role="img" aria-label="{label}">{"".join(sheet.parts)}</svg>', width


def _alone(chart: Chart, *, titles: bool) -> str:
    """Return the drawing as a file of its own: on white, with the page's light colours."""
    sheet, width, height = draw_chart(chart)
    head, y = Sheet(), 0.0
    if titles:
        for line in wrapped(chart.title, width, HEADING + 1):
            head.text(0, y + LINE / 2, line, "heading")
            y += LINE + 1
        for line in wrapped(chart.caption, width):
            head.text(0, y + LINE / 2, line, "muted")
            y += LINE - 2
        y += 10 if y else 0
    width, height = width + 2 * MARGIN, height + y + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><title>{escape(chart.title)}</title><style>{_light_style()}</style>'
        f'<rect width="100%" height="100%" fill="#ffffff"/><g transform="translate({MARGIN:g} {MARGIN:g})">'
        f'{"".join(head.parts)}<g transform="translate(0 {y:g})">{"".join(sheet.parts)}</g></g></svg>'
    )


@cache
def _light_style() -> str:
    """Return the style of charts with the light colours of the page in the place of its variables."""
    folder = resources.files("potentia.show").joinpath("assets")
    root = folder.joinpath("report.css").read_text("utf-8").partition(":root {")[2].partition("}")[0]
    colours = dict(re.findall(r"--([\w-]+):\s*([^;]+);", root))
    style = folder.joinpath("chart.css").read_text("utf-8")
    return re.sub(r"var\(--([\w-]+)\)", lambda found: colours[found[1]], re.sub(r"/\*.*?\*/\s*", "", style))


def _check(format: str) -> None:
    if format not in FORMATS:
        raise InputError(f"no figure format {format!r}", hint=f"one of: {', '.join(FORMATS)}")


def _converted(svg: str, format: str) -> bytes:
    _check(format)
    if format == "svg":
        return svg.encode("utf-8")
    import vl_convert

    made: bytes = vl_convert.svg_to_pdf(svg) if format == "pdf" else vl_convert.svg_to_png(svg, scale=2)
    return made
