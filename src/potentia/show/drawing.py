"""A chart as a picture: inside the page, as a file for a paper, or for a notebook, with or without its title."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape, unescape
from importlib import resources
from pathlib import Path

from potentia.errors import InputError
from potentia.extras import Extra, require_extra
from potentia.files import write_file
from potentia.show.charts import draw_chart
from potentia.show.svg import LINE_HEIGHT, Sheet, wrap_text
from potentia.values.findings import Chart, register_drawing

FORMATS = ("pdf", "png", "svg")
MARGIN = 14.0
TITLE_SIZE = 14.0
PNG_SCALE = 2


@dataclass(frozen=True)
class Drawing:
    """A chart as a picture, which a notebook shows by itself."""

    svg: str

    def __repr__(self) -> str:
        """Return its title, not the whole picture."""
        title = re.search(r"<title>(.*?)</title>", self.svg)
        return f"Drawing({unescape(title[1]) if title else ''!r})"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write it as PDF, PNG or SVG, by the file's ending."""
        path = Path(path)
        write_file(path, _convert_svg(self.svg, path.suffix.lstrip(".").lower()))
        return path


@register_drawing
def make_drawing(chart: Chart) -> Drawing:
    """Return the picture of a chart."""
    return Drawing(_standalone_svg(chart, titles=True))


def draw(chart: Chart, format: str = "pdf", *, titles: bool = True) -> bytes:
    """Return the chart as PDF, PNG or SVG.

    Args:
        chart: A chart of a finding, from ``finding.charts()``.
        format: ``pdf``, ``png`` or ``svg``.
        titles: Whether the title and the caption are drawn above it.

    Example:
        >>> chart, *_ = potentia.rankings("scores.csv").scoreboard.charts()
    """
    return _convert_svg(_standalone_svg(chart, titles=titles), format)


def draw_all(
    charts: Iterable[Chart], folder: Path, formats: Sequence[str] = ("pdf",), *, titles: bool = True
) -> list[Path]:
    """Write every chart into a folder in every format, and return the files."""
    for file_format in formats:
        check_figure_format(file_format)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for chart in charts:
        svg = _standalone_svg(chart, titles=titles)
        for file_format in formats:
            figure_file = folder / f"{chart.name}.{file_format}"
            write_file(figure_file, _convert_svg(svg, file_format))
            files.append(figure_file)
    return files


def inline_svg(chart: Chart) -> tuple[str, float]:
    """Return the drawing as the page holds it, which has title and colours, and its width."""
    sheet, width, height = draw_chart(chart)
    label = escape(f"{chart.title}. {chart.caption}".strip(" ."))
    size = (
        f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
        f' style="--w: {width:.0f}px"'
    )
    content = "".join(sheet.parts)
    svg = f'<svg class="chart" {size} role="img" aria-label="{label}">{content}</svg>'
    return svg, width


def _standalone_svg(chart: Chart, *, titles: bool) -> str:
    """Return the drawing as a file of its own: on white, with the page's light colours."""
    sheet, chart_width, chart_height = draw_chart(chart)
    header = Sheet()
    header_height = 0.0
    if titles:
        header_height = _write_header(header, chart, chart_width)
    width = chart_width + 2 * MARGIN
    height = chart_height + header_height + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><title>{escape(chart.title)}</title><style>{_light_style()}</style>'
        f'<rect width="100%" height="100%" fill="#ffffff"/><g transform="translate({MARGIN:g} {MARGIN:g})">'
        f'{"".join(header.parts)}<g transform="translate(0 {header_height:g})">{"".join(sheet.parts)}</g></g></svg>'
    )


def _write_header(sheet: Sheet, chart: Chart, width: float) -> float:
    """Write title and caption above a chart, and return the height that they take."""
    y = 0.0
    for line in wrap_text(chart.title, width, TITLE_SIZE + 1):
        sheet.text(0, y + LINE_HEIGHT / 2, line, "heading")
        y += LINE_HEIGHT + 1
    for line in wrap_text(chart.caption, width):
        sheet.text(0, y + LINE_HEIGHT / 2, line, "muted")
        y += LINE_HEIGHT - 2
    if y:
        y += 10
    return y


@cache
def _light_style() -> str:
    """Return the style of charts with the light colours of the page in the place of its variables."""
    assets = resources.files("potentia.show").joinpath("assets")
    page_style = assets.joinpath("report.css").read_text("utf-8")
    variables = page_style.partition(":root {")[2].partition("}")[0]
    color_by_name = dict(re.findall(r"--([\w-]+):\s*([^;]+);", variables))
    chart_style = assets.joinpath("chart.css").read_text("utf-8")
    without_comments = re.sub(r"/\*.*?\*/\s*", "", chart_style)
    return re.sub(r"var\(--([\w-]+)\)", lambda match: color_by_name[match[1]], without_comments)


def check_figure_format(file_format: str) -> None:
    """Refuse a format that is not known, and one whose converter is not installed."""
    if file_format not in FORMATS:
        raise InputError(f"no figure format {file_format!r}", hint=f"one of: {', '.join(FORMATS)}")
    if file_format != "svg":
        require_extra(
            Extra.FIGURES, f"a figure as {file_format.upper()}", otherwise="write it as SVG"
        )


def _convert_svg(svg: str, file_format: str) -> bytes:
    """Turn a drawing into a file of this format."""
    check_figure_format(file_format)
    if file_format == "svg":
        return svg.encode("utf-8")
    import vl_convert

    picture: bytes
    if file_format == "pdf":
        picture = vl_convert.svg_to_pdf(svg)
    else:
        picture = vl_convert.svg_to_png(svg, scale=PNG_SCALE)
    return picture
