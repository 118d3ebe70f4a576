"""``potentia report``: everything that the scores say, in one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import app
from potentia.cli.output import (
    Formats,
    KindOf,
    Lower,
    Map,
    Metric,
    NoTitles,
    Scale,
    Study,
    TaskFacts,
    check_formats,
    console,
    draw_figures,
    errors,
    print_json,
    print_notes,
    says_of,
)


@app.command()
def report(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="STORE_OR_SCORES...", help="Stores or files of scores; several are joined."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path("report.html"),
    study: Study = None,
    columns: Map = None,
    lower: Lower = None,
    scale: Scale = None,
    kind: KindOf = None,
    metric: Metric = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="Show scores that cannot be compared apart, group by group.")
    ] = False,
    items: Annotated[
        int | None, typer.Option(min=0, help="Items of each cell to show, half of them wrong; by default up to 40.")
    ] = None,
    facts: Annotated[Path | None, typer.Option(help="A CSV of facts on models of your own.")] = None,
    task_facts: TaskFacts = None,
    before: Annotated[str | None, typer.Option(help="Test task: protocol or stage before adjustment.")] = None,
    after: Annotated[str | None, typer.Option(help="Test task: protocol or stage after adjustment.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Test task: models trained in this month or later are the newer ones.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="Test task: divide by this column of the facts instead …")] = None,
    value: Annotated[str | None, typer.Option(help="… where it has this value.")] = None,
    exposed: Annotated[
        bool, typer.Option("--exposed", help="Test task: divide each task by who saw its form.")
    ] = False,
    target: Annotated[str | None, typer.Option(help="Proxy tasks: the task to predict.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Stability and consistency: compare every method with this one.")
    ] = None,
    history: Annotated[
        list[str] | None, typer.Option(help="Cells not measured yet: predict them with these scores of other models.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Draw the figures for a paper into this folder, too.")] = None,
    format: Formats = None,
    no_titles: NoTitles = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a report: the answer, scores, ranks, agreement, evidence, every cell, and how it was made, in one file.

    The file needs no network and can be mailed. Its numbers are those of `potentia analyze rankings`.

    Examples:
      potentia report potentia.db -o report.html

      potentia report scores.csv -o report.html --figures figures --format pdf

      potentia report scores.csv --facts models.csv --column language --value en+cn --target gsm8k

      potentia report staged.csv --facts models.csv --before base --after tuned_mc_3ep
    """
    from potentia.analysis.proxy import Options as ProxyOptions
    from potentia.analysis.test_task import SINCE
    from potentia.analysis.test_task import Options as TestTaskOptions
    from potentia.evidence import read
    from potentia.show import ReportOptions, make_report, save_report

    check_formats(format, tables=True)
    with errors.status("reading scores, computing findings …"):
        evidence = read(
            *sources,
            apart=apart,
            study=study,
            facts=facts,
            task_facts=task_facts,
            metric=metric,
            **says_of(columns, lower, scale, kind),
        )
        asked = None
        if before or after or since or column or value or exposed:
            asked = TestTaskOptions(
                before=before, after=after, since=since or SINCE, column=column, value=value, exposed=exposed
            )
        options = ReportOptions(
            test_task=asked,
            proxies=ProxyOptions(target, protocol=evidence.main or "direct") if target else None,
            baseline=baseline,
            history=read(*history) if history else None,
        )
        data = make_report(evidence, items=items, options=options)
        path = save_report(data, output)
    print_notes(data.evidence)
    with errors.status("drawing figures …"):
        drawn = draw_figures(data.named().values(), figures, format, titles=not no_titles)
    if as_json:
        written = {"report": str(path), "bytes": path.stat().st_size, "figures": [str(p) for p in drawn]}
        print_json(written | {"findings": list(data.named()), "problem": data.problem})
        return
    console.print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True, markup=False)
