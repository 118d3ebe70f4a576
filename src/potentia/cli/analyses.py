"""The ``potentia analyze`` commands: what each asks, and which function answers.

One builder gives each the same sources, options, output and figures. A command is a function from evidence and its
options to findings, under ``@analysis`` with the class of its options.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import potentia
from potentia.analysis.registration import AnalysisCommand
from potentia.cli.app import analyze
from potentia.cli.command import command
from potentia.cli.option_groups import (
    DEFAULT_STORE,
    DataFolder,
    EvidenceOptions,
    FigureOptions,
    History,
    JsonOption,
    OptionalText,
    Resamples,
    Sources,
    TableEvidenceOptions,
    open_evidence,
    read_history,
)
from potentia.cli.output import (
    check_formats,
    console,
    draw_figures,
    error_console,
    find_pretraining_runs,
    print_findings,
    print_json,
    print_lines,
    print_notes,
    print_scoreboard,
    print_table,
    print_tables_and_sentences,
)
from potentia.cli.registered import make_options_type
from potentia.errors import InputError, PotentiaError
from potentia.extensions import ExtensionKind, load_extensions
from potentia.values.findings import Finding, Findings, drop_empty_columns

if TYPE_CHECKING:
    from potentia.analysis.rankings import Rankings

NamedFindings = Mapping[str, Finding]
OptionsT = TypeVar("OptionsT", bound="StoreAnalysisOptions")
ResultT = TypeVar("ResultT", bound="Findings | NamedFindings")
ValuesT = TypeVar("ValuesT")
MAX_MODELS_SHOWN = 20  # of the score table
MAX_TRAIN_EXAMPLES = 50_000  # of a task that count, as a study uses them at most


@dataclass(frozen=True, kw_only=True)
class StoreAnalysisOptions(EvidenceOptions, FigureOptions, JsonOption):
    """The options of an analysis that no table can answer, only a store."""

    sources: Sources = (DEFAULT_STORE,)  # type: ignore[assignment]  # typer gives a list


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions(TableEvidenceOptions, StoreAnalysisOptions):
    """The options of an analysis of stores, tables and result files."""


def analysis(
    name: str,
    options_type: type[OptionsT],
    show: Callable[[ResultT, potentia.Evidence, OptionsT], None] | None = None,
    *,
    not_read: frozenset[str] = frozenset(),
) -> Callable[
    [Callable[[potentia.Evidence, OptionsT], ResultT]],
    Callable[[potentia.Evidence, OptionsT], ResultT],
]:
    """Make ``potentia analyze NAME`` of a function; its docstring is the help.

    The function gets the evidence and its options, and returns findings. ``show`` prints them in a way of its own.
    An option of the analysis that has the name of a common one takes its place; ``not_read`` names those, so that the
    evidence is not read by them.
    """

    def register(
        analyze_evidence: Callable[[potentia.Evidence, OptionsT], ResultT],
    ) -> Callable[[potentia.Evidence, OptionsT], ResultT]:
        def run_analysis(options: OptionsT) -> None:
            check_formats(options)
            read_arguments = {
                argument: value
                for argument, value in options.read_arguments().items()
                if argument not in not_read
            }
            evidence = open_evidence(*options.sources, notes=False, **read_arguments)
            groups = (evidence, *evidence.apart)
            json_groups = []
            for number, group in enumerate(groups, start=1):
                if evidence.apart and not options.as_json:
                    console.print(f"{number}. {group.name}", style="bold", markup=False)
                print_notes(group)
                result = analyze_evidence(group, options)
                findings = _named_findings(result)
                if options.as_json:
                    json_groups.append(_group_as_json(group, findings))
                elif show is not None:
                    show(result, group, options)
                else:
                    print_findings(findings)
                folder = options.figures
                if folder is not None and evidence.apart:
                    folder = folder / f"group-{number}"
                draw_figures(findings.values(), folder, options)
            if options.as_json:
                print_json({"apart": json_groups} if options.apart else json_groups[0]["findings"])

        run_analysis.__doc__ = analyze_evidence.__doc__
        command(analyze, name, options_type)(run_analysis)
        return analyze_evidence

    return register


def _named_findings(result: Findings | NamedFindings) -> NamedFindings:
    if isinstance(result, Findings):
        return result.named()
    return result


def _group_as_json(evidence: potentia.Evidence, findings: NamedFindings) -> dict[str, Any]:
    values = {name: finding.to_dict() for name, finding in findings.items()}
    return {"source": evidence.name, "notes": evidence.notes, "findings": values}


def values_of(values_type: type[ValuesT], options: object, **more: Any) -> ValuesT:
    """Make the values that an analysis takes of a command's options of the same names.

    What was not given keeps the default of the analysis.
    """
    values = {}
    for field in fields(values_type):  # type: ignore[arg-type]
        value = more.get(field.name, getattr(options, field.name, None))
        if value is not None:
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return values_type(**values)


# --- rankings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RankingsOptions(AnalysisOptions):
    """The options of ``potentia analyze rankings``."""

    align: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Two tasks whose rankings to align; else those that agree least."),
    ] = None
    exclude_flagged: Annotated[
        bool,
        typer.Option("--exclude-flagged", help="Leave out the tasks that the screening flags."),
    ] = False
    gaps: Annotated[
        str,
        typer.Option(
            help="Missing cells in components: leave out models, leave out tasks, or fill the mean."
        ),
    ] = "models"
    simultaneous: Annotated[
        bool,
        typer.Option(
            "--simultaneous", help="Rank intervals that hold for all models of a task together."
        ),
    ] = False
    resample: Annotated[
        str,
        typer.Option(
            help="What intervals draw: families or lineages of models where known, or models."
        ),
    ] = "families"
    resamples: Resamples = None
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level.")] = 0.95
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Print every table of every finding; else the scores and a summary."
        ),
    ] = False


def _print_rankings(
    rankings: Rankings, evidence: potentia.Evidence, options: RankingsOptions
) -> None:
    """Print the scores and a summary, or every table; of checkpoints, which are no rivals, the runs."""
    pretraining_runs = find_pretraining_runs(evidence)
    if pretraining_runs is not None:
        print_tables_and_sentences(
            pretraining_runs.tables()[:1],
            pretraining_runs.sentences(),
            pretraining_runs.headline(),
        )
        console.print()
    if pretraining_runs is None or options.everything:
        max_models = None if options.everything else MAX_MODELS_SHOWN
        print_scoreboard(rankings.scoreboard, max_models=max_models)
    findings = rankings.named()
    if options.everything:
        others = {name: found for name, found in findings.items() if name != "scoreboard"}
        print_findings(others)
        return
    console.print()
    for table in potentia.analysis.rankings.summarize_rankings(rankings):
        informative = drop_empty_columns(table)
        if informative is not None:
            print_table(informative)
    table_count = sum(len(finding.tables()) for finding in findings.values())
    source = shlex.quote(options.sources[0])
    print_lines(
        f"All {table_count} tables: --all. As a page: potentia report {source}", style="dim"
    )


@analysis("rankings", RankingsOptions, _print_rankings)
def rankings(evidence: potentia.Evidence, options: RankingsOptions) -> Rankings:
    """Say who is best and how sure that is, how far the tasks rank the models alike, and which differences are real.

    Examples:
      potentia analyze rankings potentia.db

      potentia analyze rankings scores.csv --all --figures figures --format pdf svg --no-titles

      potentia analyze rankings scores.csv --protocols direct train_before_test --exclude-flagged --json
    """
    known_treatments = potentia.analysis.rankings.GAPS
    if options.gaps not in known_treatments:
        raise InputError(
            f"no treatment of gaps {options.gaps!r}",
            hint=f"--gaps is one of: {', '.join(known_treatments)}",
        )
    ranking_options = values_of(potentia.RankingOptions, options)
    return potentia.analysis.rankings.find_rankings(evidence, ranking_options)


@dataclass(frozen=True, kw_only=True)
class OutlookOptions(StoreAnalysisOptions):
    """The options of ``potentia analyze outlook``."""

    history: History = None


@analysis("outlook", OutlookOptions)
def outlook(evidence: potentia.Evidence, options: OutlookOptions) -> NamedFindings:
    """Predict the cells that a study has not measured, and its final ranking: P(best), ranks with intervals.

    Report and board show the same. Predictions are in no other table.

    Example:
      potentia analyze outlook potentia.db
    """
    completion = potentia.analysis.completion.find_outlook(
        evidence, history=read_history(options.history)
    )
    if completion is None:
        store = options.sources[0]
        raise InputError(
            "every cell is measured: there is nothing to predict",
            where=store,
            hint=f"potentia analyze rankings {shlex.quote(store)}",
        )
    return {"completion": completion}


@analysis("few-tasks", AnalysisOptions)
def few_tasks(evidence: potentia.Evidence, options: AnalysisOptions) -> NamedFindings:
    """Choose tasks on half of the models and see how well they rank the others, against their cost.

    The scores are those of the protocol that ranks, or of the one that --protocol names.

    Example:
      potentia analyze few-tasks scores.csv --protocol train_before_test
    """
    if evidence.main is None or evidence.main not in evidence.scores:
        raise InputError(
            f"no scores of {evidence.main}",
            where=options.sources[0],
            hint=f"there are {', '.join(evidence.protocols)}",
        )
    background = evidence.background
    train_sizes = {
        task: min(examples, MAX_TRAIN_EXAMPLES)
        for task, examples in background.train_examples.items()
    }
    curve = potentia.analysis.planning.measure_task_curve(
        evidence.scores[evidence.main], costs=train_sizes, lineages=background.lineages
    )
    return {"few_tasks": curve}


# --- analyses of papers and other packages ----------------------------------------------------------------------------


def register_extension_analyses() -> None:
    """Make a command of every analysis that a paper of ours or another package registers."""
    for name, declared in load_extensions(ExtensionKind.ANALYSIS).items():
        _register_extension_analysis(name, declared)


def _register_extension_analysis(name: str, declared: AnalysisCommand[Any]) -> None:
    base = StoreAnalysisOptions if declared.needs_store else AnalysisOptions
    replaced = {field.name for field in fields(declared.options)}

    def analyze_evidence(
        evidence: potentia.Evidence, options: StoreAnalysisOptions
    ) -> NamedFindings:
        output = declared.analyze(evidence, values_of(declared.options, options))
        print_lines(*output.remarks, to=error_console)
        return output.findings

    analyze_evidence.__doc__ = declared.analyze.__doc__
    options_type: type[StoreAnalysisOptions] = make_options_type(
        f"{name} options", declared.options, base
    )
    register: Callable[[Any], Any] = analysis(name, options_type, not_read=frozenset(replaced))
    register(analyze_evidence)


register_extension_analyses()


# --- answers and benchmarks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(StoreAnalysisOptions):
    """The options of ``potentia analyze judge``."""

    url: Annotated[
        str, typer.Option(help="An OpenAI-compatible endpoint, as http://localhost:8000/v1.")
    ]
    model: Annotated[str, typer.Option(help="The model to ask there.")]
    key_env: Annotated[
        OptionalText,
        typer.Option(
            help="The environment variable that holds the endpoint's key; none is sent otherwise."
        ),
    ] = None
    most: Annotated[int | None, typer.Option(min=1, help="Answers of each cell at most.")] = None

    def read_key(self) -> str | None:
        """Return the endpoint's key from the environment; None where none is to be sent."""
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env)
        if not key:
            raise InputError(
                f"the environment variable {self.key_env} is empty",
                hint="set it to the endpoint's key",
            )
        return key


@analysis("judge", JudgeOptions)
def judge(evidence: potentia.Evidence, options: JudgeOptions) -> NamedFindings:
    """Let a language model judge written answers: the upper bound beside math-verify (BOSE, table 11).

    Example:
      potentia analyze judge potentia.db --url http://localhost:8000/v1 --model gpt-4o --key-env OPENAI_API_KEY
    """
    key = options.read_key()
    store = options.sources[0]
    answers_file = Path("potentia.judge.jsonl")
    if "://" not in store:
        answers_file = Path(f"{store}.judge.jsonl")
    asking = potentia.integrations.AnswerJudge(options.url, options.model, answers_file, key)
    finding = potentia.integrations.judge_answers(evidence, asking, most=options.most)
    print_lines(
        f"{asking.asked} answers judged now, the rest remembered in {answers_file}",
        to=error_console,
    )
    return {"judge": finding}


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(AnalysisOptions):
    """The options of ``potentia analyze benchmark``."""

    name: Annotated[str, typer.Argument(metavar="TASK", help="The benchmark to judge.")]
    data_dir: DataFolder = None


@analysis("benchmark", BenchmarkOptions)
def benchmark(evidence: potentia.Evidence, options: BenchmarkOptions) -> NamedFindings:
    """Say whether a benchmark is to be kept, fixed or dropped, and why: agreement, reliability, items to look at.

    Examples:
      potentia analyze benchmark arc_easy potentia.db

      potentia analyze benchmark my-task scores.csv --json
    """
    shared_examples = _count_shared_examples(evidence, options.name, options.data_dir)
    finding = potentia.analysis.benchmark.find_benchmark(
        evidence, options.name, in_train=shared_examples
    )
    return {"benchmark": finding}


def _count_shared_examples(
    evidence: potentia.Evidence, task_name: str, data_dir: Path | None
) -> int | None:
    """Count the test examples that are in train, where a study says where the data is and it is there."""
    for study_record in evidence.studies:
        study = potentia.evidence.parse_study_record(study_record)
        if study is None:
            continue
        spec = study.benchmark(task_name)
        if spec is None or not (data_dir or study.data_dir or spec.file):
            continue
        folder = str(data_dir) if data_dir else study.data_dir
        study_of_one_task = study.model_copy(update={"tasks": (spec,), "data_dir": folder})
        try:
            (task,) = potentia.run.load_tasks(study_of_one_task).by_name.values()
        except PotentiaError:
            return None
        return potentia.tasks.measure_overlap(task).test_exact
    return None
