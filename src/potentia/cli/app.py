"""The ``potentia`` command: assembles the command groups and turns errors into exit codes.

Exit codes: 0 all is well, 1 some cells failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import shlex
import signal
import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from potentia.cli.command import show_flags_plainly
from potentia.cli.old_names import refuse_old_names
from potentia.cli.output import error_console, print_error
from potentia.errors import (
    InputError,
    MissingExtraError,
    PotentiaError,
    first_line,
    without_password,
)
from potentia.extensions import ExtensionKind, load_extensions
from potentia.processes import let_threads_sleep

# What `--help` shows, in the order of use.
COMMAND_PANELS = {
    "Start": ("demo", "run", "select", "predict"),
    "Understand": ("report", "compare", "analyze", "serve"),
    "Results and models": ("status", "export", "adapters", "tasks", "doctor"),
    "More": ("papers", "store"),
}
# The panels of a long list of options; other options come first.
READ_PANEL = "What is read"
OPTION_PANELS = {
    "Your data": "map folds drop-bad-rows data-dir",
    "Budget": "dry-run budget confidence history",
    "Machine and settings": "device workers executor store set allow save watch",
    READ_PANEL: "study protocols tasks models facts columns",
}
MAX_OPTIONS_WITHOUT_PANELS = 15


class OrderedGroup(TyperGroup):
    """Commands in the order of use, each in its panel; the options of a long command in panels too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; a name of an earlier version is answered with the new one."""
        if ctx.parent is None:
            refuse_old_names(self, args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, flags as flags."""
        return show_flags_plainly(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command."""
        command: Any = super().get_command(ctx, cmd_name)
        if command is None:
            return None
        if ctx.parent is None:
            command.rich_help_panel = _panel_of_command(cmd_name)
        if len(command.params) > MAX_OPTIONS_WITHOUT_PANELS:
            _assign_option_panels(command.params)
        return command

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        command_names = super().list_commands(ctx)
        in_panels = itertools.chain.from_iterable(COMMAND_PANELS.values())
        ordered = [command_name for command_name in in_panels if command_name in command_names]
        return ordered + [
            command_name for command_name in command_names if command_name not in ordered
        ]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; where there is none of that name, suggest others."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{self._suggest_commands(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def _suggest_commands(self, ctx: Any, typed_name: str) -> str:
        """Suggest a command of a group with this name, the first command for a file, or names that are similar."""
        groups = {
            group_name: group
            for group_name, group in self.commands.items()
            if hasattr(group, "commands")
        }
        suggestions = [
            f"{group_name} {typed_name}"
            for group_name, group in groups.items()
            if typed_name in group.commands
        ]
        if not groups and is_source(typed_name):
            first_command = self.list_commands(ctx)[0]
            suggestions = [f"{first_command} {shlex.quote(typed_name)}"]
        if not suggestions:
            suggestions = get_close_matches(typed_name, self.commands, n=3)
        if not suggestions:
            return ""
        commands = ", ".join(f"{ctx.command_path} {suggestion}" for suggestion in suggestions)
        return f" Did you mean: {commands}?"

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a usage error that quotes an argument shows no password."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if hasattr(error, "format_message"):  # a usage error
                error.message = without_password(str(error.message))  # type: ignore[attr-defined]
            raise


def _panel_of_command(command_name: str) -> str | None:
    for panel, names in COMMAND_PANELS.items():
        if command_name in names:
            return panel
    return None


def _assign_option_panels(options: list[Any]) -> None:
    """Put the options of a long list into their panels."""
    # Where no scores are read (run, select), --models and --tasks say what to compute.
    option_names = {name for option in options for name in option.opts}
    reads_scores = "--study" in option_names and "--data" not in option_names
    panel_by_option: dict[str, str] = {}
    for panel_name, names_in_panel in OPTION_PANELS.items():
        panel_by_option.update(dict.fromkeys(names_in_panel.split(), panel_name))
    for option in options:
        panel = panel_by_option.get(option.opts[0].removeprefix("--"))
        if panel is not None and (reads_scores or panel != READ_PANEL):
            option.rich_help_panel = panel


app = typer.Typer(
    name="potentia",
    cls=OrderedGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
analyze = typer.Typer(
    cls=OrderedGroup,
    help="Rankings, one benchmark, checkpoints, signs of exposure, answers: what scores say.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(analyze, name="analyze")
papers = typer.Typer(
    cls=OrderedGroup,
    help="Methods and numbers of single papers: reproduce, test-task, proxy, judge, elicitation.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(papers, name="papers")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from potentia import __version__

        typer.echo(f"potentia {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Say which language model will be best after fine-tuning: the same fine-tuning for all, then one test."""


def run_command_line() -> None:
    """Run the command line and exit with Potentia's codes."""
    let_threads_sleep()
    # Commands show their own progress; progress bars of libraries would tear it.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Warnings of libraries are for those who write code, not for those who read an answer.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.filterwarnings("ignore", module=r"(transformers|peft|torch)\b")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold what a terminal lacks
    try:
        command = typer.main.get_command(app)
        command(args=repeat_flags(command, sys.argv[1:]), standalone_mode=True)
    except BrokenPipeError:
        sys.exit(0)
    except KeyboardInterrupt:
        _exit_interrupted()
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # a library wrapped it in its imports
            _exit_interrupted()
        known_error = error_in_words(error)
        if known_error is None:
            raise
        print_error(known_error)
        is_bad_input = isinstance(known_error, (InputError, MissingExtraError))
        sys.exit(2 if is_bad_input else 1)


def _exit_interrupted() -> NoReturn:
    error_console.quiet = False
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more changes nothing
    error_console.print("interrupted")
    sys.exit(130)


_PATH_ERRORS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
)
_NO_SPACE_MESSAGES = ("No space left on device", "File too large", "Disk quota exceeded")
_NO_MEMORY_MESSAGES = (
    "can't start new thread",
    "std::bad_alloc",
    "failed to map segment",
    "can't allocate memory",
    "Cannot allocate memory",
    "error return without exception set",  # CPython's, where an allocation failed
)


def error_in_words(error: BaseException) -> PotentiaError | None:
    """Return an error as one of ours: what is wrong with the input, the disk or the memory; None for a bug."""
    if isinstance(error, PotentiaError):
        return error
    if not isinstance(error, Exception):  # Rust code of a library panicked over some file
        return PotentiaError(f"a library failed: {first_line(error)}")
    if isinstance(error, UnicodeError):
        return InputError(f"a name or path is not Unicode text: {getattr(error, 'reason', error)}")
    error_number = getattr(error, "errno", None)
    if error_number == errno.ENAMETOOLONG:
        return InputError("a path is too long for this system")
    if isinstance(error, OSError) and error_number in _PATH_ERRORS:
        return InputError(str(error.strerror), where=str(error.filename))
    message = str(error)
    if any(words in message for words in _NO_SPACE_MESSAGES):
        return PotentiaError(f"it could not be written: {message}"[:300], hint="free some space")
    if _is_out_of_memory(error):
        return PotentiaError(
            f"memory ran out: {message}".removesuffix(": "),
            hint="raise its limit (ulimit -v, a container, a scheduler):"
            " the libraries alone need 3 GB of address space",
        )
    return None


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory ran out; libraries and the system say so in words alone."""
    if isinstance(error, MemoryError):
        return True
    is_system_error = isinstance(error, (OSError, RuntimeError, ImportError, SystemError))
    return is_system_error and any(words in str(error) for words in _NO_MEMORY_MESSAGES)


# --- several values after one flag ------------------------------------------------------------------------------------

SCORE_SUFFIXES = (".db", ".csv", ".json", ".jsonl", ".parquet")
_STUDY_FLAGS = frozenset({"--models", "--model", "--tasks", "--task", "--checkpoints", "--data"})
# Flags whose own values may be files, by command.
FLAGS_WITH_FILES = {"run": _STUDY_FLAGS}


def repeat_flags(command: Any, arguments: list[str]) -> list[str]:
    """Repeat the flag before each of several values: ``--models A B`` means ``--models A --models B``.

    Click knows the second way alone; which options take several is the command's to say. A source of scores may stand
    before or after them: ``analyze rankings --tasks x y scores.csv``. A word that belongs to no flag is taken as the
    source, and all values after a flag are the flag's; without such a word, the last values of a flag that are files,
    folders or URLs are sources (never its first).
    ``--`` ends the values of a flag in any case.
    """
    command, command_name, command_arguments = _find_command(command, arguments)
    command_words = arguments[: len(arguments) - len(command_arguments)]
    after_dashes: list[str] = []
    if "--" in command_arguments:
        after_dashes = command_arguments[command_arguments.index("--") :]
    before_dashes = command_arguments[: len(command_arguments) - len(after_dashes)]
    options_by_flag = {}
    for option in command.params:
        for flag in filter(_is_flag, option.opts):
            options_by_flag[flag] = option
    groups = _group_by_flag(before_dashes, options_by_flag)
    multiple_flags = {flag for flag, option in options_by_flag.items() if option.multiple}
    has_no_positional = all(_is_flag(group[0]) for group in groups)
    if has_no_positional and not after_dashes[1:]:
        flags_that_may_end_in_sources = multiple_flags - FLAGS_WITH_FILES.get(
            command_name, frozenset()
        )
        groups_that_may_end_in_sources = [
            group for group in groups if group[0] in flags_that_may_end_in_sources
        ]
        sources = _take_sources(groups_that_may_end_in_sources, _max_positional(command))
        if sources:
            after_dashes = ["--", *sources]
    repeated: list[str] = []
    for group in groups:
        repeated += _repeat_flag(*group) if group[0] in multiple_flags else group
    return [*command_words, *repeated, *after_dashes]


def _find_command(command: Any, arguments: list[str]) -> tuple[Any, str, list[str]]:
    """Return the command that the first words name, its name, and the words after it."""
    command_name = ""
    command_arguments = arguments
    while command_arguments and command_arguments[0] in getattr(command, "commands", {}):
        command_name = command_arguments[0]
        command = command.commands[command_name]
        command_arguments = command_arguments[1:]
    return command, command_name, command_arguments


def _max_positional(command: Any) -> int:
    """Return how many arguments a command takes beside its options."""
    nargs_of_arguments = [
        parameter.nargs for parameter in command.params if parameter.param_type_name == "argument"
    ]
    # Click's nargs of −1: the argument takes any number of words; the others take one each.
    if any(nargs < 0 for nargs in nargs_of_arguments):
        return sys.maxsize
    return len(nargs_of_arguments)


def _repeat_flag(flag: str, *values: str) -> list[str]:
    if not values:
        return [flag]
    repeated: list[str] = []
    for value in values:
        repeated += [flag, value]
    return repeated


def _is_flag(text: str) -> bool:
    return text.startswith("-") and text != "-"


def _group_by_flag(arguments: list[str], options_by_flag: dict[str, Any]) -> list[list[str]]:
    """Put every flag together with its values; an argument without a flag stands alone."""
    groups: list[list[str]] = []
    remaining = list(arguments)
    while remaining:
        group = [remaining.pop(0)]
        option = options_by_flag.get(group[0])
        if option is not None and not option.is_flag:
            value_count = option.nargs
            if option.multiple:
                value_count = len(list(takewhile(lambda text: not _is_flag(text), remaining)))
            group += remaining[:value_count]
            del remaining[:value_count]
        groups.append(group)
    return groups


def _take_sources(groups: list[list[str]], max_sources: int) -> list[str]:
    """Remove and return the sources at the end of the last group that ends in any.

    A group is ``[flag, value, …]`` and keeps its first value.
    """
    for group in reversed(groups):
        start = len(group)
        while (
            start > 2
            and len(group) - start < max_sources
            and is_source(group[start - 1], is_last=start == len(group))
        ):
            start -= 1
        sources = group[start:]
        if sources:
            del group[start:]
            return sources
    return []


def is_source(argument: str, *, is_last: bool = True) -> bool:
    """Say whether a value is scores, a file, a folder or a URL; a task may have a folder's name unless it is last."""
    if "://" in argument or Path(argument).suffix in SCORE_SUFFIXES:
        return True
    return is_readable(argument) and (is_last or "/" in argument or bool(Path(argument).suffix))


def is_readable(argument: str) -> bool:
    """Say whether a value is a URL, or a file or folder that is there."""
    if "://" in argument:
        return True
    try:
        return Path(argument).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


# The command groups register themselves on import; each is light until its command runs.
for _module in ("adapters", "analyses", "catalog", "run", "scores", "select", "setup", "stores"):
    import_module(f"potentia.cli.{_module}")
for _name, _function in load_extensions(ExtensionKind.COMMAND).items():
    app.command(_name)(_function)
