"""Potentia inside other tools: lm-eval, experiment trackers, adapters to take away and to predict with."""

from potentia.integrations.adapter_note import read_asked_task, read_note
from potentia.integrations.adapters import (
    ExportedAdapter,
    export_adapter,
    export_classifier,
    export_embedding_classifier,
    export_encoder,
)
from potentia.integrations.judge import AnswerJudge, JudgedAnswers, judge_answers
from potentia.integrations.predictions import (
    Predictions,
    check_predictions_file,
    merge_adapter_into_base,
    predict,
)
from potentia.integrations.trackers import send_to_tracker
