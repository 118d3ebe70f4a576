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
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from potentia.cli.output import errors, print_error
from potentia.errors import InputError, MissingExtraError, PotentiaError, without_password
from potentia.processes import wait_asleep

# What `--help` shows, in the order of use.
PANELS = {
    "Start": ("init", "demo", "run", "select", "predict"),
    "Understand": ("compare", "analyze", "report", "serve"),
    "Exchange": ("import", "export", "track"),
    "Keep": ("status", "store", "studies", "adapters", "models", "doctor"),
    "More": ("tasks", "plan", "reproduce", "zoo"),
}


# The parts of a long list of options; the others come first.
PARTS = {
    "Data and fine-tuning": "seed seeds learning-rates epochs train validation test",
    "Machine": "device dtype workers executor threads split",
    "Adaptive": "adaptive budget confidence top history",
    "What is read": "study protocols tasks models facts task-facts map lower scale kind apart metric",
    "What comes out": "figures format no-titles json",
    "Consent": "allow-code allow-pickle allow-missing-weights",
}
MANY = 15  # options that need parts


class _InOrder(TyperGroup):
    """The commands in the order of use, each in its panel; the options of a long command in parts."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command."""
        command = super().get_command(ctx, cmd_name)
        params: list[Any] = [] if command is None or hasattr(command, "commands") else list(command.params)
        reads = any("--study" in option.opts for option in params)  # else --models and --tasks are what is asked for
        for part, names in PARTS.items() if len(params) > MANY else ():
            for option in params:
                if option.opts[0].removeprefix("--") in names.split() and (reads or part != "What is read"):
                    option.rich_help_panel = part
        return command

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        order = [name for names in PANELS.values() for name in names]
        return sorted(super().list_commands(ctx), key=lambda name: order.index(name) if name in order else len(order))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; where there is none of that name, say what may be meant."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{self._meant(ctx, args)}")
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: Any, args: list[str]) -> str:
        groups = {name: group for name, group in self.commands.items() if hasattr(group, "commands")}
        inside = [f"{name} {args[0]}" for name, group in groups.items() if args[0] in group.commands]
        if not groups and is_source(args[0]):
            inside = [f"{next(iter(self.list_commands(ctx)))} {shlex.quote(args[0])}"]
        near = inside or get_close_matches(args[0], self.commands, n=3)
        return f" Did you mean: {', '.join(f'{ctx.command_path} {name}' for name in near)}?" if near else ""

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
analyze = typer.Typer(cls=_InOrder, help="Turn scores into findings.", no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(analyze, name="analyze")


def _version(asked: bool) -> None:
    if asked:
        from potentia import __version__

        typer.echo(f"potentia {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Rank language models by what they can become: the same fine-tuning for all, then one test."""


def run() -> None:
    """Run the command line and exit with Potentia's codes."""
    wait_asleep()
    os.environ.setdefault("TQDM_DISABLE", "1")  # commands show their own progress; bars of libraries would tear it
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold what a terminal cannot show
    try:
        command = typer.main.get_command(app)
        command(args=expand_many(command, sys.argv[1:]), standalone_mode=True)
    except BrokenPipeError:
        sys.exit(0)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more changes nothing
        errors.print("interrupted")
        sys.exit(130)
    except Exception as error:
        told = _in_words(error)
        if told is None:
            raise
        print_error(told)
        sys.exit(2 if isinstance(told, (InputError, MissingExtraError)) else 1)


NO_MEMORY = ("can't start new thread", "std::bad_alloc", "can't allocate memory")


def _in_words(error: Exception) -> PotentiaError | None:
    """Return an error as one of ours: what is wrong with the input, the disk or the memory; None for a bug."""
    number, told = error.errno if isinstance(error, OSError) else None, str(error)
    if isinstance(error, PotentiaError):
        return error
    if isinstance(error, UnicodeError):
        return InputError(f"a name or path is no Unicode text: {getattr(error, 'reason', error)}")
    if number == errno.ENAMETOOLONG:
        return InputError("a path is too long for this system")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP):
        return InputError(str(error.strerror), where=str(error.filename))  # type: ignore[attr-defined]
    full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if full or any(words in told for words in ("No space left on device", "File too large")):
        return PotentiaError(f"it could not be written: {told}"[:300], hint="free some space")
    no_memory = isinstance(error, MemoryError) or number == errno.ENOMEM
    no_memory |= isinstance(error, ImportError) and "failed to map segment" in told
    no_memory |= isinstance(error, RuntimeError) and any(words in told for words in NO_MEMORY)
    if no_memory:
        hint = "is it limited (ulimit -v, a container, a scheduler)? Libraries alone take some 3 GB of addresses"
        return PotentiaError(f"memory ran out: {told}".removesuffix(": "), hint=hint)
    return None


# --- several values after one flag ------------------------------------------------------------------------------------

# Options whose own values may be files: what follows them is theirs.
_OF_RUN = frozenset({"--models", "--model", "--tasks", "--task", "--checkpoints"})
SCORES = (".db", ".csv", ".json", ".jsonl", ".parquet")
OWN_FILES = {"run": _OF_RUN, "plan": _OF_RUN}


@dataclass
class _Flag:
    """A flag with its values; an argument without a flag is a value of none."""

    name: str | None
    values: list[str]
    many: bool = False

    def written(self) -> list[str]:
        if self.name is None:
            return self.values
        return (
            [part for value in self.values for part in (self.name, value)] if self.many else [self.name, *self.values]
        )


def expand_many(command: Any, arguments: list[str]) -> list[str]:
    """Repeat the flag before each of several values: ``--models A B`` means ``--models A --models B``.

    Click knows the second way alone; which options take several is the command's to say. A source of scores may stand
    before or after them: ``analyze rankings --tasks x y scores.csv``. Where one stands by itself, all values after a
    flag are the flag's; else those at the end of a flag's values that are files, folders or database URLs are sources.
    ``--`` ends the values of a flag in any case.
    """
    name, leaf, rest = _resolve(command, arguments)
    start = arguments[: len(arguments) - len(rest)]
    end = rest[rest.index("--") :] if "--" in rest else []
    flags = _flags(leaf, rest[: len(rest) - len(end)])
    if not end[1:] and all(flag.name is not None for flag in flags):
        _give_back(leaf, [flag for flag in flags if flag.many and flag.name not in OWN_FILES.get(name, ())], end)
    return [*start, *(part for flag in flags for part in flag.written()), *end]


def _flags(command: Any, arguments: list[str]) -> list[_Flag]:
    options = {flag: option for option in command.params for flag in option.opts if flag.startswith("-")}
    found: list[_Flag] = []
    place = 0
    while place < len(arguments):
        argument, option = arguments[place], options.get(arguments[place])
        place += 1
        many = option is not None and option.multiple
        if option is None or option.is_flag or option.count:
            bare = not argument.startswith("-") or argument == "-"
            found.append(_Flag(None, [argument]) if bare else _Flag(argument, []))
            continue
        values = arguments[place : place + option.nargs]
        if many:  # all up to the next flag
            values = list(takewhile(lambda value: not value.startswith("-") or value == "-", arguments[place:]))
        place += len(values)
        found.append(_Flag(argument, values, many and bool(values)))
    return found


def _give_back(command: Any, flags: list[_Flag], end: list[str]) -> None:
    """Take what are the command's own arguments from the end of a flag's values, the last such flag first."""
    wanted = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    if not wanted:
        return
    most = 10**9 if any(argument.nargs < 0 for argument in wanted) else len(wanted)
    for flag in reversed(flags):
        taken = 0
        while taken < min(most, len(flag.values) - 1) and is_source(flag.values[-1 - taken], last=taken == 0):
            taken += 1
        if taken:
            end[:0] = [] if end else ["--"]
            end += flag.values[-taken:]
            del flag.values[-taken:]
            return
    several = [flag for flag in flags if len(flag.values) > 1]
    if several and Path(several[-1].values[-1]).suffix in SCORES:  # it is not there, and is told so by its name
        end += [*([] if end else ["--"]), several[-1].values.pop()]


def _resolve(command: Any, arguments: list[str]) -> tuple[str, Any, list[str]]:
    """Return the command that the arguments name, and those after its name."""
    name, rest = "", arguments
    while rest and rest[0] in getattr(command, "commands", {}):
        name, command, rest = rest[0], command.commands[rest[0]], rest[1:]
    return name, command, rest


def is_source(value: str, *, last: bool = True) -> bool:
    """Say whether a value is a file, a folder or a URL; the name of a task may be a folder's too unless it is last."""
    if "://" in value:
        return True
    try:
        there = Path(value).expanduser().exists()
    except (OSError, ValueError):
        return False
    return there and (last or "/" in value or bool(Path(value).suffix))


# The command groups register themselves on import; each is light until its command runs.
for _module in ("analyses", "known", "run", "scores", "select", "setup", "stores"):
    import_module(f"potentia.cli.{_module}")

for _panel, _names in PANELS.items():
    _known: list[Any] = [*app.registered_commands, *app.registered_groups]
    for _one in _known:
        if (_one.name or getattr(_one.callback, "__name__", "")) in _names:
            _one.rich_help_panel = _panel
