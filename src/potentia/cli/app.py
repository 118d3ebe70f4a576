"""The ``potentia`` command: assembles the command groups and turns errors into exit codes.

Exit codes: 0 all is well, 1 some cells failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import sys

import typer

from potentia.cli.many import expand_many
from potentia.cli.output import errors, print_error
from potentia.errors import InputError, PotentiaError

app = typer.Typer(
    name="potentia",
    help="Rank language models by what they can become: the same fine-tuning for all, then one test.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
analyze = typer.Typer(help="Turn scores into findings.", no_args_is_help=True, rich_markup_mode="rich")
reproduce = typer.Typer(help="Print a paper's numbers beside ours.", no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(analyze, name="analyze")
app.add_typer(reproduce, name="reproduce")


def run() -> None:
    """Run the command line and exit with Potentia's codes."""
    try:
        command = typer.main.get_command(app)
        command(args=expand_many(command, sys.argv[1:]), standalone_mode=True)
    except InputError as error:
        print_error(error)
        sys.exit(2)
    except PotentiaError as error:
        print_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)


# The command groups register themselves on import; each is light until its command runs.
from potentia.cli import adapters as _adapters  # noqa: E402, F401
from potentia.cli import analyze_checkpoints as _analyze_checkpoints  # noqa: E402, F401
from potentia.cli import analyze_consistency as _analyze_consistency  # noqa: E402, F401
from potentia.cli import analyze_proxy as _analyze_proxy  # noqa: E402, F401
from potentia.cli import analyze_rankings as _analyze_rankings  # noqa: E402, F401
from potentia.cli import analyze_test_task as _analyze_test_task  # noqa: E402, F401
from potentia.cli import data as _data  # noqa: E402, F401
from potentia.cli import demo as _demo  # noqa: E402, F401
from potentia.cli import doctor as _doctor  # noqa: E402, F401
from potentia.cli import models as _models  # noqa: E402, F401
from potentia.cli import report as _report  # noqa: E402, F401
from potentia.cli import reproduce as _reproduce  # noqa: E402, F401
from potentia.cli import run as _run  # noqa: E402, F401
from potentia.cli import serve as _serve  # noqa: E402, F401
from potentia.cli import tasks as _tasks  # noqa: E402, F401
from potentia.cli import track as _track  # noqa: E402, F401
from potentia.cli import zoo as _zoo  # noqa: E402, F401
