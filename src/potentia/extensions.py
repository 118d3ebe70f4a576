"""Extensions: analyses, report sections, executors and the like that any package adds to Potentia, by entry points.

A package names what it adds in its entry points of the group ``potentia``, each as ``KIND.NAME``::

    [project.entry-points.potentia]
    "analysis.spans" = "my_package.spans:ANALYSIS"           # potentia analyze spans
    "section.spans" = "my_package.spans:SECTION"             # a section of every report
    "executor.mine" = "my_package.executor:MyExecutor"       # potentia run --executor mine
    "adapter_method.mine" = "my_package.adapter:Mine"        # method: mine

``ExtensionKind`` has the kinds, and what the object of each must be. Names are read without an import, and an object is
imported when it is first used: a command that does not need an extension does not pay for it. Potentia adds its papers
and some of its analyses in the same way, by the table ``ENTRY_POINTS`` of each module in ``OWN_TABLES``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from potentia.errors import InputError, PotentiaError, first_line, suggest_names

GROUP = "potentia"
OWN_TABLES = ("potentia.papers", "potentia.analysis.answers")  # modules with a table ENTRY_POINTS
_LOGGER = logging.getLogger(__name__)


class ExtensionKind(StrEnum):
    """What an extension can add, and what its entry point must name."""

    # `potentia analyze NAME`: an AnalysisCommand of potentia.analysis.registration
    ANALYSIS = "analysis"
    # a section of report and board: a ReportSection of potentia.analysis.registration
    SECTION = "section"
    # `potentia papers reproduce NAME`: a PaperReproduction of potentia.analysis.registration
    REPRODUCTION = "reproduction"
    # `potentia NAME`: a function that typer can make a command of
    COMMAND = "command"
    # `potentia run --executor NAME`: an Executor of potentia.run.executors
    EXECUTOR = "executor"
    # `method: NAME` in a study's tuning: a LowRankAdapter of potentia.engine.layers
    ADAPTER_METHOD = "adapter_method"
    # `TASK:NAME`, another way to ask a task: a pair of a function and its version (potentia.tasks.forms)
    PROMPT_FORM = "prompt_form"
    # a metric by its name: a Metric of potentia.values.metric
    METRIC = "metric"


def list_extensions(kind: ExtensionKind) -> list[str]:
    """Return the names of all extensions of a kind, those of Potentia first; nothing is imported."""
    return list(_entry_points_by_kind()[kind])


def has_extension(kind: ExtensionKind, name: str) -> bool:
    """Whether there is an extension of this kind and name; nothing is imported."""
    return name in _entry_points_by_kind()[kind]


def load_extension(kind: ExtensionKind, name: str) -> Any:
    """Import an extension and return the object that its entry point names."""
    entry_point = _entry_points_by_kind()[kind].get(name)
    if entry_point is None:
        hint = suggest_names(name, list_extensions(kind))
        raise InputError(f"no {_describe_kind(kind)} {name!r}", hint=hint)
    try:
        return entry_point.load()
    except PotentiaError:
        raise
    except Exception as error:
        raise PotentiaError(
            f"the {_describe_kind(kind)} {name!r} of {_describe_origin(entry_point)} cannot be loaded: "
            f"{first_line(error)}",
            where=entry_point.value,
            hint="correct or uninstall that package",
        ) from error


def load_extensions(kind: ExtensionKind) -> dict[str, Any]:
    """Import every extension of a kind; one that cannot be loaded is left out with a warning."""
    extensions = {}
    for name in list_extensions(kind):
        try:
            extensions[name] = load_extension(kind, name)
        except PotentiaError as error:
            _LOGGER.warning("%s", error)
    return extensions


@cache
def _entry_points_by_kind() -> Mapping[ExtensionKind, Mapping[str, EntryPoint]]:
    """Return the entry points of Potentia and of all installed packages, by kind and name.

    Raise if two packages add the same name.
    """
    by_kind: dict[ExtensionKind, dict[str, EntryPoint]] = {kind: {} for kind in ExtensionKind}
    for entry_point in _read_entry_points():
        kind_name, _, name = entry_point.name.partition(".")
        if kind_name not in set(ExtensionKind) or not name:
            _LOGGER.warning(
                "%s adds %r, which is of no known kind: %s",
                _describe_origin(entry_point),
                entry_point.name,
                ", ".join(ExtensionKind),
            )
            continue
        extensions = by_kind[ExtensionKind(kind_name)]
        earlier = extensions.get(name)
        if earlier is not None and earlier.value != entry_point.value:
            raise InputError(
                f"two packages add the {_describe_kind(ExtensionKind(kind_name))} {name!r}: "
                f"{_describe_origin(earlier)} and {_describe_origin(entry_point)}",
                hint="uninstall one of them",
            )
        extensions[name] = entry_point
    return by_kind


def _read_entry_points() -> Iterator[EntryPoint]:
    """Yield Potentia's own entry points, then those of installed packages."""
    for module in OWN_TABLES:
        for name, value in import_module(module).ENTRY_POINTS.items():
            yield EntryPoint(name=name, value=value, group=GROUP)
    yield from entry_points(group=GROUP)


def _describe_kind(kind: ExtensionKind) -> str:
    return kind.value.replace("_", " ")


def _describe_origin(entry_point: EntryPoint) -> str:
    """Return the name of the package that has an entry point."""
    distribution = entry_point.dist
    return GROUP if distribution is None else distribution.name
