"""The ``potentia analyze`` commands: what each asks, and which function answers.

One builder gives each the same sources, options, output and figures. A command is a function from evidence and what was
asked to findings, under ``@analysis`` with its own options.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import potentia
from potentia.analysis.registration import AnalysisCommand
from potentia.cli import options as shared
from potentia.cli import output as out
from potentia.cli.app import analyze
from potentia.cli.options import (
    Option,
    argument,
    command,
    filled,
    flag,
    option,
    options_of_class,
    some,
)
from potentia.errors import InputError, PotentiaError
from potentia.extensions import ExtensionKind, load_extensions
from potentia.values.findings import Finding, telling

Found = Mapping[str, Finding]
Find = Callable[["potentia.Evidence", Any], Found]
Show = Callable[[Found, "potentia.Evidence", Any], None]
OF_STORES = ("outlook", "judge")  # analyses that no table can answer
SHOWN = 20  # models of the score table
CAP = 50_000  # training examples of a task that count, as a study uses them at most


def analysis(
    name: str, show: Show | None = None, first: Mapping[str, Option] | None = None, /, **own: Option
) -> Callable[[Find], Find]:
    """Make ``potentia analyze NAME`` of a function; its docstring is the help, ``show`` prints in a way of its own.

    The function gets the evidence and a namespace with its own options, ``sources``, and the arguments ``first`` that
    stand before them. An option of its own with the name of a common one takes that one's place, and is not read by.
    """

    def register(find: Find) -> Find:
        _add_command(name, find, own, show=show, first=first, needs_store=name in OF_STORES)
        return find

    return register


def _add_command(
    name: str,
    find: Find,
    own: Mapping[str, Option],
    *,
    show: Show | None = None,
    first: Mapping[str, Option] | None = None,
    needs_store: bool = False,
) -> None:
    """Make ``potentia analyze NAME``: read the sources as the common options say, analyse, print and draw."""
    left_out = {*own, *(shared.TABLE if needs_store else ())}
    common = {key: option for key, option in shared.READ.items() if key not in left_out}

    def act(asked: Any) -> None:
        out.check_formats(asked)
        evidence = out.opened(*asked.sources, notes=False, **some(asked, common))
        groups = []
        for number, group in enumerate((evidence, *evidence.apart), start=1):
            if evidence.apart and not asked.as_json:
                out.console.print(f"{number}. {group.name}", style="bold", markup=False)
            out.print_notes(group)
            found = find(group, asked)
            if asked.as_json:
                told = {name: finding.to_dict() for name, finding in found.items()}
                groups.append({"source": group.name, "notes": group.notes, "findings": told})
            elif show is not None:
                show(found, group, asked)
            else:
                out.print_findings(found)
            folder = asked.figures
            if folder and evidence.apart:
                folder = folder / f"group-{number}"
            out.draw_figures(found.values(), folder, asked)
        if asked.as_json:
            out.print_json({"apart": groups} if asked.apart else groups[0]["findings"])

    act.__doc__ = find.__doc__
    options = {**(first or {}), "sources": shared.SOURCES, **own, **common, **shared.OUT}
    command(analyze, name, **options)(act)


def _print_rankings(found: Found, evidence: potentia.Evidence, asked: Any) -> None:
    """Print the scores and a summary, or every table; of checkpoints, which are no rivals, the runs."""
    runs = out.training_of(evidence)
    if runs is not None:
        out.print_told(runs.tables()[:1], runs.sentences(), runs.headline())
        out.console.print()
    if runs is None or asked.everything:
        out.print_scoreboard(asked.found.scoreboard, most=None if asked.everything else SHOWN)
    if asked.everything:
        out.print_findings({name: f for name, f in found.items() if name != "scoreboard"})
        return
    out.console.print()
    for table in filter(
        None, map(telling, potentia.analysis.rankings.summarize_rankings(asked.found))
    ):
        out.print_table(table)
    tables = sum(len(finding.tables()) for finding in found.values())
    out.say(
        f"All {tables} tables: --all. As a page: potentia report {shlex.quote(asked.sources[0])}",
        style="dim",
    )


@analysis(
    "rankings",
    _print_rankings,
    align=option(
        "Two tasks whose rankings to align; else those that agree least.", tuple[str, str] | None
    ),
    exclude_flagged=flag("--exclude-flagged", "Leave out the tasks that the screening flags."),
    gaps=option(
        "Missing cells in components: leave out models, leave out tasks, or fill the mean.",
        str,
        "models",
    ),
    simultaneous=flag(
        "--simultaneous", "Rank intervals that hold for all models of a task together."
    ),
    resample=option(
        "What intervals draw: families or lineages of models where known, or models.",
        str,
        "families",
    ),
    resamples=shared.RESAMPLES,
    level=option("Confidence level.", float, 0.95, min=0.5, max=0.999),
    everything=flag("--all", "Print every table of every finding; else the scores and a summary."),
)
def rankings(evidence: potentia.Evidence, asked: Any) -> Found:
    """Say who is best and how sure that is, how far the tasks rank the models alike, and which differences are real.

    Examples:
      potentia analyze rankings potentia.db

      potentia analyze rankings scores.csv --all --figures figures --format pdf svg --no-titles

      potentia analyze rankings scores.csv --protocols direct train_before_test --exclude-flagged --json
    """
    if asked.gaps not in potentia.analysis.rankings.GAPS:
        raise InputError(
            f"no treatment of gaps {asked.gaps!r}",
            hint=f"--gaps is one of: {', '.join(potentia.analysis.rankings.GAPS)}",
        )
    asked.found = potentia.analysis.rankings.find_rankings(
        evidence, filled(potentia.analysis.rankings.RankingOptions, asked)
    )
    named: Found = asked.found.named()
    return named


@analysis("outlook", history=shared.HISTORY)
def outlook(evidence: potentia.Evidence, asked: Any) -> Found:
    """Predict the cells that a study has not measured, and its final ranking: P(best), ranks with intervals.

    Report and board show the same. Predictions are in no other table.

    Example:
      potentia analyze outlook potentia.db
    """
    found = potentia.analysis.completion.find_outlook(evidence, history=out.history(asked))
    if found is None:
        store = asked.sources[0]
        hint = f"potentia analyze rankings {shlex.quote(store)}"
        raise InputError(
            "every cell is measured: there is nothing to predict", where=store, hint=hint
        )
    return {"completion": found}


@analysis("few-tasks")
def few_tasks(evidence: potentia.Evidence, asked: Any) -> Found:
    """Choose tasks on half of the models and see how well they rank the others, against their cost.

    The scores are those of the protocol that ranks, or of the one that --protocol names.

    Example:
      potentia analyze few-tasks scores.csv --protocol train_before_test
    """
    if evidence.main is None or evidence.main not in evidence.scores:
        there = f"there are {', '.join(evidence.protocols)}"
        raise InputError(f"no scores of {evidence.main}", where=asked.sources[0], hint=there)
    known = evidence.background
    sizes = {task: min(n, CAP) for task, n in known.train_examples.items()}
    return {
        "few_tasks": potentia.analysis.planning.measure_task_curve(
            evidence.scores[evidence.main], costs=sizes, lineages=known.lineages
        )
    }


def add_registered_analyses() -> None:
    """Make a command of every analysis that a paper of ours or another package registers."""
    for name, declared in load_extensions(ExtensionKind.ANALYSIS).items():
        _add_registered_analysis(name, declared)


def _add_registered_analysis(name: str, declared: AnalysisCommand[Any]) -> None:
    def analyze_evidence(evidence: potentia.Evidence, asked: Any) -> Found:
        output = declared.analyze(evidence, filled(declared.options, asked))
        out.say(*output.remarks, to=out.errors)
        return output.findings

    analyze_evidence.__doc__ = declared.analyze.__doc__
    _add_command(
        name,
        analyze_evidence,
        options_of_class(declared.options),
        needs_store=declared.needs_store,
    )


add_registered_analyses()


@analysis(
    "judge",
    url=option("An OpenAI-compatible endpoint, as http://localhost:8000/v1.", str, ...),
    model=option("The model to ask there.", str, ...),
    key_env=option(
        "The environment variable that holds the endpoint's key; none is sent otherwise."
    ),
    most=option("Answers of each cell at most.", int | None, None, min=1),
)
def judge(evidence: potentia.Evidence, asked: Any) -> Found:
    """Let a language model judge written answers: the upper bound beside math-verify (BOSE, table 11).

    Example:
      potentia analyze judge potentia.db --url http://localhost:8000/v1 --model gpt-4o --key-env OPENAI_API_KEY
    """
    store, key = asked.sources[0], asked.key_env
    if key is not None and not os.environ.get(key):
        raise InputError(
            f"the environment variable {key} is empty", hint="set it to the endpoint's key"
        )
    memory = Path(f"{store}.judge.jsonl" if "://" not in store else "potentia.judge.jsonl")
    asking = potentia.integrations.Judge(
        asked.url, asked.model, memory, os.environ.get(key) if key else None
    )
    found = potentia.integrations.judge_answers(evidence, asking, most=asked.most)
    out.say(f"{asking.asked} answers judged now, the rest remembered in {memory}", to=out.errors)
    return {"judge": found}


@analysis(
    "benchmark",
    None,
    {"name": argument("The benchmark to judge.", "TASK")},
    data_dir=shared.STUDY["data_dir"],
)
def benchmark(evidence: potentia.Evidence, asked: Any) -> Found:
    """Say whether a benchmark is to be kept, fixed or dropped, and why: agreement, reliability, items to look at.

    Examples:
      potentia analyze benchmark arc_easy potentia.db

      potentia analyze benchmark my-task scores.csv --json
    """
    in_train = _in_train(evidence, asked.name, asked.data_dir)
    return {
        "benchmark": potentia.analysis.benchmark.find_benchmark(
            evidence, asked.name, in_train=in_train
        )
    }


def _in_train(evidence: potentia.Evidence, name: str, data_dir: Path | None) -> int | None:
    """Count the test documents that are in train, where a study says where the data is and it is there."""
    for study in filter(None, map(potentia.evidence.study_of, evidence.studies)):
        spec = study.benchmark(name)
        if spec is None or not (data_dir or study.data_dir or spec.file):
            continue
        folder = str(data_dir) if data_dir else study.data_dir
        try:
            (task,) = potentia.run.load_tasks(
                study.model_copy(update={"tasks": (spec,), "data_dir": folder})
            ).by_name.values()
        except PotentiaError:
            return None
        return potentia.tasks.overlap(task).test_exact
    return None
