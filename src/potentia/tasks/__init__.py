"""Benchmarks: the bridge to lm-eval, users' own files, splits, prompt forms, and the overlap check."""

from __future__ import annotations

from potentia.tasks.contamination import Overlap, overlap
from potentia.tasks.leaf import Answer, ChatTemplate
from potentia.tasks.loading import load
from potentia.tasks.splits import Caps, Part, Split, SplitPlan
from potentia.tasks.task import Doc, Prompt, Task

__all__ = [
    "Answer",
    "Caps",
    "ChatTemplate",
    "Doc",
    "Overlap",
    "Part",
    "Prompt",
    "Split",
    "SplitPlan",
    "Task",
    "load",
    "overlap",
]
