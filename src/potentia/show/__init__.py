"""Findings made visible: figures for papers and notebooks, the HTML report, and the board."""

from potentia.show.answer import Answer, answer
from potentia.show.matrix import cell_payload, find_items, item_payload, lane_payload
from potentia.show.page import (
    FORMATS,
    SCRIPTS,
    STYLES,
    Drawing,
    Parts,
    Section,
    asset,
    draw,
    draw_all,
    environment,
    of_findings,
    render,
)
from potentia.show.sections import build_sections, report_page, save_report, write_report
from potentia.show.source import ReportData, ReportOptions, make_report, read_report
