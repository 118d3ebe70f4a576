"""Options in the words that several commands share, and how a command is made of them.

``READ`` is what is read, in the words of ``potentia.evidence.read``; ``OUT`` what comes out; ``STUDY`` what a study
asks for. A command is a function of what was asked, under ``@command`` with its options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer

from potentia.analysis.registration import OPTION, OptionDescription
from potentia.papers import StabilityOptions, TestTaskOptions


class Option(NamedTuple):
    """One option or argument: its type, with what typer knows of it, and what it is where nobody gives it."""

    kind: Any
    default: Any = None


def option(
    help: str, kind: Any = str | None, default: Any = None, *names: str, **limits: Any
) -> Option:
    """Describe an option; without a type it is one text, or nothing. ``default=...`` makes it required."""
    return Option(Annotated[kind, typer.Option(*names, help=help, **limits)], default)


def flag(name: str, help: str, default: bool | None = False) -> Option:
    """Describe a switch, such as ``--exposed`` or ``--pairs/--no-pairs``."""
    return option(help, bool | None, default, name)


def many(help: str, *names: str, kind: Any = str, default: Any = None, **limits: Any) -> Option:
    """Describe an option that takes several values."""
    return option(help, list[kind] | None, default, *names, **limits)


def path(help: str) -> Option:
    """Describe an option that takes a file."""
    return option(help, Path | None)


def output(help: str, default: Any = ..., kind: Any = Path) -> Option:
    """Describe where the result goes."""
    return option(help, kind, default, "--output", "-o")


def argument(help: str, metavar: str, kind: Any = str, default: Any = ...) -> Option:
    """Describe an argument; without a default it must be given."""
    return Option(Annotated[kind, typer.Argument(metavar=metavar, help=help)], default)


def command(
    group: typer.Typer, name: str, json: bool = True, /, **options: Option
) -> Callable[[Callable[[Any], None]], Any]:
    """Make a command of a function that takes a namespace of what was asked; its docstring is the help.

    Every command takes ``--json``, unless it has nothing to print.
    """
    options |= {"as_json": JSON} if json else {}

    def register(act: Callable[[Any], None]) -> Callable[[Any], None]:
        def made(**given: Any) -> None:
            act(SimpleNamespace(**given))

        made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    key, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.kind
                )
                for key, one in options.items()
            ]
        )
        made.__annotations__ = {key: one.kind for key, one in options.items()}
        made.__doc__ = act.__doc__
        group.command(name)(made)
        return act

    return register


STORE = "potentia.db"
SOURCES = argument(
    "Stores, score tables or lm-eval results; several are joined.", "SOURCE", list[str], (STORE,)
)
THE_STORE = argument("The store: a file or a database URL.", "STORE", str, STORE)
JSON = flag("--json", "Print JSON.")
YES = flag("--yes", "Do not ask.")
HISTORY = many("Stores or score files of other models, to predict unmeasured cells with.")
RESAMPLES = option("Bootstrap resamples; else 1,000.", int | None, None, min=20)
DRAWS = option("Bootstrap resamples, 0 for none; else 1,999.", int | None, None, min=0)
ALLOW_CODE = flag(
    "--allow-code",
    "Let your own task files run code (!function, fetched metrics), and tasks run what models write.",
)
BASE = option("Where the base model is now, if not where it was.")
UNCHECKED_BASE = flag(
    "--unchecked-base",
    "Take the base for the right one although the adapter does not name its content.",
)

READ = {
    "study": many("Studies of the store, by name or key, or all; else the one opened last."),
    "protocols": many("Only these protocols.", "--protocols", "--protocol"),
    "tasks": many("Only these tasks, in all their forms.", "--tasks", "--task"),
    "models": many("Only these models.", "--models"),
    "facts": path("A CSV of facts on models, which adds to the known ones or replaces them."),
    "task_facts": path("A CSV of facts on tasks: task, category, train_size, chance."),
    "columns": many(
        "Say which column of a table is what, as score=Accuracy.", "--map", metavar="FIELD=COLUMN"
    ),
    "lower": many("Columns that are better when lower.", default=(), metavar="COLUMN"),
    "scale": many(
        "The scale of a column: share, percent, range or unbounded.", metavar="COLUMN=SCALE"
    ),
    "kind": many("What a column is of: task, or text.", metavar="COLUMN=KIND"),
    "apart": flag(
        "--apart", "Show scores that cannot be compared group by group, instead of refusing them."
    ),
    "metric": option("The metric of the scores, such as acc or brier_score; else each task's own."),
}
TABLE = {
    name: READ[name] for name in ("metric", "columns", "lower", "scale", "kind")
}  # how a table is read
WHICH = {name: READ[name] for name in ("study", "protocols", "tasks")}  # of which cells
CELLS = {**WHICH, "models": many("Only these models.", "--models", "--model")}
KEPT = {name: CELLS[name] for name in ("study", "tasks", "models")}  # of which adapters
OUT = {
    "figures": path("Draw the figures, or write the tables, into this folder."),
    "format": many("Of figures pdf, png, svg; of tables csv, latex; several may be given."),
    "no_titles": flag("--no-titles", "Draw the figures without title and caption."),
}
STUDY = {
    "models": many("Hub names or folders.", "--models", "--model"),
    "checkpoints": many("Folders of checkpoint-390, step1000 …, or hub names with such revisions."),
    "tasks": many("Harness tasks, name:form, or files.", "--tasks", "--task"),
    "protocols": many(
        "direct, few_shot:K, train_before_test, adjust.", "--protocols", "--protocol"
    ),
    "drop_bad_rows": flag(
        "--drop-bad-rows", "Leave out rows of your files that cannot be used.", None
    ),
    "name": option("The study's name."),
    "data_dir": path("Folder of datasets: DATASET/CONFIG/SPLIT.parquet"),
    "store": option("SQLite file or database URL."),
    "device": option("auto, cpu, cuda, cuda:1, spread …"),
    "dtype": option("auto, float32, bfloat16, float16."),
    "seed": option("Seed of splits, orders and examples.", int | None),
    "seeds": option("Fine-tuning seeds per cell.", int | None),
    "learning_rates": many("The grid of learning rates.", kind=float),
    "epochs": option("Epochs of fine-tuning.", int | None),
    "train": option("Use at most this many training documents.", int | None),
    "validation": option("Use at most this many validation documents.", int | None),
    "test": option("Use at most this many test documents.", int | None),
}
WORKERS = option("Rows at once; 0 fits them to the GPUs; one on a CPU.", int, 0, min=0)
ADAPTIVE = {
    "budget": option("Choose cells for 30min, 2gpu-hours, 10% …"),
    "confidence": option("Choose cells until this agreement is expected.", float | None),
    "top": option("What matters is who is among the first so many.", int | None, None, min=1),
    "history": HISTORY,
}


def options_of_class(options_class: type) -> dict[str, Option]:
    """Return the options that the fields of a dataclass declare by ``command_option``, by the field's name."""
    types = get_type_hints(options_class)
    declared = {}
    for field in fields(options_class):
        description = field.metadata.get(OPTION)
        if description is not None:
            declared[field.name] = _option_of_field(field, types[field.name], description)
    return declared


def _option_of_field(field: Field[Any], kind: Any, description: OptionDescription) -> Option:
    """Describe one field to typer; None stands for an option that was not given."""
    limits = {"min": description.minimum, "max": description.maximum}
    given_limits = {name: limit for name, limit in limits.items() if limit is not None}
    alternatives = [part for part in get_args(kind) or (kind,) if part is not type(None)]
    default = None
    if get_origin(kind) is tuple:
        alternatives = [kind]
    for alternative in alternatives:
        if get_origin(alternative) is tuple:
            kind = list[get_args(alternative)[0]] | None  # type: ignore[misc]
            return option(description.help, kind, None, *description.flags, **given_limits)
    (value_kind,) = [part for part in alternatives if get_origin(part) is not Mapping][:1]
    if field.default is MISSING:
        return option(description.help, value_kind, ..., *description.flags, **given_limits)
    if description.shows_default:
        default = field.default
    if default is None or value_kind is bool:
        value_kind = value_kind | None
    return option(description.help, value_kind, default, *description.flags, **given_limits)


BASELINE = options_of_class(StabilityOptions)["baseline"]
_TEST_TASK_NAMES = ("before", "after", "since", "column", "value", "exposed")
TEST_TASK = {name: options_of_class(TestTaskOptions)[name] for name in _TEST_TASK_NAMES}


def filled(kind: type, asked: Any, **more: Any) -> Any:
    """Make the options of an analysis of what was asked; what was not asked keeps its default."""
    given = {one.name: getattr(asked, one.name, None) for one in fields(kind)} | more
    return kind(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if v is not None}
    )


def some(asked: Any, names: Any) -> dict[str, Any]:
    """Return what was asked by these names."""
    return {name: getattr(asked, name) for name in names}


def overrides(asked: Any, **more: Any) -> dict[str, Any]:
    """Return what the options of ``STUDY`` say, as a study file would; ``more`` wins."""
    given = dict.fromkeys(STUDY) | vars(asked) | more
    runs = [_series(where) for where in given["checkpoints"] or ()]
    plain = (
        "tasks",
        "protocols",
        "drop_bad_rows",
        "name",
        "store",
        "device",
        "dtype",
        "seed",
        "seeds",
    )
    return {
        **{name: given[name] for name in plain},
        "models": [*(given["models"] or ()), *runs] or None,
        "data_dir": str(given["data_dir"]) if given["data_dir"] else None,
        "tuning": {name: given[name] for name in ("learning_rates", "epochs")},
        "caps": {name: given[name] for name in ("train", "validation", "test")},
    }


def _series(where: str) -> dict[str, str]:
    """Describe a pretraining run by the folder or repository of its checkpoints."""
    place = Path(where).expanduser()
    name = place.resolve().name if place.is_dir() else where.rpartition("/")[2]
    return {"name": name, "path": where, "checkpoints": where}
