"""What scores say: ``compare``, ``report``, ``serve``, ``reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potentia.cli import options
from potentia.cli.app import app
from potentia.cli.options import Figures, Formats, History, Json, OnlyProtocols, OnlyTasks, StorePath, Study
from potentia.cli.output import (
    answer,
    check_formats,
    console,
    draw_figures,
    errors,
    opened,
    print_json,
    print_notes,
    print_sentences,
    print_table,
    say,
)
from potentia.errors import InputError, MissingExtraError, without_password
from potentia.values.findings import Table, telling

if TYPE_CHECKING:
    from potentia.analysis.rankings import Pair
    from potentia.evidence import Evidence
    from potentia.values.findings import Finding

EXCERPT = 160  # characters of a prompt's end


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A model, by name or a part of it.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other model.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A store, or any scores.")] = "potentia.db",
    tasks: OnlyTasks = None,
    protocols: OnlyProtocols = None,
    items: Annotated[
        int, typer.Option(min=0, help="Show this many documents of each task that one of the two alone gets right.")
    ] = 0,
    study: Study = None,
    as_json: Json = False,
) -> None:
    """Say which of two models is better on each task, and whether that is real: paired, document by document.

    Examples:
      potentia compare SmolLM2-135M pythia-160m potentia.db

      potentia compare SmolLM2-135M pythia-160m potentia.db --tasks arc_easy --items 5
    """
    from potentia.analysis.rankings import find_pair

    evidence = opened(source, study=study, protocols=protocols, tasks=tasks)
    pair = find_pair(evidence, first, second)
    if as_json:
        shown = {"items": _documents(evidence, pair, items)} if items else {}
        print_json({**pair.to_dict(), "sentences": pair.sentences(), **shown})
        return
    for table in pair.tables():
        print_table(table)
    print_sentences(pair.sentences())
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
                found.append({
                    "protocol": part.protocol, "task": part.task, "document": number, "right": right,
                    "prompt": str(detail.get("prompt", "")), "gold": one[number].gold,
                    "first": one[number].prediction, "second": two[number].prediction,
                })  # fmt: skip
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


@app.command()
def report(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="STORE_OR_SCORES...", help="Stores or files of scores; several are joined."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path("report.html"),
    study: options.Study = None,
    columns: options.Map = None,
    lower: options.Lower = None,
    scale: options.Scale = None,
    kind: options.Kind = None,
    metric: options.Metric = None,
    apart: options.Apart = False,
    items: Annotated[
        int | None, typer.Option(min=0, help="Items of each cell to show, half of them wrong; by default up to 40.")
    ] = None,
    facts: options.Facts = None,
    task_facts: options.TaskFacts = None,
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
    history: options.History = None,
    figures: options.Figures = None,
    format: options.Formats = None,
    no_titles: options.NoTitles = False,
    as_json: options.Json = False,
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
        evidence = opened(
            *sources, notes=False, apart=apart, study=study, facts=facts, task_facts=task_facts, metric=metric,
            columns=columns, lower=lower, scale=scale, kind=kind,
        )  # fmt: skip
        asked = None
        if before or after or since or column or value or exposed:
            asked = TestTaskOptions(
                before=before, after=after, since=since or SINCE, column=column, value=value, exposed=exposed
            )
        wanted = ReportOptions(
            test_task=asked,
            proxies=ProxyOptions(target, protocol=evidence.main or "direct") if target else None,
            baseline=baseline,
            history=read(*history) if history else None,
        )
        data = make_report(evidence, items=items, options=wanted)
        path = save_report(data, output)
    print_notes(data.evidence)
    with errors.status("drawing figures …"):
        drawn = draw_figures(data.named().values(), figures, format, titles=not no_titles)
    size = path.stat().st_size
    written = {"report": str(path), "bytes": size, "figures": [str(p) for p in drawn]}
    answer(
        as_json, written | {"findings": list(data.named()), "problem": data.problem}, f"{path} ({size / 1e6:.1f} MB)"
    )


@app.command()
def serve(
    store: StorePath = "potentia.db",
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback asks for a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
    token: Annotated[
        str | None, typer.Option(envvar="POTENTIA_TOKEN", help="Token to ask for; made up where one is needed.")
    ] = None,
    history: History = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the board in a browser.")] = False,
) -> None:
    """Show running and finished studies in a browser: rows, lanes, curves, costs, failures, and every finding.

    The board only reads. On 127.0.0.1 it needs no token; on any other address nothing is served without one.

    Examples:
      potentia serve potentia.db

      potentia serve postgresql+psycopg://user@host/potentia --host 0.0.0.0 --token "$TOKEN"
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the live board needs FastAPI", hint="pip install 'potentia[web]'") from error
    from potentia.show.board.app import address, bind, choose_token
    from potentia.show.board.app import serve as run_server
    from potentia.store import Store

    Store.open(store, readonly=True).close()  # say at once what is wrong with it
    if history:
        from potentia.evidence import read

        read(*history)
    asked = choose_token(host, token)
    listener = bind(host, port)
    place = address(host, listener.getsockname()[1], asked)
    shown = address(host, listener.getsockname()[1], None) if token is not None else place  # a given one is known
    given = " (it asks for the token you gave)" if token is not None else ""
    say(f"the board of {without_password(store)} is at {shown}{given}")
    say("it only reads; Ctrl-C stops it", style="dim")
    if open_browser:
        typer.launch(place)
    run_server(store, listener, token=asked, history=tuple(history or ()))


FILES = {"train-before-test": (1, "SCORES"), "test-task": (2, "SCORES MODELS"), "proxy": (0, ""), "bose": (0, "")}


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="train-before-test, test-task, proxy or bose.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILES", help="The published scores, for test-task also the facts; or your own store."),
    ] = None,
    evaluations: Annotated[
        Path | None,
        typer.Option(help="Test task: the authors' tree of evaluations (base, e1, …, new_evals), for figures 3 to 18."),
    ] = None,
    resamples: Annotated[int | None, typer.Option(min=0, help="Bootstrap samples; else 1000, test-task 1999.")] = None,
    figures: Figures = None,
    format: Formats = None,
    as_json: Json = False,
) -> None:
    """Print every number of a paper beside the same number from the published scores, or from yours.

    Examples:
      potentia reproduce train-before-test train_before_test_scores.csv --figures figures --format pdf png

      potentia reproduce test-task test_task_training_scores.csv test_task_training_models.csv --evaluations FOLDER

      potentia reproduce proxy

      potentia reproduce bose
    """
    if paper not in FILES:
        raise InputError(f"no paper {paper!r}", hint=f"one of: {', '.join(FILES)}")
    count, names = FILES[paper]
    if len(files or ()) != count:
        raise InputError(
            f"{paper} takes {('no files', 'one file', 'two files')[count]}",
            hint=f"potentia reproduce {paper} {names}".rstrip(),
        )
    formats = check_formats(format, tables=True)
    found = _found(paper, files or [], evaluations, resamples)
    if as_json:
        print_json(found if paper == "train-before-test" else {paper: found.to_dict()})
    else:
        for table in filter(None, map(telling, found.tables())):
            print_table(table)
    draw_figures([found], figures, formats)


def _found(paper: str, files: list[str], evaluations: Path | None, resamples: int | None) -> Finding:
    from potentia import papers

    if paper == "proxy":
        return papers.reproduce_proxy()
    if paper == "bose":
        return papers.reproduce_bose()
    if paper == "train-before-test":
        from potentia.evidence import read

        return papers.reproduce_train_before_test(read(files[0]).scores, resamples=resamples or 1000)
    from potentia.analysis.test_task import Cohort
    from potentia.facts import read_facts
    from potentia.formats import StagedScores

    scores, facts = map(Path, files)
    tree = papers.Evaluations.read(evaluations) if evaluations is not None else None
    draws = 1999 if resamples is None else resamples
    cohort = Cohort.known(table=read_facts(facts))
    return papers.reproduce_task_training(StagedScores.read(scores), cohort, tree, draws=draws)
