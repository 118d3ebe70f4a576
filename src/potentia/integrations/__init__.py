"""Potentia inside other tools: lm-eval, experiment trackers, adapters to take away and to predict with."""

from potentia.integrations.adapters import (
    ExportedAdapter,
    Predictions,
    export_adapter,
    merge,
    predict,
)
from potentia.integrations.judge import Judge, Judged, judge_answers
from potentia.integrations.trackers import send
