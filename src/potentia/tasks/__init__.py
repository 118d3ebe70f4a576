"""Tasks: examples in splits, with a prompt and a metric, of lm-eval or of a user's own files."""

from potentia.study import Caps
from potentia.tasks.checks import (
    Overlap,
    compute_baselines,
    compute_written_baselines,
    fit_linear_classifier,
    measure_overlap,
)
from potentia.tasks.columns import map_columns, split_joined_columns
from potentia.tasks.data import (
    UNTRUSTED,
    ReadingLog,
    Record,
    RowError,
    RowPlace,
    UserData,
    as_list,
    dataset_from_records,
    read_records,
    silence_libraries,
)
from potentia.tasks.definitions import read_stock_task, shipped_tasks, task_index
from potentia.tasks.embedding_classifier import EmbeddingClassifier
from potentia.tasks.forms.open_answers import verify_answer
from potentia.tasks.free_text import FREE_TEXT_METRICS, grade_free_text
from potentia.tasks.grading import choose_answer
from potentia.tasks.kinds import (
    find_label,
    find_right_choices,
    list_asked_fields,
    make_unanswered_documents,
)
from potentia.tasks.linear_classifier import LinearTextClassifier
from potentia.tasks.loading import load, reading_data_once
from potentia.tasks.memory_rows import list_rows
from potentia.tasks.splits import Division, Split
from potentia.tasks.subtask import ChatTemplate, ModelAnswer, Prompt, Subtask, TaskDocument
from potentia.tasks.task import Task
from potentia.tasks.user_tasks import bad_rows_error, guess_columns
