"""Names of earlier versions: commands and options that moved, each with the name that it has now."""

from __future__ import annotations

from typing import Any

from potentia.errors import InputError

NEW_COMMANDS = {
    ("init",): "potentia run --save study.yaml --models … --tasks …",
    ("plan",): "potentia run --dry-run",
    ("zoo",): "potentia demo --zoo FOLDER",
    ("import",): "potentia export SCORES -o potentia.db",
    ("track",): "potentia export potentia.db --to tensorboard",
    ("reproduce",): "potentia papers reproduce",
    ("models",): "potentia doctor MODEL (facts of models: potentia.facts.models() in Python)",
    ("analyze", "few-tasks"): "potentia analyze rankings --show few-tasks",
    ("analyze", "outlook"): "potentia analyze rankings --show outlook",
    ("analyze", "consistency"): "potentia analyze checkpoints",
    ("analyze", "ablation"): "potentia analyze checkpoints",
    ("analyze", "test-task"): "potentia papers test-task",
    ("analyze", "proxy"): "potentia papers proxy",
    ("analyze", "judge"): "potentia papers judge",
    ("analyze", "elicitation"): "potentia papers elicitation",
    ("store", "check"): "potentia status --check",
    ("adapters", "list"): "potentia status --adapters",
    ("adapters", "merge"): "potentia adapters export ADAPTER --merge -o FOLDER",
    ("adapters", "drop"): "potentia store discard --adapters",
    ("tasks", "show"): "potentia tasks NAME",
    ("tasks", "list"): "potentia tasks",
}
_COLUMNS = "--columns FILE, a YAML file with"
_FIGURES = "the suffix of --figures, as"
_PYTHON = "an argument in Python:"
NEW_OPTIONS = {
    "--metric": f"{_COLUMNS}  metric: NAME",
    "--lower": f"{_COLUMNS}  COLUMN: {{lower: true}}",
    "--scale": f"{_COLUMNS}  COLUMN: {{scale: percent}}",
    "--kind": f"{_COLUMNS}  COLUMN: {{kind: text}}",
    "--map": f"{_COLUMNS}  COLUMN: {{is: score}}",
    "--task-facts": f"{_COLUMNS}  task_facts: FILE.csv",
    "--apart": f"{_COLUMNS}  apart: true",
    "--subtasks": f"{_COLUMNS}  subtasks: true",
    "--short-names": f"{_COLUMNS}  short_names: true",
    "--format": f"{_FIGURES} --figures figures.pdf; of exports: --to",
    "--no-titles": f"{_FIGURES} --figures figures.pdf, which has no titles",
    "--name": "--set name=NAME; of imported scores:  study: NAME  in --columns FILE",
    "--dtype": "--set dtype=bfloat16",
    "--seed": "--set seed=1",
    "--seeds": "--set seeds=3",
    "--price": "prices: {any: 3.5 EUR/h}  in ~/.config/potentia/config.yaml; of one run: --set price='3.5 EUR/h'",
    "--epochs": "--set tuning.epochs=3",
    "--learning-rates": "--set tuning.learning_rates=[1e-4,3e-4]",
    "--train": "--set caps.train=400",
    "--validation": "--set caps.validation=100",
    "--test": "--set caps.test=400",
    "--quick": "the default of potentia demo; --full runs all of it",
    "--task-groups": f"{_COLUMNS}  task_groups: FILE.csv",
    "--recipe": "--study FILE",
    "--threads": f"{_PYTHON} potentia.run_study(study, threads=N)",
    "--split": f"{_PYTHON} potentia.run_study(study, split=True)",
    "--no-split": f"{_PYTHON} potentia.run_study(study, split=False)",
    "--top": f"{_PYTHON} potentia.run.AdaptiveRun(plan, top=N)",
    "--adaptive": "--budget or --confidence",
    "--allow-pickle": "--allow pickle",
    "--allow-missing-weights": "--allow missing-weights",
    "--allow-code": "--allow code",
    "--exclude-flagged": f"{_PYTHON} potentia.RankingOptions(exclude_flagged=True)",
    "--gaps": f"{_PYTHON} potentia.RankingOptions(gaps=…)",
    "--align": f"{_PYTHON} potentia.RankingOptions(align=…)",
    "--simultaneous": f"{_PYTHON} potentia.RankingOptions(simultaneous=True)",
    "--resample": f"{_PYTHON} potentia.RankingOptions(resample=…)",
    "--resamples": f"{_PYTHON} potentia.RankingOptions(resamples=…)",
    "--level": f"{_PYTHON} potentia.RankingOptions(level=…)",
    "--target": "potentia papers proxy --target",
    "--since": "potentia papers test-task --group 2023-11",
    "--column": "potentia papers test-task --group COLUMN=VALUE",
    "--exposed": "potentia papers test-task --group exposed",
    "--before": "potentia papers test-task --protocols BEFORE AFTER",
    "--after": "potentia papers test-task --protocols BEFORE AFTER",
    "--items": f"{_PYTHON} potentia.report(source, items=N)",
    "--unchecked-base": f"{_PYTHON} potentia.predict(adapter, rows, unchecked_base=True)",
    "--allow": "POTENTIA_ALLOW_CODE=1 in the environment",
    "--drop-bad-rows": "not needed here: rows that cannot be used are left out and counted",
    "--history": f"{_PYTHON} potentia.analysis.completion.find_outlook(evidence, history=…)",
    "--key-env": "the key in the environment variable POTENTIA_JUDGE_KEY",
    "--token": "the token in the environment variable POTENTIA_TOKEN",
    "--data-dir": "data_dir in the study file that the store was made with",
    "--instruct-by": f"{_PYTHON} potentia.find_consistency(source, instruct_by=…)",
    "--unit": f"{_PYTHON} potentia.find_stability(source, unit=…)",
    "--power": f"{_PYTHON} potentia.find_stability(source, power=…)",
    "--family": "potentia.facts.models() in Python",
}


def refuse_old_names(root_group: Any, arguments: list[str]) -> None:
    """Refuse a command or an option of an earlier version with one line that says the new name."""
    command_words = arguments[: _count_leading_words(arguments)]
    for length in (2, 1):
        new_name = NEW_COMMANDS.get(tuple(command_words[:length]))
        if new_name is not None and not _has_command(root_group, command_words[:length]):
            old_name = " ".join(["potentia", *command_words[:length]])
            raise InputError(f"`{old_name}` is now: {new_name}")
    command = root_group
    for position, name in enumerate(arguments):
        if name not in getattr(command, "commands", {}):
            _refuse_old_options(command, arguments[position:])
            return
        command = command.commands[name]


def _refuse_old_options(command: Any, arguments: list[str]) -> None:
    known_flags: set[str] = set()
    for parameter in command.params:
        known_flags.update(parameter.opts)
    for argument in arguments:
        if argument == "--":
            return
        flag = argument.partition("=")[0]
        if flag in NEW_OPTIONS and flag not in known_flags:
            raise InputError(f"{flag} is now: {NEW_OPTIONS[flag]}")


def _count_leading_words(arguments: list[str]) -> int:
    for word_count, argument in enumerate(arguments):
        if argument.startswith("-"):
            return word_count
    return len(arguments)


def _has_command(root_group: Any, command_words: list[str]) -> bool:
    command = root_group
    for command_word in command_words:
        command = getattr(command, "commands", {}).get(command_word)
        if command is None:
            return False
    return True
