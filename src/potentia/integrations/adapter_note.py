"""The note of an exported adapter, read with types: its base, how its task is asked, what it scored.

A note comes with an adapter from anyone, so it is data: every value has a type and a bound, and what it says about
the task is a few keys of a definition whose templates are rendered in the process with limits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from potentia.errors import InputError
from potentia.files import ADAPTER_NOTE, describe_invalid, read_json_object
from potentia.tasks import UNTRUSTED

CLASSIFIER = "classifier.npz"  # of a folder that holds a TF-IDF classifier
EMBEDDING_CLASSIFIER = "embedding_classifier.npz"  # of one that holds a classifier on embeddings
LARGEST_NOTE = 64 * 2**20  # bytes: a task may have many labels, and its definition is in the note
LONGEST = 10_000  # of a list or table in a note

Text = Annotated[str, Field(max_length=1_000_000)]
Texts = Annotated[list[Text], Field(max_length=LONGEST)]


class _Noted(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class NotedModel(_Noted):
    """The base of an adapter as the run loaded it."""

    source: Text
    revision: Text | None = None
    gguf_file: Text | None = None
    dtype: Text | None = None
    quantise: Literal["8bit", "4bit"] | None = None
    fingerprint: Text | None = None
    before: Texts = []  # adapters that are merged before this one


class NotedBase(_Noted):
    """What an adapter was trained on: the content of its base."""

    fingerprint: Text | None = None
    source: Text | None = None


class NotedDefinition(_Noted):
    """How a task of one's own data is asked; metrics and functions are not taken from a note."""

    output_type: Literal["multiple_choice", "generate_until"]
    doc_to_text: Text
    doc_to_choice: Text | Texts | None = None
    doc_to_target: Text | int | None = None
    target_delimiter: Text | None = None
    generation_kwargs: dict[str, Any] | None = Field(default=None, max_length=100)
    labels: dict[Text, Text] | None = Field(default=None, max_length=LONGEST)


class NotedTask(_Noted):
    """The task that an adapter was tuned on: how it is asked, and the user's column of each field."""

    config: NotedDefinition
    columns: dict[Text, Text | Texts] | None = None


class NotedSelection(_Noted):
    """How the adapter was chosen; ``style`` says whether the chat template was used."""

    style: Text | None = None


class AdapterNote(_Noted):
    """What an exported adapter says of itself."""

    model: NotedModel | None = None  # None for a TF-IDF classifier
    base: NotedBase | None = None
    task: Text | None = None
    metric: Text | None = None
    score: float | None = None
    selection: NotedSelection | None = None
    asked: dict[str, Any] | None = None
    temperature: float = Field(default=1.0, gt=0.0, le=1000.0)  # divides log-probabilities
    threshold: float | None = None  # of the probability, below which a person should look
    encoder: bool = False  # whether the folder holds an encoder with a classification head

    @property
    def is_asked_in_chat(self) -> bool:
        """Whether the adapter was tuned and tested in the model's chat form."""
        return self.selection is not None and self.selection.style == "chat"

    @property
    def base_fingerprint(self) -> str | None:
        """The content of the base that the adapter was trained on, where the note says so."""
        return self.base.fingerprint if self.base is not None else None


_METRICS = {"multiple_choice": "acc", "generate_until": "exact_match"}  # by what is asked


def read_note(folder: Path) -> AdapterNote:
    """Read what an exported adapter says of itself."""
    note_file = folder / ADAPTER_NOTE
    if not note_file.exists():
        raise InputError(f"{folder} has no {ADAPTER_NOTE}", hint=_suggest_folder(folder))
    content = read_json_object(note_file, LARGEST_NOTE)
    if not isinstance(content.get("model"), dict) and not (folder / CLASSIFIER).is_file():
        raise InputError(
            "it does not say which model it goes on", where=str(note_file), hint="export it again"
        )
    try:
        return AdapterNote.model_validate(content)
    except ValidationError as error:
        raise InputError(
            describe_invalid(error), where=str(note_file), hint="export it again"
        ) from None


def _suggest_folder(folder: Path) -> str:
    """Say which folder to give instead of one without a note."""
    inner_folders = [note.parent for note in sorted(folder.glob(f"*/{ADAPTER_NOTE}"))]
    if inner_folders:
        return f"give one of its folders: {', '.join(map(str, inner_folders))}"
    if folder.is_file():
        return "the folder comes first, then the file: potentia predict selected/adapter FILE"
    return "give the folder that potentia select or potentia adapters export wrote"


def read_asked_task(adapter_note: AdapterNote, source: str) -> NotedTask:
    """Return how the task of a note is asked; refuse one that rows of a file cannot ask."""
    try:
        return NotedTask.model_validate(adapter_note.asked or {})
    except ValidationError as error:
        raise InputError(
            f"{adapter_note.task} cannot be asked with rows of a file ({describe_invalid(error)})",
            where=source,
            hint="predict takes adapters tuned on your own labelled texts, questions or prompts",
        ) from None


def make_definition(adapter_note: AdapterNote, task: NotedTask) -> dict[str, Any]:
    """Return the definition that asks the task; its templates are a stranger's, and its metric plays no part."""
    definition = task.config.model_dump(exclude_none=True)
    metric = _METRICS[task.config.output_type]
    return {
        **definition,
        "task": str(adapter_note.task),
        "test_split": "test",
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}],
        UNTRUSTED: True,
    }
