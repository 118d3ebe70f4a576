"""Benchmarks: the bridge to lm-eval, users' own files, splits, prompt forms, and the overlap check."""

from potentia.study import Caps
from potentia.tasks.checks import Overlap, overlap
from potentia.tasks.data import LIMITED, OwnData, Record, file_records, from_records, quiet
from potentia.tasks.definitions import read_stock_task, task_index
from potentia.tasks.forms.open_answers import verified
from potentia.tasks.grading import best
from potentia.tasks.kinds import unanswered
from potentia.tasks.leaf import Answer, ChatTemplate, Doc, Leaf, Prompt
from potentia.tasks.loading import bad_rows, guess_columns, load, map_columns, reading_once
from potentia.tasks.task import Division, Part, Split, SplitPlan, Task
