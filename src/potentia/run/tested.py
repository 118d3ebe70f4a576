"""The end of a fine-tuning: validation chooses for a benchmark, the test split is scored once, the cell is committed.

What the cell records beside its score says how it came about, and whether the search may have left something: its best
learning rate lies inside what was searched, or at its end; its validation still rose; the untuned model was kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from potentia.errors import TuningError
from potentia.run.ask import Evaluation, evaluate
from potentia.run.choice import MORE, VERDICTS, Candidate, Verdict, verdict
from potentia.run.fine_tuning import FineTuning
from potentia.timing import spending


def finish(tuning: FineTuning, name: str) -> None:
    """Choose for one benchmark, seed by seed, test what is chosen, and hand the cell to the host."""
    task, host = tuning.benchmarks[name], tuning.host
    tuned = tuning.states(name)
    mine = {key: lane for key, lane in tuning.lanes.items() if name in tuning.served(lane)}
    reasons = {key: tuning.results[key].reason for key in mine}
    failures = [f"{mine[key].learning_rate:g} {mine[key].style}: {why}" for key, why in reasons.items() if why]
    if not tuned:
        raise TuningError(f"every lane of {name} failed: {'; '.join(failures)}")
    untuned = [tuning.untuned[name, style] for style in tuning.styles]
    blind = not task.documents("validation")  # nothing to choose by (as in MMLU): the tuned model stands
    chosen, best_tuned = [], []
    for seed in range(tuning.seed, tuning.seed + tuning.seeds):
        own = tuning.states(name, seed)
        forced = own and (blind or tuning.choice != "validation")
        chosen.append(tuning.best(name, own if forced else [*untuned, *own]))
        best_tuned += [tuning.best(name, own)] if own else []
    _publish_steps(tuning, name, best_tuned)
    if not host.asked(name, None):
        return
    tests = [_test(tuning, name, best, selected=True) for best in chosen]
    direct = host.direct(name, tuning.trainer.bare)
    test, kept_direct = Evaluation.mean(tests), False
    if tuning.choice == "paper" and direct is not None and not _improves(test, direct, task.higher_is_better):
        test, kept_direct = direct, True
    ended = [tuning.results[key] for key in mine]
    made = dict(zip(chosen, tests, strict=True))
    selection = _told(chosen, tests) | {
        "tuned": chosen[0].tuned and not kept_direct,
        "kept_direct": kept_direct,
        "epochs_saved_by_race": sum(
            tuning.epochs(mine[result.key]) - len(result.epochs) for result in ended if result.status == "dropped"
        ),
        "target_modules": list(ended[0].targets),
        "failed_lanes": failures,
        **_search(tuning, name, chosen, best_tuned, kept_direct),
    }
    if any(best.lane is None for best in chosen) or kept_direct:  # what `selection: tuned` would give
        told = [_at_end(tuning, name, best, made) for best in best_tuned]
        means = {key: sum(one[key] for one in told) / len(told) for key in ("value", "stderr")}
        selection["best_tuned"] = told[0] | means
    if tuning.every_rate:
        selection["rates"] = [_at_end(tuning, name, one, made) for one in tuned]
    save = getattr(tuning.trainer, "save_peft", None)  # adapters can be taken away; all weights of a model are not kept
    if save is not None and chosen[0].lane is not None and not kept_direct:
        host.keep(name, partial(save, chosen[0].lane.key, epoch=chosen[0].epoch))
    host.commit(name, None, test, selection, direct.main.value if direct is not None else None)


def _search(
    tuning: FineTuning, name: str, chosen: Sequence[Candidate], best_tuned: Sequence[Candidate], kept_direct: bool
) -> dict[str, Any]:
    """Say what was searched, and where the best lies in it: over seeds, the most doubtful."""
    higher = tuning.judge(name).higher_is_better
    found: list[Verdict] = ["kept untuned"] if kept_direct else []
    rates: set[float] = set()
    for best in chosen:
        if best.lane is None:
            found.append("kept untuned")
            continue
        peaks = tuning.peaks(name, best.lane.rivals)
        found.append(verdict(best, peaks, tuning.curves[best.lane.key, name], higher_is_better=higher))
    for best in best_tuned:
        assert best.lane is not None
        rates |= set(tuning.peaks(name, best.lane.rivals))
    lane = best_tuned[0].lane
    assert lane is not None
    made = tuning.results[lane.key]
    worst = min(found, key=VERDICTS.index)
    return {
        "search": worst,
        "may_have_more": worst in MORE,
        "rates_tried": sorted(rates),
        "updates": made.steps,
        "tokens": sum(epoch.tokens for epoch in made.epochs),
        "trainable": int(getattr(tuning.trainer, "trainable", tuning.loaded.parameters)),  # full: all
    }


def _test(tuning: FineTuning, name: str, state: Candidate, *, selected: bool = False) -> Evaluation:
    """Score a state on the test split."""
    task, lane = tuning.benchmarks[name], state.lane
    if lane is None:
        tuning.trainer.bare()
    owner = tuning.trainer.restore(lane.key, state.epoch) if lane is not None else None
    if selected:
        tuning.host.phase(f"testing {name}", len(task.documents("test")))
    ask = tuning.ask(task, "test", state.style, owner)
    with spending("test"):
        progress = tuning.host.progress if selected else None
        (made,) = evaluate(tuning.scorer, [ask], chat=tuning.chat, progress=progress)
    if lane is not None and selected:
        tuning.tell(lane, name, tuning.results[lane.key].status, selected=True)
    return made


def _at_end(tuning: FineTuning, name: str, state: Candidate, made: Mapping[Candidate, Evaluation]) -> dict[str, Any]:
    """Return a state's test score beside what validation said of it (appendix B.3: what a larger search is worth)."""
    assert state.lane is not None
    test = made[state] if state in made else _test(tuning, name, state)
    told = {"learning_rate": state.learning_rate, "style": state.style, "seed": state.lane.seed}
    told |= {"validation": state.value, "value": test.main.value, "stderr": test.main.stderr}
    return told | {"chosen": state in made}


def _publish_steps(tuning: FineTuning, name: str, chosen: Sequence[Candidate]) -> None:
    """Hand over the scores on the way of the lanes that were chosen in the end."""
    for step in tuning.at_steps:
        if tuning.host.asked(name, step):
            tests = [tuning.on_the_way.get(c.lane.key, step, name) for c in chosen if c.lane is not None]
            selection = _told(chosen, tests) | {"step": step}
            del selection["epoch"]  # the end of the tuning, where the lane was chosen
            tuning.host.commit(name, step, Evaluation.mean(tests), selection)


def _told(chosen: Sequence[Candidate], tests: Sequence[Evaluation]) -> dict[str, Any]:
    """Return what was chosen, seed by seed."""
    values = [test.main.value for test in tests]
    return {
        "style": chosen[0].style,
        "learning_rate": chosen[0].learning_rate,
        "epoch": chosen[0].epoch,
        "validation": chosen[0].value,
        "validation_stderr": chosen[0].stderr,
        "validation_right": chosen[0].right,
        "seeds": [
            {"value": v, "learning_rate": c.learning_rate, "epoch": c.epoch, "style": c.style, "validation": c.value}
            for v, c in zip(values, chosen, strict=True)
        ],
    }


def _improves(test: Evaluation, direct: Evaluation, higher_is_better: bool) -> bool:
    """Say whether the tuned test score beats the direct one (the question of ``selection: paper``)."""
    gain = test.main.value - direct.main.value
    return gain > 0 if higher_is_better else gain < 0
