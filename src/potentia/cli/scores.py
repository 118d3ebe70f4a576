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
from potentia.cli.app import app, is_source, papers
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
    first, second, source = _two_models_and_source(options.names)
    evidence = open_evidence(
        source,
        study=options.study,
        protocols=options.protocols,
        tasks=options.tasks,
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
        print_lines("The examples that only one of them gets right: --items 5", style="dim")


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
    print_table(Table("Examples that only one of the two gets right", columns, rows))


def _end_of_prompt(prompt: str) -> str:
    text = " ".join(prompt.split())
    if len(text) <= MAX_PROMPT_CHARACTERS:
        return text
    return "… " + text[-MAX_PROMPT_CHARACTERS:]


# --- report -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReportCommandOptions(TableEvidenceOptions):
    """The options of ``potentia report``."""

    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The HTML file.")
    ] = Path("report.html")
    tasks: ReadTasks = None
    models: ReadModels = None
    items: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Examples of each result to show, half of them wrong; else 40."
        ),
    ] = None


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
        data = potentia.show.make_report(evidence, items=options.items)
        report_file = potentia.show.save_report(data, options.output)
    print_notes(data.evidence)
    with error_console.status("drawing figures …"):
        figures = draw_figures(data.named().values(), targets)
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
      potentia papers reproduce train-before-test train_before_test_scores.csv --figures figures.pdf

      potentia papers reproduce test-task --evaluations training-on-the-test-task

      potentia papers reproduce proxy

      potentia papers reproduce bose
    """
    papers = list_extensions(ExtensionKind.REPRODUCTION)
    if options.paper not in papers:
        raise InputError(f"no paper {options.paper!r}", hint=f"one of: {', '.join(papers)}")
    paper: PaperReproduction = load_extension(ExtensionKind.REPRODUCTION, options.paper)
    has_evaluations = paper.evaluations_suffice and options.evaluations is not None
    needs_files = bool(options.files) or not has_evaluations
    if needs_files and len(options.files) != len(paper.files):
        count = ("no files", "one file", "two files")[len(paper.files)]
        usage = " ".join(["potentia papers reproduce", options.paper, *paper.files])
        if paper.evaluations_suffice:
            count += ", or --evaluations FOLDER alone"
            usage += f"; or: potentia papers reproduce {options.paper} --evaluations FOLDER"
        raise InputError(f"{options.paper} takes {count}", hint=usage)
    targets = read_figure_targets(options.figures)
    finding = paper.reproduce(
        ReproductionRequest(
            files=tuple(options.files),
            evaluations=options.evaluations,
        )
    )
    if options.as_json and options.paper == "train-before-test":
        print_json(finding)
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
            " wandb, mlflow; else by the file's name.",
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
                    store, matrices, source=shown_source, name=description.study
                )
                new, known = counts.get((shown_source, result.study), (0, 0))
                counts[shown_source, result.study] = (new + result.new, known + result.known)
                imported.append({"source": shown_source, **vars(result)})
    shown_store = without_password(output)
    rows = [(*names, *numbers) for names, numbers in counts.items()]
    table = Table(f"into {shown_store}", ("source", "study", "new results", "known before"), rows)
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
        parts = [_with_short_names(part, source) for part in parts]
    return parts


def _with_protocol(scores: Matrices, protocol_name: str, source: str) -> list[Matrices]:
    """Say by which protocol a source was scored, whatever number of examples its files name for its tasks."""
    protocol = Protocol(protocol_name)
    tasks = [task for matrix in scores.values() for task in matrix.tasks]
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


def _send_to_tracker(options: ExportOptions, tracker: str) -> None:
    """Send a study's learning curves and scores to TensorBoard, W&B or MLflow."""
    source = options.sources[0]
    with potentia.store.Store.open(source, readonly=True) as store:
        study_names = [study.name for study in store.studies.read()]
        if not study_names:
            raise InputError(
                "the store holds no study", where=source, hint="run one first: potentia run STUDY"
            )
        study = options.study[0] if options.study else study_names[0]
        value_counts = potentia.integrations.send_to_tracker(
            store, study, to=tracker, folder=Path(options.output or "potentia-tracks")
        )
    total = sum(value_counts.values())
    print_answer(
        options.as_json,
        {"study": study, "to": tracker, "values": value_counts},
        f"{total} values of {len(value_counts)} models of {study} sent to {tracker}",
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
