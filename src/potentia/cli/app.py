"""The ``potentia`` command: assembles the command groups and turns errors into exit codes.

Exit codes: 0 all is well, 1 some cells failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import os
import shlex
import signal
import sys
from difflib import get_close_matches
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from potentia.cli.output import errors, print_error
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
PANELS = {
    "Start": ("init", "demo", "run", "select", "predict"),
    "Understand": ("compare", "analyze", "report", "serve"),
    "Exchange": ("import", "export", "track"),
    "Keep": ("status", "store", "adapters", "models", "doctor"),
    "More": ("tasks", "plan", "reproduce", "zoo"),
}
# The parts of a long list of options; the others come first.
PARTS = {
    "Data and fine-tuning": "seed seeds learning-rates epochs train validation test",
    "Machine": "device dtype workers executor threads split",
    "Adaptive": "adaptive budget confidence top history",
    "Test task": "before after since column value exposed families chance steps batch",
    "What is read": "study protocols tasks models facts task-facts map lower scale kind apart metric",
    "What comes out": "figures format no-titles json",
    "Consent": "allow-code allow-pickle allow-missing-weights",
}
MANY = 15  # options that need parts


class _InOrder(TyperGroup):
    """The commands in the order of use, each in its panel; the options of a long command in parts."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command."""
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None and ctx.parent is None:
            command.rich_help_panel = next(
                (panel for panel, names in PANELS.items() if cmd_name in names), None
            )
        if command is not None and len(command.params) > MANY:
            self._divide(command.params)
        return command

    @staticmethod
    def _divide(options: list[Any]) -> None:
        """Put the options of a long list into their parts."""
        reads = any(
            "--study" in option.opts for option in options
        )  # else --models and --tasks are what is asked for
        parts = {name: part for part, names in PARTS.items() for name in names.split()}
        for option in options:
            part = parts.get(option.opts[0].removeprefix("--"))
            if part is not None and (reads or part != "What is read"):
                option.rich_help_panel = part

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        names = super().list_commands(ctx)
        ordered = [name for panel in PANELS.values() for name in panel if name in names]
        return ordered + [name for name in names if name not in ordered]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; where there is none of that name, say what may be meant."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{self._meant(ctx, args)}")
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: Any, args: list[str]) -> str:
        groups = {
            name: group for name, group in self.commands.items() if hasattr(group, "commands")
        }
        inside = [
            f"{name} {args[0]}" for name, group in groups.items() if args[0] in group.commands
        ]
        if not groups and is_source(args[0]):
            inside = [f"{next(iter(self.list_commands(ctx)))} {shlex.quote(args[0])}"]
        near = inside or get_close_matches(args[0], self.commands, n=3)
        return (
            f" Did you mean: {', '.join(f'{ctx.command_path} {name}' for name in near)}?"
            if near
            else ""
        )

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it says of arguments that it does not take shows no password."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if hasattr(error, "format_message"):  # a usage error
                error.message = without_password(str(error.message))  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    name="potentia",
    cls=_InOrder,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
analyze = typer.Typer(
    cls=_InOrder, help="Turn scores into findings.", no_args_is_help=True, rich_markup_mode="rich"
)
app.add_typer(analyze, name="analyze")


def _version(asked: bool) -> None:
    if asked:
        from potentia import __version__

        typer.echo(f"potentia {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Rank language models by what they can become: the same fine-tuning for all, then one test."""


def run() -> None:
    """Run the command line and exit with Potentia's codes."""
    let_threads_sleep()
    os.environ.setdefault(
        "TQDM_DISABLE", "1"
    )  # commands show their own progress; bars of libraries would tear it
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a name may hold what a terminal cannot show
    try:
        command = typer.main.get_command(app)
        command(args=expand_many(command, sys.argv[1:]), standalone_mode=True)
    except BrokenPipeError:
        sys.exit(0)
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or isinstance(
            error.__cause__, KeyboardInterrupt
        ):  # in an import
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more changes nothing
            errors.print("interrupted")
            sys.exit(130)
        told = _in_words(error)
        if told is None:
            raise
        print_error(told)
        sys.exit(2 if isinstance(told, (InputError, MissingExtraError)) else 1)


_PLACES = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
)
_NO_SPACE = ("No space left on device", "File too large", "Disk quota exceeded")
_NO_MEMORY = (
    "can't start new thread",
    "std::bad_alloc",
    "failed to map segment",
    "can't allocate memory",
    "Cannot allocate memory",
)


def _in_words(error: BaseException) -> PotentiaError | None:
    """Return an error as one of ours: what is wrong with the input, the disk or the memory; None for a bug."""
    told, number = str(error), getattr(error, "errno", None)
    if isinstance(error, PotentiaError):
        return error
    if not isinstance(error, Exception):  # Rust code of a library panicked over some file
        return PotentiaError(f"a library broke down: {first_line(error)}")
    if isinstance(error, UnicodeError):
        return InputError(f"a name or path is no Unicode text: {getattr(error, 'reason', error)}")
    if number == errno.ENAMETOOLONG:
        return InputError("a path is too long for this system")
    if isinstance(error, OSError) and number in _PLACES:
        return InputError(str(error.strerror), where=str(error.filename))
    if any(words in told for words in _NO_SPACE):
        return PotentiaError(f"it could not be written: {told}"[:300], hint="free some space")
    of_system = isinstance(error, (OSError, RuntimeError, ImportError))
    if isinstance(error, MemoryError) or (of_system and any(words in told for words in _NO_MEMORY)):
        hint = "is it limited (ulimit -v, a container, a scheduler)? Libraries alone take some 3 GB of addresses"
        return PotentiaError(f"memory ran out: {told}".removesuffix(": "), hint=hint)
    return None


# --- several values after one flag ------------------------------------------------------------------------------------

SCORES = (".db", ".csv", ".json", ".jsonl", ".parquet")
_OF_STUDY = frozenset({"--models", "--model", "--tasks", "--task", "--checkpoints", "--data"})
OWN_FILES = dict.fromkeys(("run", "plan", "init"), _OF_STUDY)  # flags whose own values may be files


def expand_many(command: Any, arguments: list[str]) -> list[str]:
    """Repeat the flag before each of several values: ``--models A B`` means ``--models A --models B``.

    Click knows the second way alone; which options take several is the command's to say. A source of scores may stand
    before or after them: ``analyze rankings --tasks x y scores.csv``. Where one stands by itself, all values after a
    flag are the flag's; else those at the end of a flag's values that are files, folders or database URLs are sources.
    ``--`` ends the values of a flag in any case.
    """
    name, rest = "", arguments
    while rest and rest[0] in getattr(command, "commands", {}):
        name, command, rest = rest[0], command.commands[rest[0]], rest[1:]
    start = arguments[: len(arguments) - len(rest)]
    end = rest[rest.index("--") :] if "--" in rest else []
    options = {flag: one for one in command.params for flag in one.opts if _is_flag(flag)}
    groups = _grouped(rest[: len(rest) - len(end)], options)
    several = {flag for flag, one in options.items() if one.multiple}
    if not end[1:] and all(_is_flag(group[0]) for group in groups):
        lending = several - OWN_FILES.get(name, frozenset())
        own = [
            one.nargs for one in command.params if one.param_type_name == "argument"
        ]  # of the command itself
        most = sys.maxsize if any(count < 0 for count in own) else len(own)
        taken = _sources([group for group in groups if group[0] in lending], most)
        end = ["--", *taken] if taken else end
    written = [
        part for group in groups for part in (_repeated(*group) if group[0] in several else group)
    ]
    return [*start, *written, *end]


def _repeated(flag: str, *values: str) -> list[str]:
    return [part for value in values for part in (flag, value)] or [flag]


def _is_flag(text: str) -> bool:
    return text.startswith("-") and text != "-"


def _grouped(arguments: list[str], options: dict[str, Any]) -> list[list[str]]:
    """Put every flag together with its values; an argument without a flag stands alone."""
    groups: list[list[str]] = []
    left = list(arguments)
    while left:
        group = [left.pop(0)]
        option = options.get(group[0])
        if option is not None and not option.is_flag:
            count = (
                len(list(takewhile(lambda text: not _is_flag(text), left)))
                if option.multiple
                else option.nargs
            )
            group += left[:count]
            del left[:count]
        groups.append(group)
    return groups


def _sources(groups: list[list[str]], most: int) -> list[str]:
    """Take what are the command's own arguments from the end of a flag's values, the last such flag first."""
    for group in reversed(groups):
        first = len(group)
        while (
            first > 2
            and len(group) - first < most
            and is_source(group[first - 1], last=first == len(group))
        ):
            first -= 1
        if taken := group[first:]:
            del group[first:]
            return taken
    return []


def is_source(value: str, *, last: bool = True) -> bool:
    """Say whether a value is scores, a file, a folder or a URL; a task may have a folder's name unless it is last."""
    if "://" in value or Path(value).suffix in SCORES:
        return True
    try:
        there = Path(value).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False
    return there and (last or "/" in value or bool(Path(value).suffix))


# The command groups register themselves on import; each is light until its command runs.
for _module in ("analyses", "known", "run", "scores", "select", "setup", "stores"):
    import_module(f"potentia.cli.{_module}")
for _name, _function in load_extensions(ExtensionKind.COMMAND).items():
    app.command(_name)(_function)
