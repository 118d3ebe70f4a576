"""What an analysis declares so that the command line and the report offer it: plain values, nothing is drawn here.

Potentia's papers and packages from outside use these declarations alike; an entry point of the group ``potentia`` names
each (``potentia.extensions``). The options of a command are the fields of a frozen dataclass, described by
``command_option``, so that the function that gets them is checked by its types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from potentia.values.findings import Chart, Finding

if TYPE_CHECKING:
    from potentia.evidence import Evidence

OptionsT = TypeVar("OptionsT")
ResultT = TypeVar("ResultT")


# --- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OptionDescription:
    """How the command line shows an option: its help, its flags where the field's name is not enough, its limits."""

    help: str
    flags: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    shows_default: bool = (
        True  # else the help says in words what holds where the option is not given
    )


OPTION = "potentia option"  # where a field's metadata holds its description


def command_option(
    help: str,
    default: Any = None,
    *flags: str,
    minimum: float | None = None,
    maximum: float | None = None,
    shows_default: bool = True,
) -> Any:
    """Declare a field of an options dataclass as an option of the command; ``default=...`` makes it required.

    A field of type ``bool`` is a switch, one of type ``tuple[str, ...]`` takes several values.
    """
    description = OptionDescription(
        help=help, flags=flags, minimum=minimum, maximum=maximum, shows_default=shows_default
    )
    return field(default=MISSING if default is ... else default, metadata={OPTION: description})


@dataclass(frozen=True)
class NoOptions:
    """The options of a command that has none of its own: ``AnalysisCommand(analyze, NoOptions)``."""


@dataclass(frozen=True)
class AnalysisOutput:
    """What an analysis found, by name, and what the user should know about it (printed to standard error).

    Tables of ``unprinted`` findings are left out on a terminal; JSON and figures have all findings. Where there is an
    ``answer`` it is printed before the tables; else each finding says its own below them.
    """

    findings: Mapping[str, Finding]
    remarks: Sequence[str] = ()
    unprinted: frozenset[str] = frozenset()
    answer: Sequence[str] = ()


@dataclass(frozen=True)
class AnalysisCommand(Generic[OptionsT]):
    """A command ``potentia analyze NAME``, or of another group; the docstring of ``analyze`` is its help.

    ``analyze`` gets the evidence, read as the common options say, and the command's own options. An own option with
    the name of a common one takes its place. ``needs_store``: no table of scores can answer, so the options that say
    how a table is read are left out.
    """

    analyze: Callable[[Evidence, OptionsT], AnalysisOutput]
    options: type[OptionsT]
    needs_store: bool = False
    reads_tasks: bool = (
        True  # whether ``--tasks`` narrows the scores; an analysis may name its tasks itself
    )
    group: str = "analyze"


# --- report sections -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SectionRequest:
    """What a report asks of its registered sections: the evidence, and what the user asked for besides.

    ``options`` holds the options of some sections by the section's id, each of the section's own type.
    """

    evidence: Evidence
    baseline: str | None = None  # the method to compare others with
    options: Mapping[str, Any] = field(default_factory=dict)
    _results: dict[Callable[..., Any], Any] = field(default_factory=dict, repr=False)

    def compute_once(self, compute: Callable[[SectionRequest], ResultT]) -> ResultT:
        """Return what a function makes of this request; several sections that ask share one computation."""
        if compute not in self._results:
            self._results[compute] = compute(self)
        return cast(ResultT, self._results[compute])


@dataclass(frozen=True)
class ReportOpening:
    """What a whole report begins with, where a study was made for this finding: sentences and a picture."""

    headline: str
    lead: str
    chart: Chart


@dataclass(frozen=True)
class SectionContent:
    """What a section shows: findings in reading order, all findings by the names of the command line, and problems."""

    shown: Sequence[Finding]
    named: Mapping[str, Finding]
    lead: str = ""  # sentences above the figures
    problems: Sequence[str] = ()
    opening: ReportOpening | None = None


@dataclass(frozen=True)
class ReportSection:
    """A section of report and board, by the name of its entry point; ``find`` returns None where there is nothing."""

    title: str
    find: Callable[[SectionRequest], SectionContent | None]
    heading: str = ""  # the title, where absent
    after: str = ""  # the id of the section that it follows; else the last of the findings


# --- published numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReproductionRequest:
    """What ``potentia papers reproduce`` was given: files, a folder of evaluations, and how often to resample."""

    files: tuple[str, ...]
    evaluations: Path | None = None
    resamples: int | None = None  # each paper's own number, where absent


@dataclass(frozen=True)
class PaperReproduction:
    """A paper for ``potentia papers reproduce NAME``: the files that it takes, and the numbers printed beside ours."""

    reproduce: Callable[[ReproductionRequest], Finding]
    files: tuple[str, ...] = ()  # what the help calls them
    where_published: str = ""  # what to do where the files are not there
    evaluations_suffice: bool = (
        False  # whether it reads a folder of evaluations, which can stand for the files
    )
