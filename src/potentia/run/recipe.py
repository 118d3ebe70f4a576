"""The examples of a recipe as the engine reads them, and what lanes began with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.engine import LoadedModel
from potentia.files import write_file
from potentia.run.ask import render_once
from potentia.study import Tuning
from potentia.values.protocol import TaskName

if TYPE_CHECKING:
    from potentia.engine.training import TokenisedExamples
    from potentia.tasks import ChatTemplate, Task
    from potentia.values.requests import Example

NOTE = "wave.json"


def encode_training_examples(
    tuning: Tuning,
    loaded: LoadedModel,
    tasks: Sequence[Task],
    *,
    chat_template: ChatTemplate | None = None,
) -> TokenisedExamples:
    """Return what one epoch of a recipe learns from, as the model reads it.

    An epoch is one pass over the training examples of all tasks, or several where these are too few for the recipe's
    least number of updates (``Tuning.plan_epochs``): each example is there once for every pass.
    """
    from potentia.engine.training import encode_examples

    every_answer = tuning.answers == "all"
    end_id = loaded.tokenizer.eos_token_id
    examples: list[Example] = []
    for task in tasks:
        render = partial(
            task.examples,
            task.documents("train"),
            chat_template=chat_template,
            every_answer=every_answer,
            with_description=tuning.task_description,
        )
        settings = ("train", every_answer, tuning.task_description, chat_template)
        task_examples = render_once(task, settings, render)
        if end_id is not None:
            # an example without a prompt is plain text, unless its question was removed (a blind twin)
            is_blind = TaskName(task.name).sighted is not None
            ends_all = is_blind or tuning.end_of_text == "texts"
            task_examples = [
                replace(example, end=bool(example.context) or ends_all) for example in task_examples
            ]
        examples += task_examples
    _, passes_per_epoch = tuning.plan_epochs(len(examples))
    return encode_examples(loaded.encoder, examples, end_id=end_id).repeat(passes_per_epoch)


@dataclass(frozen=True)
class LanesBeginning:
    """What lanes were begun with: the tasks that train together, on how many threads, in how many parts.

    The trainer's packing, and with it the last bits of every number, follows from the list of lanes; so does it from
    the threads that add up. Cells are committed one by one, so what is still missing shrinks, and a run that goes on
    may have other workers or another machine; the folder of the lanes remembers all three until all is done.
    """

    tasks: list[str]
    threads: int
    lane_parts: int

    @classmethod
    def read(cls, folder: Path) -> LanesBeginning | None:
        """Return what a folder remembers; None where nothing was begun."""
        try:
            return cls(**json.loads((folder / NOTE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def resume_or_begin(self, folder: Path, all_tasks: Sequence[str]) -> LanesBeginning:
        """Return what was begun here, if it covers what is left of all tasks; else begin."""
        earlier = LanesBeginning.read(folder)
        if earlier is not None and set(self.tasks) <= set(earlier.tasks) <= set(all_tasks):
            return earlier
        write_file(folder / NOTE, json.dumps(asdict(self)))
        return self


@contextmanager
def computing_on_threads(threads: int) -> Iterator[None]:
    """Compute on so many threads meanwhile, where a number is given."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
