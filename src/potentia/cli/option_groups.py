"""Options that several commands share, as base classes of the commands' own options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import potentia
from potentia.cli.output import print_notes
from potentia.cli.registered import declared_option
from potentia.errors import InputError
from potentia.papers import StabilityOptions, TestTaskOptions

DEFAULT_STORE = "potentia.db"

# Types of options that mean the same in several commands.
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE", help="Stores, score tables or lm-eval results; several are joined."
    ),
]
StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="The store: a file or a database URL.")
]
OptionalText = str | None
OptionalTexts = list[str] | None
History = Annotated[
    OptionalTexts,
    typer.Option(help="Stores or score files of other models, to predict unmeasured cells with."),
]
Resamples = Annotated[int | None, typer.Option(min=20, help="Bootstrap resamples; else 1,000.")]
Baseline = Annotated[OptionalText, declared_option(StabilityOptions, "baseline")]
BaseModel = Annotated[
    OptionalText, typer.Option(help="Where the base model is now, if not where it was.")
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code", help="Let your own task files run code (!function, fetched metrics)."
    ),
]
UncheckedBase = Annotated[
    bool,
    typer.Option(
        "--unchecked-base",
        help="Take the base for the right one although the adapter does not name its content.",
    ),
]
Workers = Annotated[
    int, typer.Option(min=0, help="Rows at once; 0 fits them to the GPUs; one on a CPU.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
StudyNames = Annotated[
    OptionalTexts,
    typer.Option(help="Studies of the store, by name or key, or all; else the one opened last."),
]
ReadProtocols = Annotated[
    OptionalTexts, typer.Option("--protocols", "--protocol", help="Only these protocols.")
]
ReadTasks = Annotated[
    OptionalTexts,
    typer.Option("--tasks", "--task", help="Only these tasks, in all their forms."),
]
ColumnMap = Annotated[
    OptionalTexts,
    typer.Option(
        "--map",
        metavar="FIELD=COLUMN",
        help="Say which column of a table is what, as score=Accuracy.",
    ),
]
DataColumns = Annotated[
    OptionalTexts,
    typer.Option(
        "--map",
        metavar="FIELD=COLUMN",
        help="Say which column of your data is what: text=Body label=Queue, or prompt=Question completion=Answer.",
    ),
]
ModelFactsFile = Annotated[
    Path | None,
    typer.Option(help="A CSV of facts on models, which adds to the known ones or replaces them."),
]
DataFolder = Annotated[
    Path | None, typer.Option(help="Folder of datasets: DATASET/CONFIG/SPLIT.parquet")
]
Device = Annotated[OptionalText, typer.Option(help="auto, cpu, cuda, cuda:1, spread …")]
DataType = Annotated[OptionalText, typer.Option(help="auto, float32, bfloat16, float16.")]
DropBadRows = Annotated[
    bool | None,
    typer.Option("--drop-bad-rows", help="Leave out rows of your files that cannot be used."),
]
ModelNames = Annotated[
    OptionalTexts, typer.Option("--models", "--model", help="Hub names or folders.")
]
TaskNames = Annotated[
    OptionalTexts,
    typer.Option("--tasks", "--task", help="Harness tasks, name:form, or files."),
]
ProtocolNames = Annotated[
    OptionalTexts,
    typer.Option(
        "--protocols", "--protocol", help="direct, few_shot:K, train_before_test, adjust."
    ),
]
Epochs = Annotated[int | None, typer.Option(help="Epochs of fine-tuning.")]
LearningRates = Annotated[list[float] | None, typer.Option(help="The grid of learning rates.")]
TrainCap = Annotated[int | None, typer.Option(help="Use at most this many training documents.")]
ValidationCap = Annotated[
    int | None, typer.Option(help="Use at most this many validation documents.")
]
TestCap = Annotated[int | None, typer.Option(help="Use at most this many test documents.")]


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    """Whether a command prints JSON."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How the columns of a score table are read."""

    metric: Annotated[
        OptionalText,
        typer.Option(
            help="The metric of the scores, such as acc or brier_score; else each task's own."
        ),
    ] = None
    columns: ColumnMap = None
    lower: Annotated[
        OptionalTexts, typer.Option(metavar="COLUMN", help="Columns that are better when lower.")
    ] = None
    scale: Annotated[
        OptionalTexts,
        typer.Option(
            metavar="COLUMN=SCALE",
            help="The scale of a column: share, percent, range or unbounded.",
        ),
    ] = None
    kind: Annotated[
        OptionalTexts,
        typer.Option(metavar="COLUMN=KIND", help="What a column is of: task, or text."),
    ] = None

    def table_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``potentia.evidence.read`` that say how a table is read."""
        return {
            "metric": self.metric,
            "columns": parse_pairs(self.columns, "--map"),
            "lower": self.lower or (),
            "scale": parse_pairs(self.scale, "--scale"),
            "kind": parse_pairs(self.kind, "--kind"),
        }


@dataclass(frozen=True, kw_only=True)
class StudyCellOptions:
    """Of which studies, protocols and tasks."""

    study: StudyNames = None
    protocols: ReadProtocols = None
    tasks: ReadTasks = None


@dataclass(frozen=True, kw_only=True)
class CellOptions(StudyCellOptions):
    """Of which studies, protocols, tasks and models."""

    models: Annotated[
        OptionalTexts, typer.Option("--models", "--model", help="Only these models.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class EvidenceOptions(StudyCellOptions):
    """Which scores an analysis reads from stores and files."""

    models: Annotated[OptionalTexts, typer.Option("--models", help="Only these models.")] = None
    facts: ModelFactsFile = None
    task_facts: Annotated[
        Path | None,
        typer.Option(help="A CSV of facts on tasks: task, category, train_size, chance, group."),
    ] = None
    task_groups: Annotated[
        OptionalText,
        typer.Option(
            metavar="FILE|none",
            help="Tasks that count as one: a CSV of task and group, or none; else by benchmark.",
        ),
    ] = None
    apart: Annotated[
        bool,
        typer.Option(
            "--apart",
            help="Show scores that cannot be compared group by group, instead of refusing them.",
        ),
    ] = False

    def read_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``potentia.evidence.read``."""
        return {
            "study": self.study,
            "protocols": self.protocols,
            "tasks": self.tasks,
            "models": self.models,
            "facts": self.facts,
            "task_facts": self.task_facts,
            "task_groups": self.task_groups,
            "apart": self.apart,
        }


@dataclass(frozen=True, kw_only=True)
class TableEvidenceOptions(TableOptions, EvidenceOptions):
    """Which scores an analysis reads, and how the columns of tables are read."""

    def read_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``potentia.evidence.read``."""
        return {**super().read_arguments(), **self.table_arguments()}


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """Where figures and tables of findings are written."""

    figures: Annotated[
        Path | None, typer.Option(help="Draw the figures, or write the tables, into this folder.")
    ] = None
    format: Annotated[
        OptionalTexts,
        typer.Option(help="Of figures pdf, png, svg; of tables csv, latex; several may be given."),
    ] = None
    no_titles: Annotated[
        bool, typer.Option("--no-titles", help="Draw the figures without title and caption.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What a study asks for, as its file would say it."""

    models: ModelNames = None
    checkpoints: Annotated[
        OptionalTexts,
        typer.Option(
            help="Folders of checkpoint-390, step1000 …, or hub names with such revisions."
        ),
    ] = None
    tasks: TaskNames = None
    protocols: ProtocolNames = None
    columns: DataColumns = None
    drop_bad_rows: DropBadRows = None
    name: Annotated[OptionalText, typer.Option(help="The study's name.")] = None
    data_dir: DataFolder = None
    store: Annotated[OptionalText, typer.Option(help="SQLite file or database URL.")] = None
    device: Device = None
    dtype: DataType = None
    seed: Annotated[int | None, typer.Option(help="Seed of splits, orders and examples.")] = None
    seeds: Annotated[int | None, typer.Option(help="Fine-tuning seeds per cell.")] = None
    learning_rates: LearningRates = None
    epochs: Epochs = None
    train: TrainCap = None
    validation: ValidationCap = None
    test: TestCap = None

    def study_settings(self) -> dict[str, Any]:
        """Return what the options say, in the form of a study file; None where an option was not given."""
        pretraining_runs = [describe_checkpoints(source) for source in self.checkpoints or ()]
        return {
            "models": [*(self.models or ()), *pretraining_runs] or None,
            "tasks": _map_task_columns(self.tasks, self.columns),
            "protocols": self.protocols,
            "drop_bad_rows": self.drop_bad_rows,
            "name": self.name,
            "data_dir": None if self.data_dir is None else str(self.data_dir),
            "store": self.store,
            "device": self.device,
            "dtype": self.dtype,
            "seed": self.seed,
            "seeds": self.seeds,
            "tuning": {"learning_rates": self.learning_rates, "epochs": self.epochs},
            "caps": {"train": self.train, "validation": self.validation, "test": self.test},
        }


@dataclass(frozen=True, kw_only=True)
class AdaptiveOptions:
    """Which cells to run under a budget."""

    budget: Annotated[
        OptionalText, typer.Option(help="Choose cells for 30min, 2gpu-hours, 10% …")
    ] = None
    confidence: Annotated[
        float | None, typer.Option(help="Choose cells until this agreement is expected.")
    ] = None
    top: Annotated[
        int | None, typer.Option(min=1, help="What matters is who is among the first so many.")
    ] = None
    history: History = None


@dataclass(frozen=True, kw_only=True)
class TaskTrainingOptions:
    """How models are divided, and which protocols are compared, in the analysis of training on the test task."""

    before: Annotated[OptionalText, declared_option(TestTaskOptions, "before")] = None
    after: Annotated[OptionalText, declared_option(TestTaskOptions, "after")] = None
    since: Annotated[OptionalText, declared_option(TestTaskOptions, "since")] = None
    column: Annotated[OptionalText, declared_option(TestTaskOptions, "column")] = None
    value: Annotated[OptionalText, declared_option(TestTaskOptions, "value")] = None
    exposed: Annotated[bool | None, declared_option(TestTaskOptions, "exposed")] = None

    @property
    def is_asked(self) -> bool:
        """Whether any of these options was given."""
        given = (self.before, self.after, self.since, self.column, self.value, self.exposed)
        return any(given)


# --- options as arguments ---------------------------------------------------------------------------------------------

_EXAMPLE_VALUE = {"--map": "COLUMN", "--scale": "percent", "--kind": "text"}


def parse_pairs(pairs: list[str] | None, option: str = "--map") -> dict[str, str]:
    """Read the values of ``--map FIELD=COLUMN``, ``--scale COLUMN=SCALE`` or ``--kind COLUMN=KIND``.

    A column's name may hold ``=`` too.
    """
    value_by_name = {}
    for pair in pairs or ():
        if option == "--map":
            name, _, value = pair.partition("=")
        else:
            name, _, value = pair.rpartition("=")
        if not name or not value:
            raise InputError(
                f"{option} takes two names with = between, not {name or value!r}",
                hint=f"such as {option} {name or value or 'score'}={_EXAMPLE_VALUE[option]}",
            )
        value_by_name[name.strip()] = value
    return value_by_name


def describe_data(data: str, column_pairs: list[str] | None) -> str | dict[str, Any]:
    """Describe the data as a study does: a file under its short name, a task of lm-eval by its own."""
    path = Path(data).expanduser()
    if not path.exists():
        return data
    name = path.stem if path.is_file() else path.resolve().name
    entry: dict[str, Any] = {"name": name, "file": data}
    if column_pairs:
        entry["columns"] = parse_pairs(column_pairs)
    return entry


def _map_task_columns(
    tasks: list[str] | None, column_pairs: list[str] | None
) -> list[str | dict[str, Any]] | None:
    """Describe the tasks as a study file does; the columns that --map names are those of the user's own files."""
    if tasks is None or not column_pairs:
        if column_pairs:
            raise InputError(
                "--map says which column of a file is what",
                hint="give the file with --tasks, or write `columns` into the study file",
            )
        return None if tasks is None else list(tasks)
    entries = [describe_data(task, column_pairs) for task in tasks]
    if all(isinstance(entry, str) for entry in entries):
        raise InputError(
            "--map is for your own files, and --tasks names none",
            hint="give a csv, jsonl or parquet file",
        )
    return entries


def open_evidence(*sources: str, notes: bool = True, **read_arguments: Any) -> potentia.Evidence:
    """Read scores, and print what a reader must know of them."""
    evidence = potentia.evidence.read(*sources, **read_arguments)
    if notes:
        print_notes(evidence)
    return evidence


def read_history(history: list[str] | None) -> potentia.Evidence | None:
    """Read what ``--history`` names: scores of other models."""
    if not history:
        return None
    return potentia.evidence.read(*history)


def describe_checkpoints(source: str) -> dict[str, str]:
    """Describe a pretraining run, as a study file would, by the folder or repository of its checkpoints."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        name = folder.resolve().name
    else:
        name = source.rpartition("/")[2]
    return {"name": name, "path": source, "checkpoints": source}
