"""``potentia analyze benchmark``: whether a benchmark is worth keeping."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potentia.cli.app import analyze
from potentia.cli.output import (
    Figures,
    Formats,
    Map,
    Metric,
    NoTitles,
    Study,
    TaskFacts,
    check_formats,
    columns_of,
    console,
    draw_figures,
    print_findings,
    print_notes,
)

if TYPE_CHECKING:
    from potentia.evidence import Evidence


@analyze.command()
def benchmark(
    name: Annotated[str, typer.Argument(metavar="TASK", help="The benchmark to judge.")],
    sources: Annotated[
        list[str], typer.Argument(metavar="SCORES...", help="A store or score files, other tasks in them.")
    ],
    protocol: Annotated[str | None, typer.Option(help="Judge it by this protocol; else by the one that ranks.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of benchmark splits, to look for overlap.")] = None,
    task_facts: TaskFacts = None,
    study: Study = None,
    metric: Metric = None,
    columns: Map = None,
    figures: Figures = None,
    format: Formats = None,
    no_titles: NoTitles = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the finding as JSON.")] = False,
) -> None:
    """Say whether a benchmark is to be kept, fixed or dropped, and why: agreement, reliability, items to look at.

    Examples:
      potentia analyze benchmark arc_easy potentia.db

      potentia analyze benchmark my-task scores.csv --json
    """
    from potentia.analysis.benchmark import find_benchmark
    from potentia.evidence import read

    check_formats(format)
    evidence = read(*sources, study=study, metric=metric, task_facts=task_facts, columns=columns_of(columns))
    print_notes(evidence)
    found = find_benchmark(evidence, name, protocol=protocol, in_train=_in_train(evidence, name, data_dir))
    print_findings({"benchmark": found}, as_json=as_json)
    if not as_json:
        console.print(found.headline(), style="bold", markup=False)
    draw_figures([found], figures, format, titles=not no_titles)


def _in_train(evidence: Evidence, name: str, data_dir: Path | None) -> int | None:
    """Count the test documents that are in train, where a study says where the data is and it is there."""
    from potentia.errors import PotentiaError
    from potentia.evidence import study_of
    from potentia.run import load_tasks
    from potentia.tasks import overlap

    for study in filter(None, map(study_of, evidence.studies)):
        spec = study.benchmark(name)
        if spec is None or not (data_dir or study.data_dir or spec.file):
            continue
        folder = str(data_dir) if data_dir else study.data_dir
        try:
            (task,) = load_tasks(study.model_copy(update={"tasks": (spec,), "data_dir": folder})).benchmarks.values()
        except PotentiaError:
            return None
        return overlap(task).test_exact
    return None
