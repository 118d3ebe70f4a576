"""``run --save``: a study file with comments, of what the flags say; what is not given is asked for on a terminal."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import potentia
from potentia.cli.option_groups import parse_pairs
from potentia.cli.output import print_answer
from potentia.errors import InputError, without_password

if TYPE_CHECKING:
    from potentia.cli.option_groups import StudyOptions

DATA_SUFFIXES = (".csv", ".json", ".jsonl", ".parquet", ".txt", ".tsv")
SMALL_DATASET = 1_000  # examples of one's own; a tenth of fewer is a small test
_WRITTEN_FIRST = ("name", "models", "tasks", "protocols")


def write_study_file(study_file: Path, options: StudyOptions) -> None:
    """Write what the options say as a study file, and say how to go on."""
    if study_file.exists():
        raise InputError(f"{study_file} exists already", hint="give another name")
    settings = options.study_settings()
    settings["models"] = settings["models"] or _ask_for_names(
        "Models (hub names or folders, separated by spaces)", "--models"
    )
    tasks = options.tasks or _ask_for_names(
        "Tasks of lm-eval, or files of your own, separated by spaces", "--tasks"
    )
    settings["tasks"] = [_describe_task(task, options) for task in tasks]
    settings["protocols"] = settings["protocols"] or ["direct", "train_before_test"]
    settings.setdefault("name", study_file.stem)
    study_text = render_study_file(study_file, settings)
    potentia.files.write_file(study_file, without_password(study_text))
    quoted_file = shlex.quote(str(study_file))
    print_answer(
        options.as_json,
        {"study": str(study_file)},
        f"{study_file} is written. See what it will cost, then run it:",
        f"  potentia run {quoted_file} --dry-run",
        f"  potentia run {quoted_file}",
    )


def render_study_file(study_file: Path, settings: dict[str, Any]) -> str:
    """Return the text of a study file with comments, after checking that it can be read."""
    stated = {setting: value for setting, value in settings.items() if value not in (None, {}, [])}
    potentia.study.make_study(stated)
    comments = {
        "caps": "# caps: {train: 50000, validation: 1000, test: 10000}",
        "tuning": "# tuning: {recipe: fair}   # the same for all, its rate searched; or {recipe: paper}",
        "selection": "# selection: validation   # or tuned, or paper",
        "store": "# store: potentia.db",
    }
    setting_lines = []
    for setting, value in stated.items():
        if setting not in _WRITTEN_FIRST:
            setting_lines.append(f"{setting}: {_to_yaml(value)}")
    setting_lines += [comment for setting, comment in comments.items() if setting not in stated]
    lines = [
        f"# potentia run {shlex.quote(str(study_file))}",
        "#",
        "# All fields of a study file and their defaults: docs/study.md. What is not written has its default.",
        f"name: {_to_yaml(stated['name'])}",
        "models:            # hub names, folders, GGUF files; with facts: {name: …, parameters: 135e6, tokens: 2e12}",
        *(f"  - {_to_yaml(model)}" for model in stated["models"]),
        "tasks:             # lm-eval tasks by name, the same in another form (arc_easy:cloze), or your own data",
        *(f"  - {_to_yaml(entry)}" for entry in stated["tasks"]),
        f"protocols: {_to_yaml(stated['protocols'])}   # direct, few_shot:5, train_before_test, adjust",
        *setting_lines,
    ]
    return "\n".join(lines) + "\n"


def _describe_task(task_name: str, options: StudyOptions) -> str | dict[str, Any]:
    """Return a task as a study file names it: data of one's own with its columns, any other by its name."""
    is_task_definition = task_name.endswith((".yaml", ".yml"))
    is_own_data = Path(task_name).expanduser().exists() and not is_task_definition
    is_dataset = task_name.count("/") == 1 and not Path(task_name).suffix
    is_missing_file = Path(task_name).suffix in DATA_SUFFIXES and not is_own_data
    if is_missing_file or not (is_own_data or is_dataset):
        if is_missing_file:
            raise InputError(
                f"there is no {task_name}",
                hint="give a file, a folder, a dataset of the hub as org/name, or a task of lm-eval",
            )
        return task_name
    entry = _describe_own_data(task_name)
    if options.columns:
        entry["columns"] = parse_pairs(options.columns)
    if options.folds is not None:
        entry.pop("ratios", None)
        entry["folds"] = options.folds
    return entry


def _describe_own_data(source: str) -> dict[str, Any]:
    """Describe data of one's own, as a study does: where it is, and which of its columns is what."""
    data_path = Path(source)
    if data_path.exists():
        own_data = potentia.tasks.UserData(files=(source,))
        entry: dict[str, Any] = {"name": own_data.task_name, "file": source}
    elif source.count("/") == 1 and not data_path.suffix:
        own_data = potentia.tasks.UserData(dataset=source)
        entry = {"name": own_data.task_name, "dataset": source}
    else:
        raise InputError(
            f"there is no {source}",
            hint="give a file, a folder, or a dataset of the hub as org/name",
        )
    columns = potentia.tasks.guess_columns(own_data)
    if columns:
        entry["columns"] = columns
    examples = own_data.count_documents_of_one_split() or SMALL_DATASET
    if examples < SMALL_DATASET:
        entry["ratios"] = [6, 1, 3]
    return entry


def _ask_for_names(question: str, flag: str) -> list[str]:
    """Ask on the terminal for names; where there is none, say which flag is missing."""
    if not sys.stdin.isatty():
        raise InputError(
            f"{flag} is missing", hint=f"give {flag}, or run this on a terminal to be asked"
        )
    answer: str = typer.prompt(question)
    return answer.split()


def _to_yaml(value: Any) -> str:
    import yaml

    yaml_text: str = yaml.safe_dump(
        value, default_flow_style=True, width=10_000, allow_unicode=True
    )
    return yaml_text.removesuffix("...\n").strip()
