"""Findings made visible: figures for papers and notebooks, the HTML report, and the board."""

from potentia.show.answer import Answer, make_answer
from potentia.show.drawing import FORMATS, Drawing, check_figure_format, draw, draw_all
from potentia.show.matrix import cell_payload, filter_items, item_payload, lane_payload
from potentia.show.page import Section, of_findings
from potentia.show.sections import build_sections, report_page, save_report, write_report
from potentia.show.source import ReportData, ReportOptions, make_report
