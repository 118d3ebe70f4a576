"""Benchmarks: the bridge to lm-eval, users' own files, splits, prompt forms, and the overlap check."""

from potentia.study import Caps
from potentia.tasks.contamination import Overlap, overlap
from potentia.tasks.data import Record, from_records, quiet
from potentia.tasks.forms.judge import verified
from potentia.tasks.harness import leaf_configs
from potentia.tasks.index import index as task_index
from potentia.tasks.kinds import unanswered
from potentia.tasks.leaf import Answer, ChatTemplate, Leaf
from potentia.tasks.loading import load, reading_once
from potentia.tasks.splits import Division, Part, Split, SplitPlan
from potentia.tasks.task import Doc, Prompt, Task
from potentia.tasks.userfiles import OwnData, bad_rows, file_records, guess_columns, map_columns
