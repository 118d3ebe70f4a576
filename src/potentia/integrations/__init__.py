"""Potentia inside other tools: lm-eval, experiment trackers, adapters to take away and to predict with."""

from potentia.integrations.adapters import ExportedAdapter, export_adapter
from potentia.integrations.judge import Judge, Judged, judge_answers
from potentia.integrations.predictions import Predictions, merge, predict
from potentia.integrations.trackers import send
