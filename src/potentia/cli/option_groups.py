"""Options that several commands share, as base classes of the commands' own options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import potentia
from potentia.cli.output import (
    FigureTarget,
    Verbosity,
    print_notes,
    read_figure_targets,
    set_verbosity,
)
from potentia.errors import InputError

DEFAULT_STORE = "potentia.db"
EVERY_COMMAND = "Every command"  # the panel of the options that all commands have

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
    typer.Option(
        metavar="SOURCE", help="Scores of other models, to predict unmeasured results with."
    ),
]
BaseModel = Annotated[
    OptionalText,
    typer.Option(metavar="MODEL", help="Where the base model is now, if not where it was."),
]
Allow = Annotated[
    OptionalTexts,
    typer.Option(
        metavar="WHAT",
        help="code (of your task files), pickle (*.bin weights), missing-weights (filled at random).",
    ),
]
Workers = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Models at once; 0 fits them to the GPUs; one on a CPU."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
StudyNames = Annotated[
    OptionalTexts,
    typer.Option(
        metavar="NAME",
        help="Studies of the store: names, beginnings of keys, or all; by default the latest.",
    ),
]
ReadProtocols = Annotated[
    OptionalTexts,
    typer.Option(
        "--protocols",
        "--protocol",
        metavar="NAME",
        help="Only these: direct (before fine-tuning), few_shot:K, train_before_test …",
    ),
]
ReadTasks = Annotated[
    OptionalTexts,
    typer.Option("--tasks", "--task", metavar="NAME", help="Only these tasks, in all their forms."),
]
ReadModels = Annotated[
    OptionalTexts, typer.Option("--models", "--model", metavar="NAME", help="Only these models.")
]
ColumnFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A YAML file that says what the columns of a table are: metric, scale, direction.",
    ),
]
ColumnMap = Annotated[
    OptionalTexts,
    typer.Option(
        "--map",
        metavar="FIELD=COLUMN",
        help="Which column of your data is what: text=Body label=Queue, prompt=Question completion=Answer.",
    ),
]
PriceOption = Annotated[
    OptionalText,
    typer.Option(
        "--price", metavar="PRICE", help="Price of an hour of this machine: 3.5/h or 3.5 EUR/h."
    ),
]
ModelFactsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A CSV of facts on models: family, parameters, tokens …"),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Folder of datasets: DATASET/CONFIG/SPLIT.parquet"),
]
Device = Annotated[
    OptionalText, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, spread …")
]
DropBadRows = Annotated[
    bool | None,
    typer.Option("--drop-bad-rows", help="Leave out rows of your files that cannot be used."),
]
ModelNames = Annotated[
    OptionalTexts,
    typer.Option("--models", "--model", metavar="MODEL", help="Hub names or folders."),
]
TaskNames = Annotated[
    OptionalTexts,
    typer.Option(
        "--tasks", "--task", metavar="TASK", help="lm-eval tasks, name:form, or your own files."
    ),
]
ProtocolNames = Annotated[
    OptionalTexts,
    typer.Option(
        "--protocols",
        "--protocol",
        metavar="NAME",
        help="direct (before fine-tuning), few_shot:K, train_before_test (after it), adjust.",
    ),
]
StudyFields = Annotated[
    OptionalTexts,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Any field of the study file, as tuning.epochs=3 caps.train=400 seed=1.",
    ),
]
Figures = Annotated[
    OptionalTexts,
    typer.Option(
        metavar="FOLDER[.pdf|.svg|.png|.csv|.tex]",
        help="Draw the figures into this folder, or write the tables; .pdf is without titles.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What every command takes: JSON for scripts, fewer lines, more lines."""

    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.", rich_help_panel=EVERY_COMMAND)
    ] = False
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Print the answer alone: no progress, no notes.",
            rich_help_panel=EVERY_COMMAND,
        ),
    ] = False
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Print where the time went, too.",
            rich_help_panel=EVERY_COMMAND,
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise InputError("--quiet and --verbose exclude each other", hint="give one of them")
        if self.quiet:
            set_verbosity(Verbosity.QUIET)
        elif self.verbose:
            set_verbosity(Verbosity.VERBOSE)
        else:
            set_verbosity(Verbosity.NORMAL)


@dataclass(frozen=True, kw_only=True)
class StudyCellOptions(OutputOptions):
    """Of which studies, protocols and tasks."""

    study: StudyNames = None
    protocols: ReadProtocols = None
    tasks: ReadTasks = None


@dataclass(frozen=True, kw_only=True)
class CellOptions(StudyCellOptions):
    """Of which studies, protocols, tasks and models."""

    models: ReadModels = None


@dataclass(frozen=True, kw_only=True)
class EvidenceOptions(OutputOptions):
    """Which scores an analysis reads from stores and files.

    A command leaves out what it cannot use; what it has is passed on to ``potentia.evidence.read``.
    """

    sources: Sources = (DEFAULT_STORE,)  # type: ignore[assignment]  # typer gives a list
    study: StudyNames = None

    def read_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``potentia.evidence.read`` that this command has."""
        argument_names = ("study", "protocols", "tasks", "models", "facts", "columns")
        return {
            argument_name: getattr(self, argument_name)
            for argument_name in argument_names
            if hasattr(self, argument_name)
        }

    def check_arguments(self) -> None:
        """Refuse arguments that cannot be meant; a command with arguments of its own says which."""

    def figure_targets(self) -> list[FigureTarget]:
        """Return where figures go; nowhere where the command draws none."""
        return read_figure_targets(getattr(self, "figures", None))


@dataclass(frozen=True, kw_only=True)
class TableEvidenceOptions(EvidenceOptions):
    """Which scores an analysis of tables reads, too, and where its figures go."""

    protocols: ReadProtocols = None
    facts: ModelFactsFile = None
    columns: ColumnFile = None
    figures: Figures = None


@dataclass(frozen=True, kw_only=True)
class StudyOptions(OutputOptions):
    """What a study asks for, as its file would say it."""

    models: ModelNames = None
    checkpoints: Annotated[
        OptionalTexts,
        typer.Option(
            metavar="FOLDER",
            help="Folders of checkpoint-390, step1000 …, or hub names with such revisions.",
        ),
    ] = None
    tasks: TaskNames = None
    protocols: ProtocolNames = None
    columns: ColumnMap = None
    folds: Annotated[
        int | None,
        typer.Option(
            min=2, max=20, metavar="N", help="Test every example of your files once, in N folds."
        ),
    ] = None
    drop_bad_rows: DropBadRows = None
    data_dir: DataFolder = None
    store: Annotated[
        OptionalText, typer.Option(metavar="STORE", help="SQLite file or database URL.")
    ] = None
    device: Device = None
    fields: StudyFields = None

    def study_settings(self) -> dict[str, Any]:
        """Return what the options say, in the form of a study file; None where an option was not given."""
        pretraining_runs = [describe_checkpoints(source) for source in self.checkpoints or ()]
        settings = {
            "models": [*(self.models or ()), *pretraining_runs] or None,
            "tasks": self.task_entries(),
            "protocols": self.protocols,
            "drop_bad_rows": self.drop_bad_rows,
            "data_dir": None if self.data_dir is None else str(self.data_dir),
            "store": self.store,
            "device": self.device,
        }
        return merge_settings(settings, parse_fields(self.fields))

    def task_entries(self) -> list[Any] | None:
        """Return the tasks as a study names them; files of one's own with their columns and folds."""
        if self.tasks is None:
            self._check_files([])
            return None
        files = [task for task in self.tasks if Path(task).expanduser().exists()]
        self._check_files(files)
        entries: list[Any] = []
        for task in self.tasks:
            if task in files and (self.columns or self.folds):
                entries.append(describe_file(task, self.columns, self.folds))
            else:
                entries.append(task)
        return entries

    def _check_files(self, files: list[str]) -> None:
        """Refuse options about files where no file is given."""
        for option, option_value in (("--map", self.columns), ("--folds", self.folds)):
            if option_value and not files:
                raise InputError(
                    f"{option} is for your own files, and --tasks names none",
                    hint="give a csv, jsonl or parquet file, or write it into the study file",
                )


# --- options as arguments ---------------------------------------------------------------------------------------------


def parse_pairs(pairs: list[str] | None, option: str = "--map") -> dict[str, str]:
    """Read the values of ``--map FIELD=COLUMN``; a column's name may hold ``=`` too."""
    value_by_name = {}
    for pair in pairs or ():
        key, _, value = pair.partition("=")
        if not key or not value:
            raise InputError(
                f"{option} takes two names with = between, not {key or value!r}",
                hint=f"such as {option} {key or value or 'score'}=COLUMN",
            )
        value_by_name[key.strip()] = value
    return value_by_name


def parse_fields(pairs: list[str] | None) -> dict[str, Any]:
    """Read the values of ``--set``: ``tuning.epochs=3`` becomes ``{"tuning": {"epochs": 3}}``."""
    import yaml

    settings: dict[str, Any] = {}
    for pair in pairs or ():
        setting_path, separator, value_text = pair.partition("=")
        field_path = setting_path.strip().split(".")
        if not separator or not all(field_path):
            raise InputError(
                f"--set takes FIELD=VALUE, not {pair!r}", hint="such as --set tuning.epochs=3"
            )
        try:
            value = yaml.safe_load(value_text)
        except yaml.YAMLError:
            raise InputError(
                f"the value of {setting_path} cannot be read: {value_text!r}",
                hint="write it as in a study file, as tuning.learning_rates=[1e-4,3e-4]",
            ) from None
        record = settings
        for field_name in field_path[:-1]:
            record = record.setdefault(field_name, {})
            if not isinstance(record, dict):
                raise InputError(
                    f"--set gives {field_name} a value and fields", hint="give one of them"
                )
        record[field_path[-1]] = value
    return settings


def merge_settings(settings: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the overrides in them, record by record."""
    merged = dict(settings)
    for setting, value in overrides.items():
        earlier_value = merged.get(setting)
        if isinstance(value, dict) and isinstance(earlier_value, dict):
            merged[setting] = merge_settings(earlier_value, value)
        else:
            merged[setting] = value
    return merged


def describe_file(
    file_name: str, column_pairs: list[str] | None, folds: int | None = None
) -> dict[str, Any]:
    """Describe data of one's own as a study does: its short name, the file, its columns, its folds."""
    file_path = Path(file_name).expanduser()
    study_name = file_path.stem if file_path.is_file() else file_path.resolve().name
    entry: dict[str, Any] = {"name": study_name, "file": file_name}
    if column_pairs:
        entry["columns"] = parse_pairs(column_pairs)
    if folds is not None:
        entry["folds"] = folds
    return entry


CONSENTS = {"code": "CODE", "pickle": "PICKLE", "missing-weights": "MISSING_WEIGHTS"}


def give_consent(consents: list[str] | None) -> None:
    """Allow what the user allowed with ``--allow``."""
    for consent in consents or ():
        if consent not in CONSENTS:
            raise InputError(
                f"nothing to allow is called {consent!r}", hint=f"one of: {', '.join(CONSENTS)}"
            )
        potentia.files.allow(getattr(potentia.files, CONSENTS[consent]))


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
        run_name = folder.resolve().name
    else:
        run_name = source.rpartition("/")[2]
    return {"name": run_name, "path": source, "checkpoints": source}
