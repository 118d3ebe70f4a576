"""The ``potentia analyze`` and ``potentia papers`` commands: what each asks, and which function answers.

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
from potentia.analysis.registration import AnalysisCommand, AnalysisOutput
from potentia.cli.app import analyze, is_readable, is_source, papers
from potentia.cli.command import command
from potentia.cli.option_groups import (
    EvidenceOptions,
    OptionalText,
    ReadModels,
    ReadTasks,
    TableEvidenceOptions,
    open_evidence,
)
from potentia.cli.output import (
    console,
    draw_figures,
    error_console,
    find_pretraining_runs,
    is_quiet,
    list_sentences,
    print_findings,
    print_json,
    print_lines,
    print_notes,
    print_scoreboard,
    print_table,
    print_tables_and_sentences,
)
from potentia.cli.registered import make_options_type
from potentia.errors import InputError, PotentiaError, without_password
from potentia.extensions import ExtensionKind, load_extensions
from potentia.values.findings import Finding, Findings, drop_empty_columns
from potentia.values.wording import set_signs

if TYPE_CHECKING:
    from potentia.analysis.rankings import Rankings

NamedFindings = Mapping[str, Finding]
OptionsT = TypeVar("OptionsT", bound=EvidenceOptions)
ResultT = TypeVar("ResultT", bound="Findings | NamedFindings | AnalysisOutput")
ValuesT = TypeVar("ValuesT")
MAX_MODELS_SHOWN = 20  # of the score table
JUDGE_KEY = "POTENTIA_JUDGE_KEY"  # the environment variable with the key of a judge's endpoint
MAX_TRAIN_EXAMPLES = 50_000  # of a task that count, as a study uses them at most


@dataclass(frozen=True, kw_only=True)
class StoreAnalysisOptions(EvidenceOptions):
    """The options of an analysis that no table can answer, only a store."""


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions(TableEvidenceOptions):
    """The options of an analysis of stores, tables and result files."""

    tasks: ReadTasks = None


def analysis(
    command_name: str,
    options_type: type[OptionsT],
    show_finding: Callable[[ResultT, potentia.Evidence, OptionsT], None] | None = None,
    *,
    overridden_options: frozenset[str] = frozenset(),
    group: typer.Typer = analyze,
) -> Callable[
    [Callable[[potentia.Evidence, OptionsT], ResultT]],
    Callable[[potentia.Evidence, OptionsT], ResultT],
]:
    """Make ``potentia analyze NAME`` of a function, or a command of another group; its docstring is the help.

    The function gets the evidence and its options, and returns findings. ``show_finding`` prints them in a way of its
    own. An option of the analysis that has the name of a common one takes its place; ``overridden_options`` names
    those, so that the evidence is not read by them.
    """

    def register(
        analyze_evidence: Callable[[potentia.Evidence, OptionsT], ResultT],
    ) -> Callable[[potentia.Evidence, OptionsT], ResultT]:
        def run_analysis(options: OptionsT) -> None:
            options.check_arguments()
            targets = options.figure_targets()
            read_arguments = {
                argument: value
                for argument, value in options.read_arguments().items()
                if argument not in overridden_options
            }
            evidence = open_evidence(*options.sources, notes=False, **read_arguments)
            comparable_groups = (evidence, *evidence.apart)
            json_groups = []
            for number, comparable in enumerate(comparable_groups, start=1):
                if evidence.apart and not options.as_json:
                    console.print(f"{number}. {comparable.name}", style="bold", markup=False)
                print_notes(comparable)
                result = analyze_evidence(comparable, options)
                findings = _named_findings(result)
                if options.as_json:
                    json_groups.append(_group_as_json(comparable, findings))
                elif show_finding is not None:
                    show_finding(result, comparable, options)
                else:
                    print_findings(findings)
                subfolder = f"group-{number}" if evidence.apart else ""
                draw_figures(findings.values(), targets, subfolder=subfolder)
            if options.as_json:
                print_json({"apart": json_groups} if evidence.apart else json_groups[0]["findings"])

        run_analysis.__doc__ = analyze_evidence.__doc__
        command(group, command_name, options_type)(run_analysis)
        return analyze_evidence

    return register


def _named_findings(result: Findings | NamedFindings | AnalysisOutput) -> NamedFindings:
    if isinstance(result, Findings):
        return result.findings_by_name()
    if isinstance(result, AnalysisOutput):
        return result.findings
    return result


def _group_as_json(evidence: potentia.Evidence, findings: NamedFindings) -> dict[str, Any]:
    values = {finding_name: finding.to_dict() for finding_name, finding in findings.items()}
    return {"source": evidence.name, "notes": evidence.notes, "findings": values}


def values_of(values_type: type[ValuesT], options: object, **overrides: Any) -> ValuesT:
    """Make the values that an analysis takes of a command's options of the same names.

    What was not given keeps the default of the analysis.
    """
    values = {}
    for field in fields(values_type):  # type: ignore[arg-type]
        field_value = overrides.get(field.name, getattr(options, field.name, None))
        if field_value is not None:
            values[field.name] = (
                tuple(field_value) if isinstance(field_value, list) else field_value
            )
    return values_type(**values)


# --- rankings ---------------------------------------------------------------------------------------------------------

FEW_TASKS = "few-tasks"
OUTLOOK = "outlook"


@dataclass(frozen=True, kw_only=True)
class RankingsOptions(AnalysisOptions):
    """The options of ``potentia analyze rankings``."""

    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Print every table of every finding; else the scores and a summary."
        ),
    ] = False
    shown: Annotated[
        OptionalText,
        typer.Option(
            "--show",
            metavar="few-tasks|outlook",
            help="Instead: how well a few tasks rank the models; or what unmeasured results will be.",
        ),
    ] = None
    models: ReadModels = None


def _print_rankings(
    rankings: Rankings | NamedFindings, evidence: potentia.Evidence, options: RankingsOptions
) -> None:
    """Print the scores and a summary, or with --all every table.

    Of a study of checkpoints it is the pretraining runs that are printed: one run's checkpoints are no rivals.
    """
    if isinstance(rankings, Mapping):  # --show asked for a single finding
        print_findings(rankings)
        return
    pretraining_runs = find_pretraining_runs(evidence)
    if is_quiet() and pretraining_runs is not None:
        print_tables_and_sentences((), list_sentences([pretraining_runs]))
        return
    if is_quiet() and len(rankings.scoreboard.standings) > 1:
        scoreboard = rankings.scoreboard
        print_tables_and_sentences((), [scoreboard.headline(), *scoreboard.certainty()])
        return
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
    findings = rankings.findings_by_name()
    if options.everything:
        unprinted_findings = {
            finding_name: finding
            for finding_name, finding in findings.items()
            if finding_name != "scoreboard"
        }
        print_findings(unprinted_findings)
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
def rankings(evidence: potentia.Evidence, options: RankingsOptions) -> Rankings | NamedFindings:
    """Say who is best and how sure that is, how far the tasks rank the models alike, and which differences are real.

    Examples:
      potentia analyze rankings potentia.db

      potentia analyze rankings scores.csv --all --figures figures.pdf

      potentia analyze rankings scores.csv --protocols direct train_before_test --json

      potentia analyze rankings scores.csv --show few-tasks
    """
    if options.shown is None:
        return potentia.analysis.rankings.find_rankings(evidence)
    if options.shown == FEW_TASKS:
        return {"few_tasks": _measure_few_tasks(evidence)}
    if options.shown == OUTLOOK:
        return {"completion": _find_outlook(evidence, options)}
    raise InputError(f"nothing to show as {options.shown!r}", hint=f"{FEW_TASKS} or {OUTLOOK}")


def _find_outlook(evidence: potentia.Evidence, options: RankingsOptions) -> Finding:
    """Predict the results that a study has not measured, and its final ranking."""
    completion = potentia.analysis.completion.find_outlook(evidence)
    if completion is None:
        store = options.sources[0]
        raise InputError(
            "every result is measured: there is nothing to predict",
            where=store,
            hint=f"potentia analyze rankings {shlex.quote(store)}",
        )
    return completion


def _measure_few_tasks(evidence: potentia.Evidence) -> Finding:
    """Choose tasks on half of the models and see how well they rank the others, against their cost."""
    if evidence.main is None or evidence.main not in evidence.scores:
        raise InputError(
            f"no scores of {evidence.main}",
            where=evidence.source,
            hint=f"there are {', '.join(evidence.protocols)}",
        )
    background = evidence.background
    train_sizes = {
        task: min(examples, MAX_TRAIN_EXAMPLES)
        for task, examples in background.train_examples.items()
    }
    return potentia.analysis.planning.measure_task_curve(
        evidence.scores[evidence.main],
        costs=train_sizes,
        lineages=background.lineages,
        task_groups=background.task_groups,
    )


# --- analyses of papers and other packages ----------------------------------------------------------------------------


def register_extension_analyses() -> None:
    """Make a command of every analysis that a paper of ours or another package registers."""
    for command_name, declared in load_extensions(ExtensionKind.ANALYSIS).items():
        _register_extension_analysis(command_name, declared)


def _register_extension_analysis(command_name: str, declared: AnalysisCommand[Any]) -> None:
    """Make a command of one registered analysis: its sources, its own options, and how its findings are printed."""
    base_options: type[EvidenceOptions] = AnalysisOptions
    if declared.needs_store:
        base_options = StoreAnalysisOptions
    elif not declared.reads_tasks:
        base_options = TableEvidenceOptions
    own_options = {field.name for field in fields(declared.options)}

    def analyze_evidence(evidence: potentia.Evidence, options: EvidenceOptions) -> AnalysisOutput:
        output = declared.analyze(evidence, values_of(declared.options, options))
        print_lines(*map(set_signs, output.remarks), to=error_console)
        return output

    def show_findings(output: AnalysisOutput, *_: object) -> None:
        printed = {
            name: finding
            for name, finding in output.findings.items()
            if name not in output.unprinted
        }
        print_findings(printed, answer=output.answer)

    analyze_evidence.__doc__ = declared.analyze.__doc__
    options_type: type[EvidenceOptions] = make_options_type(
        f"{command_name} options", declared.options, base_options
    )
    group = papers if declared.group == "papers" else analyze
    register: Callable[[Any], Any] = analysis(
        command_name,
        options_type,
        show_findings,
        overridden_options=frozenset(own_options),
        group=group,
    )
    register(analyze_evidence)


register_extension_analyses()


# --- answers and benchmarks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(EvidenceOptions):
    """The options of ``potentia papers judge``."""

    tasks: ReadTasks = None

    url: Annotated[
        str,
        typer.Option(
            metavar="URL", help="An OpenAI-compatible endpoint, as http://localhost:8000/v1."
        ),
    ]
    model: Annotated[str, typer.Option(metavar="NAME", help="The model to ask there.")]


@analysis("judge", JudgeOptions, group=papers)
def judge(evidence: potentia.Evidence, options: JudgeOptions) -> NamedFindings:
    """Let a language model judge written answers: the upper bound beside math-verify (BOSE, table 11).

    An endpoint that asks for a key gets the one in the environment variable POTENTIA_JUDGE_KEY.

    Example:
      potentia papers judge potentia.db --url http://localhost:8000/v1 --model gpt-4o
    """
    api_key = os.environ.get(JUDGE_KEY) or None
    store = options.sources[0]
    answers_file = Path("potentia.judge.jsonl")
    if "://" not in store:
        answers_file = Path(f"{store}.judge.jsonl")
    answer_judge = potentia.integrations.AnswerJudge(
        options.url, options.model, answers_file, api_key
    )
    finding = potentia.integrations.judge_answers(evidence, answer_judge)
    print_lines(
        f"{answer_judge.question_count} answers judged now, the rest remembered in {answers_file}",
        to=error_console,
    )
    return {"judge": finding}


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(TableEvidenceOptions):
    """The options of ``potentia analyze benchmark``."""

    name: Annotated[str, typer.Argument(metavar="TASK", help="The benchmark to judge.")]

    def check_arguments(self) -> None:
        """Refuse scores in the place of the task."""
        source = self.sources[0]
        if is_readable(source) or not is_source(self.name, is_last=False):
            return
        task = "TASK" if is_source(source) else shlex.quote(source)
        scores = shlex.quote(without_password(self.name))
        raise InputError(
            f"TASK comes first, then the scores, and {self.name} is no task",
            hint=f"potentia analyze benchmark {task} {scores}",
        )


@analysis("benchmark", BenchmarkOptions)
def benchmark(evidence: potentia.Evidence, options: BenchmarkOptions) -> NamedFindings:
    """Say whether a benchmark is to be kept, fixed or dropped, and why: agreement, reliability, examples to check.

    Examples:
      potentia analyze benchmark arc_easy potentia.db

      potentia analyze benchmark my-task scores.csv --json
    """
    shared_examples = _count_shared_examples(evidence, options.name)
    finding = potentia.analysis.benchmark.find_benchmark(
        evidence, options.name, in_train=shared_examples
    )
    return {"benchmark": finding}


def _count_shared_examples(evidence: potentia.Evidence, task_name: str) -> int | None:
    """Count the test examples that are in train, where a study says where the data is and it is there."""
    for study_record in evidence.studies:
        study = potentia.evidence.parse_study_record(study_record)
        if study is None:
            continue
        task_spec = study.find_task_spec(task_name)
        if task_spec is None or not (study.data_dir or task_spec.file):
            continue
        study_of_one_task = study.model_copy(update={"tasks": (task_spec,)})
        try:
            (task,) = potentia.run.load_tasks(study_of_one_task).by_name.values()
        except PotentiaError:
            return None
        return potentia.tasks.measure_overlap(task).test_exact
    return None
