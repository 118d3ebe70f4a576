"""``potentia analyze test-task``: adjust for training on the test task, and everything that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from potentia.cli.app import analyze
from potentia.cli.output import errors, print_findings
from potentia.errors import InputError

if TYPE_CHECKING:
    from potentia.analysis.test_task.cohort import Cohort, Split
    from potentia.analysis.test_task.pair import Pair
    from potentia.findings import Finding
    from potentia.scores import ScoreMatrix


@analyze.command("test-task")
def training_on_the_test_task(
    scores: Annotated[str, typer.Argument(help="A store, a score table, or a CSV of staged scores.")],
    facts: Annotated[
        Path | None, typer.Option(help="CSV of facts: model,family,params_b,tokens_b,trained; beside the built-in.")
    ] = None,
    before: Annotated[str | None, typer.Option(help="Protocol or stage before adjustment.")] = None,
    after: Annotated[str | None, typer.Option(help="Protocol or stage after adjustment.")] = None,
    since: Annotated[str, typer.Option(help="Models trained in this month or later are the newer ones.")] = "2023-11",
    column: Annotated[str | None, typer.Option(help="Split by this column of the facts instead of by date.")] = None,
    value: Annotated[str | None, typer.Option(help="… where it has this value.")] = None,
    exposed: Annotated[
        bool, typer.Option("--exposed", help="Split each task by who saw its form: the facts' column exposure.")
    ] = False,
    tasks: Annotated[list[str] | None, typer.Option(help="Only these tasks.")] = None,
    families: Annotated[list[str] | None, typer.Option(help="Families to compare; else all with three models.")] = None,
    chance: Annotated[float | None, typer.Option(help="Score of guessing, where it is not known by the task.")] = None,
    steps: Annotated[
        str | None, typer.Option(help="Stage of intermediate steps; else those of --after (adjust@STEP).")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Examples per step of the adjustment.")] = 64,
    best: Annotated[
        bool, typer.Option("--best", help="Take the better of both scores after adjustment, as the paper does.")
    ] = False,
    draws: Annotated[int, typer.Option(min=0, help="Wild cluster bootstrap samples; 0 for none.")] = 1999,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    study: Annotated[str | None, typer.Option(help="One study of the store.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    format: Annotated[list[str] | None, typer.Option(help="pdf, png, svg, html; several may be given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Ask what a group of models has more at equal compute, before and after all were tuned on the same task data.

    Examples:
      potentia analyze test-task potentia.db --before direct --after adjust --since 2023-11

      potentia analyze test-task scores.csv --facts models.csv --column language --value en+cn --json

      potentia analyze test-task lab/potentia.db --facts lab/facts.csv --exposed --chance 0.25
    """
    from potentia.analysis.test_task.chance import chance as guess
    from potentia.analysis.test_task.find import analyze_pair
    from potentia.analysis.test_task.pair import best_of, pair_up

    source = _read(scores, before, after, steps, study)
    first, second = source.before, source.after
    wanted = [task for task in (tasks or first.tasks) if task in first.tasks and task in second.tasks]
    level = {
        task: guess(task, higher_is_better=first.higher_is_better[first.tasks.index(task)])
        if chance is None
        else chance
        for task in wanted
    }
    cohort = _cohort(first.models, facts)
    later = best_of(first, second) if best else second
    found: dict[str, Finding] = {}
    pairs = pair_up(first, later, cohort, tasks=wanted or tasks, chance=level)
    if exposed:
        from potentia.analysis.test_task.exposure import measure_exposure

        pairs = _divided(pairs)
        found["exposure"] = measure_exposure(pairs, draws=draws, seed=seed)
    for pair in pairs:
        split = _splitter(since, column, value, pair.task if exposed else None)
        found |= analyze_pair(pair, split, families=families, draws=draws, seed=seed)
        if source.steps:
            found |= _emergence(pair, split(pair.cohort), source.steps, batch)
    print_findings(found, as_json=as_json)
    if figures is not None:
        from potentia.report import draw_all

        written = draw_all(
            (chart for finding in found.values() for chart in finding.charts()), figures, format or ["pdf"]
        )
        errors.print(f"{len(written)} figures in {figures}")


class _Source(NamedTuple):
    """The two protocols, and the scores at intermediate steps of the adjustment."""

    before: ScoreMatrix
    after: ScoreMatrix
    steps: dict[int, ScoreMatrix]


def _read(source: str, before: str | None, after: str | None, steps: str | None, study: str | None) -> _Source:
    """Read stages of a staged CSV, or protocols of any other source (``adjust@1000`` is adjust after 1,000 steps)."""
    from potentia.store.files.staged import StagedScores

    if StagedScores.recognises(Path(source)):
        staged = StagedScores.read(Path(source))
        if after is None:
            raise InputError("which stage is after adjustment?", hint=f"--after one of: {', '.join(staged.stages())}")
        between = staged.at_steps(steps) if steps else {}
        return _Source(staged.matrix(before or "base"), staged.matrix(after), between)
    from potentia.store import read_scores

    found = read_scores(source, study=study)
    pick = []
    for name, usual in ((before, ("direct",)), (after, ("adjust", "train_before_test"))):
        chosen = name or next((protocol for protocol in usual if protocol in found), None)
        if chosen is None or chosen not in found:
            raise InputError(
                f"no scores by {chosen or ' or '.join(usual)} in {source}", hint=f"there are: {', '.join(found)}"
            )
        pick.append(chosen)
    stage = f"{steps or pick[1]}@"
    between = {
        int(name.removeprefix(stage)): matrix
        for name, matrix in found.items()
        if name.startswith(stage) and name.removeprefix(stage).isdecimal()
    }
    return _Source(found[pick[0]], found[pick[1]], between)


def _cohort(models: tuple[str, ...], facts: Path | None) -> Cohort:
    from potentia.analysis.test_task.cohort import Cohort
    from potentia.facts import models as known_models

    if facts is None:
        return Cohort.known(models)
    try:
        with facts.open(encoding="utf-8-sig") as file:
            header = [name.strip() for name in file.readline().split(",")]
    except OSError as error:
        raise InputError(f"the facts cannot be read: {error.strerror}", where=str(facts)) from error
    if "model" in header:
        return Cohort.known(models).updated(Cohort.read(facts))
    return Cohort.known(models, known_models(facts))


def _splitter(since: str, column: str | None, value: str | None, seen: str | None) -> Callable[[Cohort], Split]:
    """Return what makes the yes/no variable N from the facts of whatever models remain."""
    if seen is not None:
        return lambda cohort: cohort.exposed(seen)
    if column is None and value is None:
        return lambda cohort: cohort.since(since)
    if column is None or value is None:
        raise InputError("--column and --value go together", hint="such as --column language --value en+cn")
    return lambda cohort: cohort.where(column, value)


def _divided(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return the tasks that some models saw and some did not; the others are named and left out."""
    kept = []
    for pair in pairs:
        try:
            pair.cohort.exposed(pair.task)
        except InputError as error:
            errors.print(f"{pair.task} is left out: {error.message}")
        else:
            kept.append(pair)
    return tuple(kept)


def _emergence(pair: Pair, split: Split, steps: dict[int, ScoreMatrix], batch: int) -> dict[str, Finding]:
    """Trace emergence over the steps of the adjustment, over the models outside the group."""
    from potentia.analysis.test_task.emergence import LEAST_MODELS, trace_emergence
    from potentia.analysis.test_task.pair import slug

    stages = {0: dict(zip(pair.cohort.models, pair.before.tolist(), strict=True))}
    for step, matrix in steps.items():
        if pair.task in matrix.tasks:
            column = matrix.select(tasks=[pair.task]).values[:, 0]
            stages[batch * step] = dict(zip(matrix.models, column.tolist(), strict=True))
    outside = [name for name, inside in zip(pair.cohort.models, split.members, strict=True) if not inside]
    if len(stages) == 1 or len(outside) < LEAST_MODELS:
        return {}
    curve = trace_emergence(
        pair.task,
        stages,
        pair.cohort.select(outside),
        chance=pair.chance,
        higher_is_better=pair.higher_is_better,
    )
    return {f"{slug(pair.task)}-emergence": curve}
