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
from potentia.cli import options as shared
from potentia.cli import output as out
from potentia.cli.app import analyze
from potentia.cli.options import Option, argument, command, filled, flag, many, option, path, some
from potentia.errors import InputError, PotentiaError
from potentia.values.findings import Finding, telling

Found = Mapping[str, Finding]
Find = Callable[["potentia.Evidence", Any], Found]
Show = Callable[[Found, "potentia.Evidence", Any], None]
OF_STORES = ("outlook", "exposure", "judge")  # analyses that no table can answer
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
        unasked = [*own, *(shared.TABLE if name in OF_STORES else ())]
        common = {key: one for key, one in shared.READ.items() if key not in unasked}

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
                folder = (
                    asked.figures / f"group-{number}"
                    if asked.figures and evidence.apart
                    else asked.figures
                )
                out.draw_figures(found.values(), folder, asked)
            if asked.as_json:
                out.print_json({"apart": groups} if asked.apart else groups[0]["findings"])

        act.__doc__ = find.__doc__
        command(
            analyze,
            name,
            **{**(first or {}), "sources": shared.SOURCES, **own, **common, **shared.OUT},
        )(act)
        return find

    return register


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


@analysis(
    "checkpoints",
    steps=path(
        "CSV with the columns model, series, step and/or tokens; models named run@step need none."
    ),
    unit=option("steps or tokens, where both are known."),
    baseline=shared.BASELINE,
    power=option("Share of pairs that a resolved gap tells apart.", float, 0.8, min=0.5, max=1.0),
)
def checkpoints(evidence: potentia.Evidence, asked: Any) -> Found:
    """Say how stably scores grow with pretraining: tau with steps, and the smallest gap each benchmark resolves.

    Examples:
      potentia analyze checkpoints potentia.db --baseline direct

      potentia analyze checkpoints scores.csv --steps steps.csv --tasks arc_easy --json
    """
    unit, given = asked.unit, None
    if unit not in (None, "steps", "tokens"):
        raise InputError(f"no unit {unit!r}", hint="--unit steps or --unit tokens")
    if asked.steps is not None:
        given, unit = potentia.analysis.base_models.read_checkpoints(asked.steps, unit)
    found = potentia.analysis.base_models.find_stability(
        evidence, given, unit=unit, baseline=asked.baseline, power=asked.power
    )
    return {"stability": found}


@analysis(
    "consistency",
    pairs=path("CSV with the columns base and instruct; else known facts."),
    instruct_by=option(
        "Method that scores the instruct versions, or 'same'; else instruct, else direct."
    ),
    baseline=shared.BASELINE,
)
def consistency(evidence: potentia.Evidence, asked: Any) -> Found:
    """Say whether better base models become better instruct models, by every method; rank the methods.

    Examples:
      potentia analyze consistency potentia.db --baseline instruct

      potentia analyze consistency scores.csv --pairs pairs.csv --instruct-by same --json
    """
    pairs = (
        potentia.analysis.base_models.read_pairs(asked.pairs) if asked.pairs is not None else None
    )
    return potentia.analysis.base_models.find_consistency(
        evidence, pairs, instruct_by=asked.instruct_by, baseline=asked.baseline
    ).named()


@analysis(
    "ablation",
    models=many("The models to compare on; else all but instruct ones."),
)
def ablation(evidence: potentia.Evidence, asked: Any) -> Found:
    """Rank the methods (protocols and prompt forms) in every cell of model and benchmark.

    Examples:
      potentia analyze ablation potentia.db --tasks gsm8k

      potentia analyze ablation scores.csv --models Llama-3.1-8B Qwen2.5-7B --json
    """
    return {"ablation": potentia.analysis.base_models.find_ablation(evidence, asked.models)}


@analysis(
    "exposure", clean=many("Models that did not see these tests; of four other families or more.")
)
def exposure(evidence: potentia.Evidence, asked: Any) -> Found:
    """Say where a model has less left to learn of a task than models of other families: it may have seen such text.

    Evidence, not proof; and a high value is no evidence of innocence. The study must have run with `probe: true`.

    Examples:
      potentia analyze exposure potentia.db

      potentia analyze exposure potentia.db --clean SmolLM2-135M gemma-3-270m stories15M TinyLlama-1.1B
    """
    found = potentia.analysis.test_task.find_exposure(evidence, clean=asked.clean or ())
    out.say(*found.left_out, *found.sentences(), to=out.errors)
    return {"signs": found}


@analysis(
    "test-task",
    **shared.TEST_TASK,
    families=many("Families to compare; else all with three models."),
    chance=option("Score of guessing on the tasks for which nothing else tells it.", float | None),
    steps=option("Stage of intermediate steps; else those of --after (adjust@STEP)."),
    batch=option(
        "Examples per step of the adjustment; the study's own, else 64.", int | None, None, min=1
    ),
    best=flag("--best", "Take the better of both scores after adjustment, as the paper does."),
    resamples=shared.DRAWS,
)
def test_task(evidence: potentia.Evidence, asked: Any) -> Found:
    """Ask what a group of models has more at equal compute, before and after all were tuned on the same task data.

    Examples:
      potentia analyze test-task potentia.db --before direct --after adjust --since 2023-11

      potentia analyze test-task scores.csv --facts models.csv --column language --value en+cn --json

      potentia analyze test-task potentia.db --metric brier_score --figures figures

      potentia analyze test-task lab/potentia.db --facts lab/facts.csv --exposed --chance 0.25
    """
    made = potentia.analysis.test_task.find_test_task(
        evidence, filled(potentia.analysis.test_task.Options, asked, draws=asked.resamples)
    )
    found = made.named()
    divided = any("adjustment" in by for by in made.tasks.values())
    if not found or (
        (asked.since or asked.column) and not divided
    ):  # what was asked for in so many words is not there
        hint = "give what is missing with --facts, --task-facts, --chance, --since or --column"
        raise InputError("; ".join(made.problems), where=evidence.source, hint=hint)
    out.say(*made.problems, to=out.errors)
    return found


@analysis(
    "proxy",
    target=option("The task to predict.", str, ...),
    candidates=many("Candidate tasks; else all other benchmarks."),
    correlation=option(
        "kendall, spearman, pearson, or auto: what algorithm 1 chooses.", str, "kendall"
    ),
    normalise=option("both (tasks, then models), feature (tasks only), or none.", str, "both"),
    top=option(
        "t of algorithm 1, top tasks compared; 10, or half of the candidates.",
        int | None,
        None,
        min=1,
    ),
    sampled=many(
        "n of algorithm 1, models in a sample; else the paper's 6, 8, 10.", kind=int, min=3
    ),
    rounds=many("k of algorithm 1, samples; else the paper's 25 (and 15, 35).", kind=int, min=2),
    data_group=many("Small models trained on different data."),
    seed_group=many("Small models that differ in their seed only."),
    early=many("Models to predict, such as early checkpoints."),
    truth=path("Scores of the early models later on, in the same names: a store or table."),
    min_relevance=option("Keep candidates with a relevance above this.", float, 0.0),
    min_robustness=option("Keep candidates with a variance ratio of at least this.", float, 1.0),
    weigh=option("f(R): sigmoid, log, or none.", str, "sigmoid"),
    steepness=option("k of the sigmoid 1/(1+exp(-kR)).", float, 1.0, min=0.0),
    on=option(
        "base: candidates on base models, target on their chat versions; chat: both on these; same.",
        str,
        "same",
    ),
    pair_file=path("CSV with the columns base and instruct; else by studies and facts."),
    pairs=flag("--pairs/--no-pairs", "Compare choosing and scoring on base and chat models."),
    families=flag("--families/--no-families", "Keep a model family on one side of every split."),
)
def proxy(evidence: potentia.Evidence, asked: Any) -> Found:
    """Choose proxy tasks for a target, weigh them, predict, and test the prediction against perplexity's.

    Examples:
      potentia analyze proxy scores.csv --target gsm8k --protocol train_before_test

      potentia analyze proxy potentia.db --target gsm8k --candidates arc_easy boolq --early run@1000 run@2000

      potentia analyze proxy potentia.db --target t_eval --on base --pair-file pairs.csv --families
    """
    pairs = (
        potentia.analysis.base_models.read_pairs(asked.pair_file)
        if asked.pair_file is not None
        else asked.pairs
    )
    truth = potentia.evidence.read(asked.truth) if asked.truth is not None else None
    made = potentia.analysis.proxy.find_proxies(
        evidence,
        filled(potentia.analysis.proxy.Options, asked, pairs=pairs, protocol=evidence.main),
        truth,
    )
    out.say(*made.problems, to=out.errors)
    return made.named()


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
            ).benchmarks.values()
        except PotentiaError:
            return None
        return potentia.tasks.overlap(task).test_exact
    return None
