"""Benchmarks: the bridge to lm-eval, users' own files, splits, prompt forms, and the overlap check."""

from potentia.study import Caps
from potentia.tasks.checks import (
    TFIDF,
    Overlap,
    compute_baselines,
    fit_linear_classifier,
    measure_overlap,
)
from potentia.tasks.columns import map_columns
from potentia.tasks.data import (
    LIMITED,
    ReadingLog,
    Record,
    UserData,
    dataset_from_records,
    read_records,
    silence_libraries,
)
from potentia.tasks.definitions import read_stock_task, task_index
from potentia.tasks.forms.open_answers import verify_answer
from potentia.tasks.grading import choose_answer
from potentia.tasks.kinds import find_label, make_unanswered_documents
from potentia.tasks.linear_classifier import LinearTextClassifier
from potentia.tasks.loading import load, reading_data_once
from potentia.tasks.splits import Division, PlannedSplit, Split, SplitPlan
from potentia.tasks.subtask import Answer, ChatTemplate, Prompt, Subtask, TaskDocument
from potentia.tasks.task import Task
from potentia.tasks.user_tasks import bad_rows_error, guess_columns
