"""Draw a chart: as a file for a paper, or as an interactive figure for the browser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from potentia.errors import InputError
from potentia.values.findings import Chart

PAPER = ("pdf", "png", "svg")
FORMATS = (*PAPER, "html")


def draw(chart: Chart, format: str = "pdf") -> bytes:
    """Return the chart as PDF, PNG, SVG, or a web page that works without a network."""
    if format in PAPER:
        from potentia.show.matplotlib_figures import render

        return render(chart, format)
    if format == "html":
        import plotly.io

        page: str = plotly.io.to_html(interactive(chart), include_plotlyjs=True, full_html=True)
        return page.encode("utf-8")
    raise InputError(f"no figure format {format!r}", hint=f"one of: {', '.join(FORMATS)}")


def interactive(chart: Chart) -> dict[str, Any]:
    """Return the chart as a plotly figure: a plain dictionary, ready for JSON."""
    from potentia.show.plotly_figures import figure

    return figure(chart)


def draw_all(charts: Iterable[Chart], folder: Path, formats: Sequence[str] = ("pdf",)) -> list[Path]:
    """Write every chart into a folder in every format, and return the files."""
    for format in formats:
        if format not in FORMATS:
            raise InputError(f"no figure format {format!r}", hint=f"one of: {', '.join(FORMATS)}")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in charts:
        for format in formats:
            path = folder / f"{chart.name}.{format}"
            path.write_bytes(draw(chart, format))
            written.append(path)
    return written
