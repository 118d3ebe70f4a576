"""Findings made visible: figures for papers and browsers, and the HTML report."""

from potentia.report.answer import Answer, answer
from potentia.report.cell_details import cell_payload, find_items, item_payload, lane_payload
from potentia.report.draw import FORMATS, draw, draw_all, interactive
from potentia.report.onefile import report_page, save_report, write_report
from potentia.report.page import SCRIPTS, asset, environment, plotly_source
from potentia.report.parts import Parts
from potentia.report.predicted import outlook_part
from potentia.report.sections import Section, build_sections, evidence_maps
from potentia.report.source import ReportData, ReportOptions, make_report, read_outlook, read_report
