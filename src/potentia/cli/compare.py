"""``potentia compare``: two models on the same documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from potentia.cli.app import app
from potentia.cli.output import Metric, Study, console, print_json, print_notes, print_table
from potentia.values.findings import Table

if TYPE_CHECKING:
    from potentia.analysis.rankings import Pair
    from potentia.evidence import Evidence

EXCERPT = 160  # characters of a prompt's end


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A model, by name or a part of it.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other model.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A store, or any scores.")] = "potentia.db",
    tasks: Annotated[list[str] | None, typer.Option(help="Only these tasks.")] = None,
    protocol: Annotated[
        list[str] | None, typer.Option("--protocol", "--protocols", help="Only these protocols.")
    ] = None,
    items: Annotated[
        int, typer.Option(min=0, help="Show this many documents of each task that one of the two alone gets right.")
    ] = 0,
    study: Study = None,
    metric: Metric = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the documents.")] = False,
) -> None:
    """Say which of two models is better on each task, and whether that is real: paired, document by document.

    Examples:
      potentia compare SmolLM2-135M pythia-160m potentia.db

      potentia compare SmolLM2-135M pythia-160m potentia.db --tasks arc_easy --items 5
    """
    from potentia.analysis.rankings import find_pair
    from potentia.evidence import read

    evidence = read(source, study=study, metric=metric, protocols=protocol, tasks=tasks)
    print_notes(evidence)
    pair = find_pair(evidence, first, second)
    if as_json:
        shown = {"items": _documents(evidence, pair, items)} if items else {}
        print_json({**pair.to_dict(), "sentences": pair.sentences(), **shown})
        return
    for table in pair.tables():
        print_table(table)
    for sentence in pair.sentences():
        console.print(sentence, markup=False)
    if items:
        _print_documents(_documents(evidence, pair, items), pair)
    elif any(part.documents for part in pair.tasks):
        console.print("The documents that tell them apart: --items 5", style="dim")


def _documents(evidence: Evidence, pair: Pair, most: int) -> list[dict[str, Any]]:
    """Return documents that one model alone gets right, each with what both said; ``most`` of each kind and task."""
    wanted = {(part.protocol, part.task) for part in pair.tasks if part.documents}
    cells: dict[tuple[str, str, str], str] = {
        (cell.protocol, cell.task, cell.model): cell.key
        for cell in evidence.cells()
        if cell.model in (pair.first, pair.second) and (cell.protocol, cell.task) in wanted
    }
    found = []
    for part in pair.tasks:
        keys = [cells.get((part.protocol, part.task, model)) for model in (pair.first, pair.second)]
        if not part.documents or None in keys:
            continue
        one, two = ({item.doc_id: item for item in evidence.items(key)} for key in keys if key is not None)
        for right, documents in ((pair.first, part.first_only), (pair.second, part.second_only)):
            for number in documents[:most]:
                detail = one[number].detail or {}
                found.append(
                    {
                        "protocol": part.protocol,
                        "task": part.task,
                        "document": number,
                        "right": right,
                        "prompt": str(detail.get("prompt", "")),
                        "gold": one[number].gold,
                        "first": one[number].prediction,
                        "second": two[number].prediction,
                    }
                )
    return found


def _print_documents(found: list[dict[str, Any]], pair: Pair) -> None:
    names = dict(zip((pair.first, pair.second), pair.names, strict=True))
    rows = tuple(
        (d["protocol"].label, d["task"], d["document"], names[d["right"]], d["gold"], d["first"], d["second"],
         _end(d["prompt"]))
        for d in found
    )  # fmt: skip
    columns = ("protocol", "task", "document", "right", "gold", *pair.names, "end of the prompt")
    console.print()
    print_table(Table("Documents that one of the two alone gets right", columns, rows))


def _end(prompt: str) -> str:
    text = " ".join(prompt.split())
    return text if len(text) <= EXCERPT else "… " + text[-EXCERPT:]
