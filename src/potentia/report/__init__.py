"""Findings made visible: figures for papers and browsers, and the HTML report."""

from __future__ import annotations

from potentia.report.draw import FORMATS, draw, draw_all, interactive

__all__ = ["FORMATS", "draw", "draw_all", "interactive"]
