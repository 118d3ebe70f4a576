"""Scores read, compared, shown and carried: ``compare``, ``report``, ``reproduce``, ``import``, ``export``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import potentia
from potentia.analysis.registration import PaperReproduction, ReproductionRequest
from potentia.cli import options as shared
from potentia.cli import output as out
from potentia.cli.app import app, is_source
from potentia.cli.options import argument, command, filled, flag, option, output, path, some
from potentia.errors import InputError, without_password
from potentia.extensions import ExtensionKind, list_extensions, load_extension
from potentia.values.findings import Table
from potentia.values.protocol import Protocol

EXCERPT = 160  # characters of a prompt's end


@command(
    app,
    "compare",
    given=argument(
        "Two models, by name or a part of it; and a store, or any scores.", "A B SOURCE", list[str]
    ),
    items=option(
        "Show this many documents of each task that one of the two alone gets right.", int, 0, min=0
    ),
    **shared.WHICH,
)
def compare(asked: Any) -> None:
    """Say which of two models is better on each task, and whether that is real: paired, document by document.

    Examples:
      potentia compare SmolLM2-135M pythia-160m potentia.db

      potentia compare SmolLM2-135M pythia-160m potentia.db --tasks arc_easy --items 5
    """
    first, second, source = _two_models(asked.given)
    evidence = out.opened(source, **some(asked, shared.WHICH))
    pair = potentia.analysis.rankings.find_pair(evidence, first, second)
    documents = _documents(evidence, pair, asked.items) if asked.items else []
    if asked.as_json:
        shown = {"items": documents} if asked.items else {}
        out.print_json({**pair.to_dict(), "sentences": pair.sentences(), **shown})
        return
    out.print_told(pair.tables(), pair.sentences())
    if asked.items:
        _print_documents(documents, pair)
    elif any(part.documents for part in pair.tasks):
        out.say("The documents that tell them apart: --items 5", style="dim")


def _two_models(given: list[str]) -> tuple[str, str, str]:
    """Tell the two models from the scores, which stand last, or first."""
    names, source = list(given), shared.STORE
    if len(names) > 2:
        source = names.pop(0 if is_source(names[0]) and not is_source(names[-1]) else -1)
    scores = [name for name in names if "://" in name or Path(name).is_file()]
    if len(names) != 2 or scores:
        hint = f"potentia compare A B {(scores or [source])[0]}"
        raise InputError("compare takes two models, then the scores", hint=hint)
    return names[0], names[1], source


def _documents(
    evidence: potentia.Evidence, pair: potentia.analysis.rankings.ModelComparison, most: int
) -> list[dict[str, Any]]:
    """Return documents that one model alone gets right, each with what both said; ``most`` of each kind and task."""
    keys = {(cell.protocol, cell.task, cell.model): cell.key for cell in evidence.cells()}
    found = []
    for part in (part for part in pair.tasks if part.documents):
        both = [keys.get((part.protocol, part.task, model)) for model in (pair.first, pair.second)]
        if None in both:
            continue
        one, two = ({item.doc_id: item for item in evidence.items(str(key))} for key in both)
        only = [(pair.first, number) for number in part.first_only[:most]]
        only += [(pair.second, number) for number in part.second_only[:most]]
        for right, number in only:
            item = one[number]
            found.append(
                {
                    "protocol": part.protocol,
                    "task": part.task,
                    "document": number,
                    "right": right,
                    "prompt": str((item.detail or {}).get("prompt", "")),
                    "gold": item.gold,
                    "first": item.prediction,
                    "second": two[number].prediction,
                }
            )
    return found


def _print_documents(
    found: list[dict[str, Any]], pair: potentia.analysis.rankings.ModelComparison
) -> None:
    names = dict(zip((pair.first, pair.second), pair.names, strict=True))
    rows = tuple(
        (
            d["protocol"].label,
            d["task"],
            d["document"],
            names[d["right"]],
            d["gold"],
            d["first"],
            d["second"],
            _end(d["prompt"]),
        )
        for d in found
    )
    columns = ("protocol", "task", "document", "right", "gold", *pair.names, "end of the prompt")
    out.console.print()
    out.print_table(Table("Documents that one of the two alone gets right", columns, rows))


def _end(prompt: str) -> str:
    text = " ".join(prompt.split())
    return text if len(text) <= EXCERPT else "… " + text[-EXCERPT:]


@command(
    app,
    "report",
    sources=shared.SOURCES,
    output=output("The HTML file.", Path("report.html")),
    items=option(
        "Items of each cell to show, half of them wrong; by default up to 40.",
        int | None,
        None,
        min=0,
    ),
    target=option("Show proxies of this task: the one to predict."),
    baseline=shared.BASELINE,
    history=shared.HISTORY,
    **shared.TEST_TASK,
    **shared.READ,
    **shared.OUT,
)
def report(asked: Any) -> None:
    """Write a report: the answer, scores, ranks, agreement, evidence, every cell, and how it was made, in one file.

    The file needs no network and can be mailed. Its numbers are those of `potentia analyze rankings`.

    Examples:
      potentia report potentia.db -o report.html

      potentia report scores.csv -o report.html --figures figures --format pdf

      potentia report scores.csv --facts models.csv --column language --value en+cn --target gsm8k

      potentia report staged.csv --facts models.csv --before base --after tuned_mc_3ep
    """
    out.check_formats(asked)
    with out.errors.status("reading scores, computing findings …"):
        evidence = out.opened(*asked.sources, notes=False, **some(asked, shared.READ))
        divided = any(some(asked, shared.TEST_TASK).values())
        wanted = potentia.show.ReportOptions(
            test_task=filled(potentia.papers.TestTaskOptions, asked) if divided else None,
            proxies=filled(potentia.papers.ProxyOptions, asked, protocol=evidence.main)
            if asked.target
            else None,
            baseline=asked.baseline,
            history=out.history(asked),
        )
        data = potentia.show.make_report(evidence, items=asked.items, options=wanted)
        if asked.baseline and not {"stability", "consistency"} & data.registered.keys():
            hint = "they are compared over checkpoints, or over base models and their instruct versions"
            raise InputError(
                f"no methods to compare with {asked.baseline}", where=evidence.source, hint=hint
            )
        place = potentia.show.save_report(data, asked.output)
    out.print_notes(data.evidence)
    with out.errors.status("drawing figures …"):
        drawn = out.draw_figures(data.named().values(), asked.figures, asked)
    size = place.stat().st_size
    written = {"report": str(place), "bytes": size, "figures": [str(p) for p in drawn]}
    written |= {"findings": list(data.named()), "problem": data.problem}
    out.answer(asked.as_json, written, f"{place} ({size / 1e6:.1f} MB)")


@command(
    app,
    "reproduce",
    paper=argument("train-before-test, test-task, proxy or bose.", "PAPER"),
    files=argument(
        "The published scores, for test-task also the facts; or your own store.",
        "FILE",
        list[str],
        (),
    ),
    evaluations=path(
        "Test task: the authors' tree of evaluations (base, e1, …, new_evals), for figures 3 to 18."
    ),
    resamples=shared.RESAMPLES,
    **shared.OUT,
)
def reproduce(asked: Any) -> None:
    """Print every number of a paper beside the same number from the published scores, or from yours.

    Examples:
      potentia reproduce train-before-test train_before_test_scores.csv --figures figures --format pdf png

      potentia reproduce test-task test_task_training_scores.csv test_task_training_models.csv --evaluations FOLDER

      potentia reproduce proxy

      potentia reproduce bose
    """
    papers = list_extensions(ExtensionKind.REPRODUCTION)
    if asked.paper not in papers:
        raise InputError(f"no paper {asked.paper!r}", hint=f"one of: {', '.join(papers)}")
    paper: PaperReproduction = load_extension(ExtensionKind.REPRODUCTION, asked.paper)
    if len(asked.files) != len(paper.files):
        count = ("no files", "one file", "two files")[len(paper.files)]
        hint = " ".join(["potentia reproduce", asked.paper, *paper.files])
        raise InputError(f"{asked.paper} takes {count}", hint=hint)
    out.check_formats(asked)
    request = ReproductionRequest(
        files=tuple(asked.files), evaluations=asked.evaluations, resamples=asked.resamples
    )
    finding = paper.reproduce(request)
    if asked.as_json and asked.paper == "train-before-test":
        out.print_json(finding)
    else:
        out.print_findings({asked.paper: finding}, as_json=asked.as_json)
    out.draw_figures([finding], asked.figures, asked)


@command(
    app,
    "import",
    sources=argument("Score files, folders of lm-eval results.", "SCORES", list[str]),
    store=option("SQLite file or database URL.", str, shared.STORE),
    name=option("The study they become; the file's name by default."),
    subtasks=flag("--subtasks", "Take the members of groups such as MMLU."),
    protocol=option("How all of these were scored, where the files do not say: direct, adjust, …"),
    short_names=flag(
        "--short-names", "Call a model by the last part of its path: base and tuned folders join."
    ),
    **shared.TABLE,
)
def import_scores(asked: Any) -> None:
    """Put scores measured elsewhere into a store: tidy CSV or Parquet, lm-eval results, the paper's JSON, a store.

    Examples:
      potentia import results/ scores.csv --store potentia.db

      potentia import base/ --name both --protocol direct --short-names

      potentia import tuned/ --name both --protocol adjust --short-names
    """
    how = some(asked, ("subtasks", *shared.TABLE))
    read = []
    for source in asked.sources:
        scores = out.opened(source, **how).scores
        parts = [scores] if asked.protocol is None else _as_protocol(scores, asked.protocol, source)
        read += [
            (source, _short_named(part, source) if asked.short_names else part) for part in parts
        ]
    imported = []
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    with potentia.store.Store.open(asked.store) as into:
        for source, scores in read:
            shown = without_password(source)
            done = potentia.formats.import_scores(into, scores, source=shown, name=asked.name)
            new, known = counts.get((shown, done.study), (0, 0))
            counts[shown, done.study] = new + done.new, known + done.known
            imported.append({"source": shown, **vars(done)})
    where = without_password(asked.store)
    rows = tuple((*place, *numbers) for place, numbers in counts.items())
    table = Table(f"into {where}", ("source", "study", "new cells", "known before"), rows)
    out.answer(asked.as_json, {"store": where, "imported": imported}, table)


def _as_protocol(
    scores: Mapping[Protocol, potentia.ScoreMatrix], name: str, source: str
) -> list[Mapping[Protocol, potentia.ScoreMatrix]]:
    """Say by which protocol a source was scored, whatever number of examples its files name for its tasks."""
    chosen = Protocol(name)
    tasks = [task for matrix in scores.values() for task in matrix.tasks]
    if twice := next((task for task in tasks if tasks.count(task) > 1), None):
        several = ", ".join(scores)
        raise InputError(
            f"{twice} was scored in several ways: {several}",
            where=source,
            hint="leave out --protocol",
        )
    return [{chosen: replace(matrix, protocol=chosen)} for matrix in scores.values()]


def _short_named(
    scores: Mapping[Protocol, potentia.ScoreMatrix], source: str
) -> dict[Protocol, potentia.ScoreMatrix]:
    """Call every model by the last part of its path."""
    made = {}
    for protocol, matrix in scores.items():
        names = tuple(model.rstrip("/").rpartition("/")[2] or model for model in matrix.models)
        if twice := next((name for name in names if names.count(name) > 1), None):
            both = [
                model for model, name in zip(matrix.models, names, strict=True) if name == twice
            ]
            raise InputError(
                f"{both[0]} and {both[1]} end alike",
                where=source,
                hint="import their folders one by one",
            )
        made[protocol] = replace(matrix, models=names)
    return made


@command(
    app,
    "export",
    source=argument("A store, or any score file.", "STORE"),
    output=output("The file, a folder for lm-eval, or - to print."),
    format=option(
        "csv, parquet, lm-eval, every-eval-ever, hub, markdown or latex; else by the file's name."
    ),
    study=shared.READ["study"],
    protocols=shared.READ["protocols"],
    **shared.TABLE,
)
def export(asked: Any) -> None:
    """Write scores as a table, as lm-eval results, or as a leaderboard.

    Examples:
      potentia export potentia.db -o scores.csv

      potentia export potentia.db -o leaderboard.tex --protocol train_before_test

      potentia export potentia.db -o - --format markdown

      potentia export potentia.db -o travel --format every-eval-ever
    """
    evidence = out.opened(asked.source, **some(asked, ("study", "protocols", *shared.TABLE)))
    matrices = evidence.scores
    if str(asked.output) == "-":
        _print_file(matrices, asked.format or "csv")
        return
    written = potentia.formats.write_scores(
        matrices, asked.output, asked.format, items=evidence.items_of
    )
    sizes = {name: {"models": len(m.models), "tasks": len(m.tasks)} for name, m in matrices.items()}
    what = ", ".join(f"{name} ({len(m.models)} × {len(m.tasks)})" for name, m in matrices.items())
    where = str(written[0]) if len(written) == 1 else f"{len(written)} files in {asked.output}"
    found = {"files": [str(file) for file in written], "protocols": sizes}
    out.answer(asked.as_json, found, f"{what}, models × tasks → {where}")


def _print_file(matrices: Mapping[Protocol, potentia.ScoreMatrix], format: str) -> None:
    """Write the one file of a format to standard output, byte for byte."""
    import sys
    import tempfile

    if format in ("lm-eval", "every-eval-ever", "hub"):
        raise InputError(f"{format} results are several files", hint="give a folder: -o results")
    with tempfile.TemporaryDirectory() as folder:
        (file,) = potentia.formats.write_scores(matrices, Path(folder) / "scores", format)
        sys.stdout.buffer.write(file.read_bytes())
        sys.stdout.flush()
