"""Potentia inside other tools: lm-eval, experiment trackers, the Hugging Face hub."""

from potentia.integrations.cards import ExportedAdapter, adapter_card, export_adapter, model_index
from potentia.integrations.judge import Judge, Judged, judge_answers
from potentia.integrations.trackers import send
