"""Scores read, compared, shown and carried: ``compare``, ``report``, ``reproduce``, ``import``, ``export``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import potentia
from potentia.analysis.registration import PaperReproduction, ReproductionRequest
from potentia.cli.analyses import values_of
from potentia.cli.app import app, is_source
from potentia.cli.command import command
from potentia.cli.option_groups import (
    DEFAULT_STORE,
    Baseline,
    FigureOptions,
    History,
    JsonOption,
    OptionalText,
    ReadProtocols,
    Resamples,
    Sources,
    StudyCellOptions,
    StudyNames,
    TableEvidenceOptions,
    TableOptions,
    TaskTrainingOptions,
    open_evidence,
    read_history,
)
from potentia.cli.output import (
    check_formats,
    console,
    draw_figures,
    error_console,
    print_answer,
    print_findings,
    print_json,
    print_lines,
    print_notes,
    print_table,
    print_tables_and_sentences,
)
from potentia.errors import InputError, without_password
from potentia.extensions import ExtensionKind, list_extensions, load_extension
from potentia.values.findings import Table
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    from potentia.analysis.rankings import ModelComparison

Matrices = Mapping[Protocol, "potentia.ScoreMatrix"]
MAX_PROMPT_CHARACTERS = 160  # of a prompt's end


@dataclass(frozen=True, kw_only=True)
class CompareOptions(StudyCellOptions, JsonOption):
    """The options of ``potentia compare``."""

    names: Annotated[
        list[str],
        typer.Argument(
            metavar="A B SOURCE",
            help="Two models, by name or a part of it; and a store, or any scores.",
        ),
    ]
    items: Annotated[
        int,
        typer.Option(
            min=0,
            help="Show this many documents of each task that one of the two alone gets right.",
        ),
    ] = 0
    margin: Annotated[
        float | None,
        typer.Option(
            help="Say whether the two are as good as each other within this difference of scores, such as 0.01.",
        ),
    ] = None


@command(app, "compare", CompareOptions)
def compare(options: CompareOptions) -> None:
    """Say which of two models is better on each task, and whether that is real: paired, document by document.

    Examples:
      potentia compare SmolLM2-135M pythia-160m potentia.db

      potentia compare SmolLM2-135M pythia-160m potentia.db --tasks arc_easy --items 5

      potentia compare SmolLM2-135M SmolLM2-360M potentia.db --margin 0.01
    """
    first, second, source = _two_models_and_source(options.names)
    evidence = open_evidence(
        source, study=options.study, protocols=options.protocols, tasks=options.tasks
    )
    pair = potentia.analysis.rankings.find_pair(evidence, first, second, margin=options.margin)
    documents = _deciding_documents(evidence, pair, options.items) if options.items else []
    if options.as_json:
        value = {**pair.to_dict(), "sentences": pair.sentences()}
        if options.items:
            value["items"] = documents
        print_json(value)
        return
    print_tables_and_sentences(pair.tables(), pair.sentences())
    if options.items:
        _print_documents(documents, pair)
    elif any(part.documents for part in pair.tasks):
        print_lines("The documents that tell them apart: --items 5", style="dim")


def _two_models_and_source(names: list[str]) -> tuple[str, str, str]:
    """Tell the two models from the scores, which stand last, or first."""
    models = list(names)
    source = DEFAULT_STORE
    if len(models) > 2:
        source_is_first = is_source(models[0]) and not is_source(models[-1])
        source = models.pop(0 if source_is_first else -1)
    score_files = [name for name in models if "://" in name or Path(name).is_file()]
    if len(models) != 2 or score_files:
        named_source = score_files[0] if score_files else source
        raise InputError(
            "compare takes two models, then the scores", hint=f"potentia compare A B {named_source}"
        )
    return models[0], models[1], source


def _deciding_documents(
    evidence: potentia.Evidence, pair: ModelComparison, max_documents: int
) -> list[dict[str, Any]]:
    """Return documents that one model alone gets right, with what both answered; so many of each kind and task."""
    key_by_cell = {(cell.protocol, cell.task, cell.model): cell.key for cell in evidence.cells()}
    documents = []
    for part in pair.tasks:
        first_key = key_by_cell.get((part.protocol, part.task, pair.first))
        second_key = key_by_cell.get((part.protocol, part.task, pair.second))
        if not part.documents or first_key is None or second_key is None:
            continue
        first_items = {item.doc_id: item for item in evidence.items(first_key)}
        second_items = {item.doc_id: item for item in evidence.items(second_key)}
        right_model = [(number, pair.first) for number in part.first_only[:max_documents]]
        right_model += [(number, pair.second) for number in part.second_only[:max_documents]]
        for number, model in right_model:
            item = first_items[number]
            documents.append(
                {
                    "protocol": part.protocol,
                    "task": part.task,
                    "document": number,
                    "right": model,
                    "prompt": str((item.detail or {}).get("prompt", "")),
                    "gold": item.gold,
                    "first": item.prediction,
                    "second": second_items[number].prediction,
                }
            )
    return documents


def _print_documents(documents: list[dict[str, Any]], pair: ModelComparison) -> None:
    short_name = dict(zip((pair.first, pair.second), pair.names, strict=True))
    rows = [
        (
            document["protocol"].label,
            document["task"],
            document["document"],
            short_name[document["right"]],
            document["gold"],
            document["first"],
            document["second"],
            _end_of_prompt(document["prompt"]),
        )
        for document in documents
    ]
    columns = ("protocol", "task", "document", "right", "gold", *pair.names, "end of the prompt")
    console.print()
    print_table(Table("Documents that one of the two alone gets right", columns, rows))


def _end_of_prompt(prompt: str) -> str:
    text = " ".join(prompt.split())
    if len(text) <= MAX_PROMPT_CHARACTERS:
        return text
    return "… " + text[-MAX_PROMPT_CHARACTERS:]


# --- report -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReportCommandOptions(TaskTrainingOptions, TableEvidenceOptions, FigureOptions, JsonOption):
    """The options of ``potentia report``."""

    sources: Sources = (DEFAULT_STORE,)  # type: ignore[assignment]  # typer gives a list
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path(
        "report.html"
    )
    items: Annotated[
        int | None,
        typer.Option(
            min=0, help="Items of each cell to show, half of them wrong; by default up to 40."
        ),
    ] = None
    target: Annotated[
        OptionalText, typer.Option(help="Show proxies of this task: the one to predict.")
    ] = None
    baseline: Baseline = None
    history: History = None

    def report_options(self, evidence: potentia.Evidence) -> potentia.ReportOptions:
        """Return what the report is to show beyond its usual sections."""
        test_task = None
        if self.is_asked:
            test_task = values_of(potentia.papers.TestTaskOptions, self)
        proxies = None
        if self.target:
            proxies = values_of(potentia.papers.ProxyOptions, self, protocol=evidence.main)
        return potentia.ReportOptions(
            test_task=test_task,
            proxies=proxies,
            baseline=self.baseline,
            history=read_history(self.history),
        )


@command(app, "report", ReportCommandOptions)
def report(options: ReportCommandOptions) -> None:
    """Write a report: the answer, scores, ranks, agreement, evidence, every cell, and how it was made, in one file.

    The file needs no network and can be mailed. Its numbers are those of `potentia analyze rankings`.

    Examples:
      potentia report potentia.db -o report.html

      potentia report scores.csv -o report.html --figures figures --format pdf

      potentia report scores.csv --facts models.csv --column language --value en+cn --target gsm8k

      potentia report staged.csv --facts models.csv --before base --after tuned_mc_3ep
    """
    check_formats(options)
    with error_console.status("reading scores, computing findings …"):
        evidence = open_evidence(*options.sources, notes=False, **options.read_arguments())
        data = potentia.show.make_report(
            evidence, items=options.items, options=options.report_options(evidence)
        )
        if options.baseline and not {"stability", "consistency"} & data.registered.keys():
            raise InputError(
                f"no methods to compare with {options.baseline}",
                where=evidence.source,
                hint="they are compared over checkpoints, or over base models and their instruct versions",
            )
        report_file = potentia.show.save_report(data, options.output)
    print_notes(data.evidence)
    with error_console.status("drawing figures …"):
        figures = draw_figures(data.named().values(), options.figures, options)
    size = report_file.stat().st_size
    value = {
        "report": str(report_file),
        "bytes": size,
        "figures": [str(figure) for figure in figures],
        "findings": list(data.named()),
        "problem": data.problem,
    }
    print_answer(options.as_json, value, f"{report_file} ({size / 1e6:.1f} MB)")


# --- reproduce --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(FigureOptions, JsonOption):
    """The options of ``potentia reproduce``."""

    paper: Annotated[
        str,
        typer.Argument(metavar="PAPER", help="train-before-test, test-task, proxy or bose."),
    ]
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="The published scores, for test-task also the facts; or your own store.",
        ),
    ] = ()  # type: ignore[assignment]  # typer gives a list
    evaluations: Annotated[
        Path | None,
        typer.Option(
            help="Test task: a clone of the authors' repository, or its folder notebooks/evaluations."
        ),
    ] = None
    resamples: Resamples = None


@command(app, "reproduce", ReproduceOptions)
def reproduce(options: ReproduceOptions) -> None:
    """Print every number of a paper beside the same number from the published scores, or from yours.

    Examples:
      potentia reproduce train-before-test train_before_test_scores.csv --figures figures --format pdf png

      potentia reproduce test-task --evaluations training-on-the-test-task

      potentia reproduce proxy

      potentia reproduce bose
    """
    papers = list_extensions(ExtensionKind.REPRODUCTION)
    if options.paper not in papers:
        raise InputError(f"no paper {options.paper!r}", hint=f"one of: {', '.join(papers)}")
    paper: PaperReproduction = load_extension(ExtensionKind.REPRODUCTION, options.paper)
    has_evaluations = paper.evaluations_suffice and options.evaluations is not None
    needs_files = bool(options.files) or not has_evaluations
    if needs_files and len(options.files) != len(paper.files):
        count = ("no files", "one file", "two files")[len(paper.files)]
        usage = " ".join(["potentia reproduce", options.paper, *paper.files])
        if paper.evaluations_suffice:
            count += ", or --evaluations FOLDER alone"
            usage += f"; or: potentia reproduce {options.paper} --evaluations FOLDER"
        raise InputError(f"{options.paper} takes {count}", hint=usage)
    check_formats(options)
    finding = paper.reproduce(
        ReproductionRequest(
            files=tuple(options.files),
            evaluations=options.evaluations,
            resamples=options.resamples,
        )
    )
    if options.as_json and options.paper == "train-before-test":
        print_json(finding)
    else:
        print_findings({options.paper: finding}, as_json=options.as_json)
    draw_figures([finding], options.figures, options)


# --- import and export ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ImportOptions(TableOptions, JsonOption):
    """The options of ``potentia import``."""

    sources: Annotated[
        list[str],
        typer.Argument(metavar="SCORES", help="Score files, folders of lm-eval results."),
    ]
    store: Annotated[str, typer.Option(help="SQLite file or database URL.")] = DEFAULT_STORE
    name: Annotated[
        OptionalText, typer.Option(help="The study they become; the file's name by default.")
    ] = None
    subtasks: Annotated[
        bool, typer.Option("--subtasks", help="Take the members of groups such as MMLU.")
    ] = False
    protocol: Annotated[
        OptionalText,
        typer.Option(
            help="How all of these were scored, where the files do not say: direct, adjust, …"
        ),
    ] = None
    short_names: Annotated[
        bool,
        typer.Option(
            "--short-names",
            help="Call a model by the last part of its path: base and tuned folders join.",
        ),
    ] = False

    def read_source(self, source: str) -> list[Matrices]:
        """Read the scores of one source, under the protocol and the names that were asked for."""
        scores = open_evidence(source, subtasks=self.subtasks, **self.table_arguments()).scores
        parts: list[Matrices] = [scores]
        if self.protocol is not None:
            parts = _with_protocol(scores, self.protocol, source)
        if self.short_names:
            parts = [_with_short_names(part, source) for part in parts]
        return parts


@command(app, "import", ImportOptions)
def import_scores(options: ImportOptions) -> None:
    """Put scores measured elsewhere into a store: tidy CSV or Parquet, lm-eval results, the paper's JSON, a store.

    Examples:
      potentia import results/ scores.csv --store potentia.db

      potentia import base/ --name both --protocol direct --short-names

      potentia import tuned/ --name both --protocol adjust --short-names
    """
    # Everything is read before anything is written.
    parts_by_source = [(source, options.read_source(source)) for source in options.sources]
    imported = []
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    with potentia.store.Store.open(options.store) as store:
        for source, parts in parts_by_source:
            shown_source = without_password(source)
            for matrices in parts:
                result = potentia.formats.import_scores(
                    store, matrices, source=shown_source, name=options.name
                )
                new, known = counts.get((shown_source, result.study), (0, 0))
                counts[shown_source, result.study] = (new + result.new, known + result.known)
                imported.append({"source": shown_source, **vars(result)})
    shown_store = without_password(options.store)
    rows = [(*names, *numbers) for names, numbers in counts.items()]
    table = Table(f"into {shown_store}", ("source", "study", "new cells", "known before"), rows)
    print_answer(options.as_json, {"store": shown_store, "imported": imported}, table)


def _with_protocol(scores: Matrices, protocol_name: str, source: str) -> list[Matrices]:
    """Say by which protocol a source was scored, whatever number of examples its files name for its tasks."""
    protocol = Protocol(protocol_name)
    tasks = [task for matrix in scores.values() for task in matrix.tasks]
    for task in tasks:
        if tasks.count(task) > 1:
            raise InputError(
                f"{task} was scored in several ways: {', '.join(scores)}",
                where=source,
                hint="leave out --protocol",
            )
    return [{protocol: replace(matrix, protocol=protocol)} for matrix in scores.values()]


def _with_short_names(scores: Matrices, source: str) -> Matrices:
    """Call every model by the last part of its path."""
    renamed = {}
    for protocol, matrix in scores.items():
        model_by_name: dict[str, str] = {}
        for model in matrix.models:
            path = potentia.formats.name_model_by_path(model)
            name = path.rstrip("/").rpartition("/")[2] or model
            if name in model_by_name:
                raise InputError(
                    f"{model_by_name[name]} and {model} end alike",
                    where=source,
                    hint="import their folders one by one",
                )
            model_by_name[name] = model
        renamed[protocol] = replace(matrix, models=tuple(model_by_name))
    return renamed


@dataclass(frozen=True, kw_only=True)
class ExportOptions(TableOptions, JsonOption):
    """The options of ``potentia export``."""

    source: Annotated[str, typer.Argument(metavar="STORE", help="A store, or any score file.")]
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The file, a folder for lm-eval, or - to print."),
    ]
    format: Annotated[
        OptionalText,
        typer.Option(
            help="csv, parquet, lm-eval, every-eval-ever, hub, markdown or latex; else by the file's name."
        ),
    ] = None
    study: StudyNames = None
    protocols: ReadProtocols = None


@command(app, "export", ExportOptions)
def export(options: ExportOptions) -> None:
    """Write scores as a table, as lm-eval results, or as a leaderboard.

    Examples:
      potentia export potentia.db -o scores.csv

      potentia export potentia.db -o leaderboard.tex --protocol train_before_test

      potentia export potentia.db -o - --format markdown

      potentia export potentia.db -o travel --format every-eval-ever
    """
    evidence = open_evidence(
        options.source,
        study=options.study,
        protocols=options.protocols,
        **options.table_arguments(),
    )
    matrices = evidence.scores
    if str(options.output) == "-":
        _print_scores_as(matrices, options.format or "csv")
        return
    files = potentia.formats.write_scores(
        matrices, options.output, options.format, items=evidence.items_of
    )
    sizes = {}
    descriptions = []
    for protocol, matrix in matrices.items():
        sizes[protocol] = {"models": len(matrix.models), "tasks": len(matrix.tasks)}
        descriptions.append(f"{protocol} ({len(matrix.models)} × {len(matrix.tasks)})")
    written_to = str(files[0]) if len(files) == 1 else f"{len(files)} files in {options.output}"
    print_answer(
        options.as_json,
        {"files": [str(file) for file in files], "protocols": sizes},
        f"{', '.join(descriptions)}, models × tasks → {written_to}",
    )


def _print_scores_as(matrices: Matrices, file_format: str) -> None:
    """Write the one file of a format to standard output, byte for byte."""
    if file_format in ("lm-eval", "every-eval-ever", "hub"):
        raise InputError(
            f"{file_format} results are several files", hint="give a folder: -o results"
        )
    with tempfile.TemporaryDirectory() as folder:
        (file,) = potentia.formats.write_scores(matrices, Path(folder) / "scores", file_format)
        sys.stdout.buffer.write(file.read_bytes())
        sys.stdout.flush()
