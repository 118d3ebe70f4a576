"""Findings made visible: figures for papers and browsers, and the HTML report."""

from potentia.show.answer import Answer, answer
from potentia.show.cell_details import cell_payload, find_items, item_payload, lane_payload
from potentia.show.draw import FORMATS, draw, draw_all, interactive
from potentia.show.onefile import report_page, save_report, write_report
from potentia.show.page import SCRIPTS, asset, environment, plotly_source
from potentia.show.parts import Parts
from potentia.show.predicted import outlook_part
from potentia.show.sections import Section, build_sections, evidence_maps
from potentia.show.source import ReportData, ReportOptions, make_report, read_outlook, read_report
