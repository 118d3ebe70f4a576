"""Findings made visible: figures for papers and browsers, and the HTML report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from potentia.report.draw import FORMATS, draw, draw_all, interactive

if TYPE_CHECKING:
    from potentia.report.onefile import report_page, save_report, write_report
    from potentia.report.sections import Section, build_sections
    from potentia.report.source import ReportData, read_report

__all__ = [
    "FORMATS",
    "ReportData",
    "Section",
    "build_sections",
    "draw",
    "draw_all",
    "interactive",
    "read_report",
    "report_page",
    "save_report",
    "write_report",
]

# scipy, SQLAlchemy and jinja2 are loaded with the first report, not by drawing a figure.
_LAZY = {
    "ReportData": "source",
    "Section": "sections",
    "build_sections": "sections",
    "read_report": "source",
    "report_page": "onefile",
    "save_report": "onefile",
    "write_report": "onefile",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"potentia.report.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
