"""Scores compared, shown and carried: ``compare``, ``report``, ``papers reproduce``, ``export``."""

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
from potentia.cli.app import app, is_readable, is_source, papers
from potentia.cli.command import command
from potentia.cli.option_groups import (
    DEFAULT_STORE,
    ColumnFile,
    Figures,
    OptionalText,
    OutputOptions,
    ReadModels,
    ReadProtocols,
    ReadTasks,
    Sources,
    StudyCellOptions,
    StudyNames,
    TableEvidenceOptions,
    open_evidence,
)
from potentia.cli.output import (
    console,
    draw_figures,
    error_console,
    is_quiet,
    print_answer,
    print_findings,
    print_json,
    print_lines,
    print_notes,
    print_table,
    print_tables_and_sentences,
    read_figure_targets,
)
from potentia.errors import InputError, without_password
from potentia.extensions import ExtensionKind, list_extensions, load_extension
from potentia.values.findings import Table
from potentia.values.protocol import Protocol
from potentia.values.wording import set_signs, shorten_to_end

if TYPE_CHECKING:
    from potentia.analysis.rankings import ModelComparison
    from potentia.formats import TableDescription

Matrices = Mapping[Protocol, "potentia.ScoreMatrix"]
MAX_PROMPT_CHARACTERS = 160  # of a prompt's end


@dataclass(frozen=True, kw_only=True)
class CompareOptions(StudyCellOptions):
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
            metavar="N",
            help="Show N examples of each task that only one of the two gets right.",
        ),
    ] = 0
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Say whether the two are as good as each other within this difference of scores, such as 0.01.",
        ),
    ] = None


@command(app, "compare", CompareOptions)
def compare(options: CompareOptions) -> None:
    """Say which of two models is better on each task, and whether that is real: paired, example by example.

    Examples:
      potentia compare SmolLM2-135M pythia-160m potentia.db

      potentia compare SmolLM2-135M pythia-160m potentia.db --tasks arc_easy --items 5

      potentia compare SmolLM2-135M SmolLM2-360M potentia.db --margin 0.01
    """
    first_model, second_model, source = _two_models_and_source(options.names)
    evidence = open_evidence(
        source,
        study=options.study,
        protocols=options.protocols,
        tasks=options.tasks,
    )
    comparison = potentia.analysis.rankings.find_pair(
        evidence, first_model, second_model, margin=options.margin
    )
    documents = _deciding_documents(evidence, comparison, options.items) if options.items else []
    if options.as_json:
        answer = {**comparison.to_dict(), "sentences": comparison.sentences()}
        if options.items:
            answer["items"] = documents
        print_json(answer)
        return
    print_tables_and_sentences(comparison.tables(), comparison.sentences())
    if options.items:
        _print_documents(documents, comparison)
    elif any(compared_task.documents for compared_task in comparison.tasks):
        print_lines("The examples that only one of them gets right: --items 5", style="dim")


def _two_models_and_source(arguments: list[str]) -> tuple[str, str, str]:
    """Tell the two models from the scores, which stand last, or first."""
    models = list(arguments)
    source = DEFAULT_STORE
    if len(models) > 2:
        source_is_first = is_source(models[0]) and not is_source(models[-1])
        source = models.pop(0 if source_is_first else -1)
    score_files = []
    for argument in models:
        is_database = "://" in argument
        if is_database or Path(argument).is_file():
            score_files.append(argument)
    if len(models) != 2 or score_files:
        named_source = score_files[0] if score_files else source
        raise InputError(
            "compare takes two models, then the scores", hint=f"potentia compare A B {named_source}"
        )
    return models[0], models[1], source


def _deciding_documents(
    evidence: potentia.Evidence, comparison: ModelComparison, max_documents: int
) -> list[dict[str, Any]]:
    """Return documents that one model alone gets right, with what both answered; so many of each kind and task."""
    key_by_cell = {(cell.protocol, cell.task, cell.model): cell.key for cell in evidence.cells()}
    documents = []
    for compared_task in comparison.tasks:
        first_key = key_by_cell.get((compared_task.protocol, compared_task.task, comparison.first))
        second_key = key_by_cell.get(
            (compared_task.protocol, compared_task.task, comparison.second)
        )
        if not compared_task.documents or first_key is None or second_key is None:
            continue
        first_items = {outcome.doc_id: outcome for outcome in evidence.items(first_key)}
        second_items = {outcome.doc_id: outcome for outcome in evidence.items(second_key)}
        right_model = [
            (document_number, comparison.first)
            for document_number in compared_task.first_only[:max_documents]
        ]
        right_model += [
            (document_number, comparison.second)
            for document_number in compared_task.second_only[:max_documents]
        ]
        for document_number, model in right_model:
            outcome = first_items[document_number]
            documents.append(
                {
                    "protocol": compared_task.protocol,
                    "task": compared_task.task,
                    "document": document_number,
                    "right": model,
                    "prompt": str((outcome.detail or {}).get("prompt", "")),
                    "gold": outcome.gold,
                    "first": outcome.prediction,
                    "second": second_items[document_number].prediction,
                }
            )
    return documents


def _print_documents(documents: list[dict[str, Any]], comparison: ModelComparison) -> None:
    short_name = dict(zip((comparison.first, comparison.second), comparison.names, strict=True))
    table_rows = [
        (
            document["protocol"].label,
            document["task"],
            document["document"],
            short_name[document["right"]],
            document["gold"],
            document["first"],
            document["second"],
            shorten_to_end(document["prompt"], MAX_PROMPT_CHARACTERS),
        )
        for document in documents
    ]
    column_names = (
        "protocol",
        "task",
        "example",
        "right",
        "gold",
        *comparison.names,
        "end of the prompt",
    )
    console.print()
    print_table(Table("Examples that only one of the two gets right", column_names, table_rows))


# --- report -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReportCommandOptions(TableEvidenceOptions):
    """The options of ``potentia report``."""

    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The HTML file.")
    ] = Path("report.html")
    tasks: ReadTasks = None
    models: ReadModels = None


@command(app, "report", ReportCommandOptions)
def report(options: ReportCommandOptions) -> None:
    """Write a report in one HTML file: the answer, scores, ranks, evidence, every result, and how it was made.

    The file needs no network and can be mailed. Its numbers are those of `potentia analyze rankings`.

    Examples:
      potentia report potentia.db -o report.html

      potentia report scores.csv --facts models.csv --figures figures.pdf
    """
    targets = options.figure_targets()
    with error_console.status("reading scores, computing findings …"):
        evidence = open_evidence(*options.sources, notes=False, **options.read_arguments())
        report_data = potentia.show.make_report(evidence)
        report_file = potentia.show.save_report(report_data, options.output)
    print_notes(report_data.evidence)
    with error_console.status("drawing figures …"):
        figures = draw_figures(report_data.findings_by_name().values(), targets)
    report_bytes = report_file.stat().st_size
    headline = potentia.show.make_answer(report_data).headline
    answer = {
        "answer": headline,
        "report": str(report_file),
        "bytes": report_bytes,
        "figures": [str(figure) for figure in figures],
        "findings": list(report_data.findings_by_name()),
        "problem": report_data.problem,
    }
    file_line = f"Report: {report_file} ({report_bytes / 1e6:.1f} MB)"
    print_answer(options.as_json, answer, set_signs(headline), file_line)


# --- reproduce --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(OutputOptions):
    """The options of ``potentia papers reproduce``."""

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
            metavar="FOLDER",
            help="Test task: a clone of the authors' repository, or its folder notebooks/evaluations.",
        ),
    ] = None
    figures: Figures = None


@command(papers, "reproduce", ReproduceOptions)
def reproduce(options: ReproduceOptions) -> None:
    """Print every number of a paper beside the same number from the published scores, or from yours.

    Examples:
      potentia papers reproduce train-before-test all_results.json --figures figures.pdf

      potentia papers reproduce test-task --evaluations training-on-the-test-task

      potentia papers reproduce proxy

      potentia papers reproduce bose
    """
    papers = list_extensions(ExtensionKind.REPRODUCTION)
    if options.paper not in papers:
        raise InputError(f"no paper {options.paper!r}", hint=f"one of: {', '.join(papers)}")
    paper: PaperReproduction = load_extension(ExtensionKind.REPRODUCTION, options.paper)
    evaluations_replace_files = paper.evaluations_suffice and options.evaluations is not None
    if options.evaluations is not None and not paper.evaluations_suffice:
        raise InputError(f"{options.paper} reads no folder of evaluations", hint="leave it out")
    needs_files = bool(options.files) or not evaluations_replace_files
    if needs_files and len(options.files) != len(paper.files):
        file_count = ("no files", "one file", "two files")[len(paper.files)]
        usage = " ".join(["potentia papers reproduce", options.paper, *paper.files])
        if paper.evaluations_suffice:
            file_count += ", or --evaluations FOLDER alone"
            usage += f"; or: potentia papers reproduce {options.paper} --evaluations FOLDER"
        raise InputError(f"{options.paper} takes {file_count}", hint=usage)
    for file in options.files:
        if not is_readable(file):
            raise InputError(
                "there is no such file", where=without_password(file), hint=paper.where_published
            )
    targets = read_figure_targets(options.figures)
    finding = paper.reproduce(
        ReproductionRequest(
            files=tuple(options.files),
            evaluations=options.evaluations,
        )
    )
    # This paper's finding is the whole document; those of the others stand under the paper's name.
    if options.as_json and options.paper == "train-before-test":
        print_json(finding)
    elif is_quiet() and not options.as_json and hasattr(finding, "summarize"):
        print_table(finding.summarize())
    else:
        print_findings({options.paper: finding}, as_json=options.as_json)
    draw_figures([finding], targets)


# --- export -----------------------------------------------------------------------------------------------------------

STORE = "store"
TRACKERS = ("tensorboard", "wandb", "mlflow")
STORE_SUFFIXES = (".db", ".sqlite", ".sqlite3")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(OutputOptions):
    """The options of ``potentia export``."""

    sources: Sources = (DEFAULT_STORE,)  # type: ignore[assignment]  # typer gives a list
    output: Annotated[
        OptionalText,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file, folder or store to write; - prints.",
        ),
    ] = None
    to: Annotated[
        OptionalText,
        typer.Option(
            metavar="FORMAT",
            help="csv, parquet, markdown, latex, lm-eval, every-eval-ever, hub, store, tensorboard,"
            " wandb, mlflow; by default the file's name decides.",
        ),
    ] = None
    study: StudyNames = None
    protocols: ReadProtocols = None
    columns: ColumnFile = None

    @property
    def is_to_store(self) -> bool:
        """Whether the scores go into a store."""
        if self.to is not None or self.output is None:
            return self.to == STORE
        return "://" in self.output or Path(self.output).suffix in STORE_SUFFIXES

    def describe_table(self) -> TableDescription:
        """Return what the user says of the scores."""
        if self.columns is None:
            return potentia.formats.TableDescription()
        return potentia.formats.TableDescription.from_file(self.columns)


@command(app, "export", ExportOptions)
def export(options: ExportOptions) -> None:
    """Write scores as a table, a leaderboard or lm-eval results; into a store; or send curves to a tracker.

    Examples:
      potentia export potentia.db -o scores.csv

      potentia export potentia.db -o leaderboard.tex --protocol train_before_test

      potentia export results/ scores.csv -o potentia.db

      potentia export potentia.db --to tensorboard -o tracks
    """
    if options.to in TRACKERS:
        _send_to_tracker(options, str(options.to))
        return
    if options.output is None:
        raise InputError(
            "say where the scores go", hint="potentia export potentia.db -o scores.csv"
        )
    if options.is_to_store:
        _import_scores(options, options.output)
        return
    _write_scores(options, options.output)


def _write_scores(options: ExportOptions, output: str) -> None:
    """Write scores as files, or to standard output."""
    evidence = open_evidence(
        *options.sources,
        study=options.study,
        protocols=options.protocols,
        columns=options.columns,
    )
    matrices = evidence.scores
    if output == "-":
        _print_scores_as(matrices, options.to or "csv")
        return
    files = potentia.formats.write_scores(
        matrices, Path(output), options.to, items=evidence.items_of
    )
    sizes = {}
    descriptions = []
    for protocol, matrix in matrices.items():
        sizes[protocol] = {"models": len(matrix.models), "tasks": len(matrix.tasks)}
        descriptions.append(f"{protocol} ({len(matrix.models)} × {len(matrix.tasks)})")
    written_to = str(files[0]) if len(files) == 1 else f"{len(files)} files in {output}"
    print_answer(
        options.as_json,
        {"files": [str(file) for file in files], "protocols": sizes},
        f"{', '.join(descriptions)}, models × tasks → {written_to}",
    )


def _import_scores(options: ExportOptions, output: str) -> None:
    """Put scores measured elsewhere into a store; everything is read before anything is written."""
    description = options.describe_table()
    parts_by_source = [
        (source, _read_source(source, options, description)) for source in options.sources
    ]
    imported = []
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    with potentia.store.Store.open(output) as store:
        for source, parts in parts_by_source:
            shown_source = without_password(source)
            for matrices in parts:
                result = potentia.formats.import_scores(
                    store, matrices, source=shown_source, study_name=description.study
                )
                study = (shown_source, result.study)
                new_before, known_before = counts.get(study, (0, 0))
                counts[study] = (new_before + result.new, known_before + result.known)
                imported.append({"source": shown_source, **vars(result)})
    shown_store = without_password(output)
    table_rows = [(*row_names, *numbers) for row_names, numbers in counts.items()]
    table = Table(
        f"into {shown_store}", ("source", "study", "new results", "known before"), table_rows
    )
    print_answer(options.as_json, {"store": shown_store, "imported": imported}, table)


def _read_source(
    source: str, options: ExportOptions, description: TableDescription
) -> list[Matrices]:
    """Read the scores of one source, under the protocol and the names that were asked for."""
    evidence = open_evidence(
        source, study=options.study, protocols=options.protocols, columns=options.columns
    )
    parts: list[Matrices] = [evidence.scores]
    if description.protocol is not None:
        parts = _with_protocol(evidence.scores, description.protocol, source)
    if description.short_names:
        parts = [_with_short_names(evidence_part, source) for evidence_part in parts]
    return parts


def _with_protocol(scores: Matrices, protocol_name: str, source: str) -> list[Matrices]:
    """Say by which protocol a source was scored, whatever number of examples its files name for its tasks."""
    protocol = Protocol(protocol_name)
    tasks: list[str] = []
    for matrix in scores.values():
        tasks.extend(matrix.tasks)
    for task in tasks:
        if tasks.count(task) > 1:
            raise InputError(
                f"{task} was scored in several ways: {', '.join(scores)}",
                where=source,
                hint="leave out protocol: in --columns FILE",
            )
    return [{protocol: replace(matrix, protocol=protocol)} for matrix in scores.values()]


def _with_short_names(scores: Matrices, source: str) -> Matrices:
    """Call every model by the last part of its path."""
    renamed = {}
    for protocol, matrix in scores.items():
        model_by_name: dict[str, str] = {}
        for model in matrix.models:
            model_path = potentia.formats.name_model_by_path(model)
            short_name = model_path.rstrip("/").rpartition("/")[2] or model
            if short_name in model_by_name:
                raise InputError(
                    f"{model_by_name[short_name]} and {model} end alike",
                    where=source,
                    hint="import their folders one by one",
                )
            model_by_name[short_name] = model
        renamed[protocol] = replace(matrix, models=tuple(model_by_name))
    return renamed


def _send_to_tracker(options: ExportOptions, tracker: str) -> None:
    """Send a study's learning curves and scores to TensorBoard, W&B or MLflow."""
    source = options.sources[0]
    with potentia.store.Store.open(source, readonly=True) as store:
        studies = store.studies.read()
        if not studies:
            raise InputError(
                "the store holds no study", where=source, hint="run one first: potentia run STUDY"
            )
        chosen_study = studies[0]
        if options.study:
            chosen_study = potentia.store.find_study(store, options.study[0])
        value_counts = potentia.integrations.send_to_tracker(
            store, chosen_study.key, to=tracker, folder=Path(options.output or "potentia-tracks")
        )
    total = sum(value_counts.values())
    print_answer(
        options.as_json,
        {"study": chosen_study.name, "to": tracker, "values": value_counts},
        f"{total} values of {len(value_counts)} models of {chosen_study.name} sent to {tracker}",
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
