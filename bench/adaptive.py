"""An adaptive run of the zoo beside the full study: the same top three, and at what share of its time.

    OMP_NUM_THREADS=1 python bench/adaptive.py --seeds 5
    OMP_NUM_THREADS=1 python bench/adaptive.py --seeds 1 --workers 2

Both run with the same seed in stores of their own, one after the other, the adaptive one with everything that it does
besides (direct scores of all, choosing, loading). Seconds are this process's and its workers' CPU seconds, which a busy
machine hardly moves; ``wall`` is the ratio on the wall. ``--killed``: the run killed in its second wave and started
again ends with the same scores. ``--loads``: the same run without keeping models and workers. Exits with 1 where the
top three differ, where it took more than half of the time, or where the killed run ends otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
from scipy.stats import kendalltau

from potentia.analysis.stats.standardize import mean_z_scores
from potentia.evidence import read
from potentia.lab import demo_study
from potentia.run import AdaptiveRun, plan_study, run_study
from potentia.store import Store
from potentia.study import Study

HALF = 0.5


class Killed(BaseException):
    """As by kill -9: nothing below may catch it."""


def main() -> int:
    """Run both for every seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--budget", default="20%")
    parser.add_argument("--top", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--whole", action="store_true", help="the whole demo in place of the quick one"
    )
    parser.add_argument("--killed", action="store_true", help="also kill and resume it")
    parser.add_argument("--loads", action="store_true", help="also without keeping models")
    options = parser.parse_args()
    print(
        f"{'seed':>4}{'full CPU':>10}{'adaptive':>10}{'ratio':>7}{'wall':>7}{'cells':>8}{'tau':>6}  top {options.top}"
    )
    wrong = 0
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory(prefix="potentia-adaptive-") as folder:
            wrong += judge(options, seed, Path(folder))
    return int(wrong > 0)


def judge(given: argparse.Namespace, seed: int, folder: Path) -> bool:
    """Compare one adaptive run with its full study; say whether anything is wrong."""
    study = demo_study(folder, full=given.whole).model_copy(update={"seed": seed})
    warm(study, folder)
    full, run_by_name = study.model_copy(update={"store": str(folder / "full.db")}), {}

    def adaptive(store: str, **options: Any) -> Any:
        small = study.model_copy(update={"store": str(folder / store)})
        return AdaptiveRun(
            plan_study(small), budget=given.budget, top=given.top, workers=given.workers, **options
        )

    def run_adaptive() -> None:
        run_by_name["it"] = adaptive("adaptive.db").run()[1]

    cpu, wall = clock(lambda: run_study(plan_study(full), workers=given.workers))
    cpu_a, wall_a = clock(run_adaptive)
    matrix = read(full.store).scores["train_before_test"]
    truth = dict(zip(matrix.models, mean_z_scores(matrix.values), strict=True))
    order = sorted(truth, key=lambda model: -truth[model])
    order_found = run_by_name["it"].order()
    same = set(order_found[: given.top]) == set(order[: given.top])
    tau = kendalltau(
        [truth[m] for m in run_by_name["it"].models], run_by_name["it"].aggregate
    ).statistic
    cells = f"{int(run_by_name['it'].measured.sum())}/{run_by_name['it'].measured.size}"
    verdict = (
        "same"
        if same
        else f"{', '.join(order_found[: given.top])} for {', '.join(order[: given.top])}"
    )
    times = f"{cpu:>9.1f}s{cpu_a:>9.1f}s{cpu_a / cpu:>7.2f}{wall_a / wall:>7.2f}"
    print(f"{seed:>4}{times}{cells:>8}{tau:>6.2f}  {verdict}", flush=True)
    wrong = not same or cpu_a / cpu > HALF
    if given.loads:
        spent, _ = clock(lambda: adaptive("loads.db", keep=False).run())
        print(
            f"     without keeping models: {spent:.1f}s CPU, keeping them {cpu_a / spent:.2f} of it"
        )
    if given.killed:
        wrong |= not resumes(adaptive, str(folder / "adaptive.db"), str(folder / "killed.db"))
    return wrong


def resumes(adaptive: Callable[..., Any], once: str, store: str) -> bool:
    """Kill the run in its second wave, start it again, and compare all scores."""

    def die(text: str) -> None:
        if text.startswith("wave 2"):
            raise Killed

    with contextlib.suppress(Killed):
        adaptive("killed.db", report=die).run()
    adaptive("killed.db").run()
    scores_at_once, scores_resumed = scores(once), scores(store)
    outcome = "the same" if scores_at_once == scores_resumed else "OTHER SCORES"
    print(f"     killed and resumed: {outcome} ({len(scores_resumed)} cells)")
    return scores_at_once == scores_resumed


def scores(location: str) -> dict[tuple[str, str, str], float]:
    """All scores of a store."""
    with Store.open(location, readonly=True) as store:
        return {(c.model, c.task, str(c.protocol)): c.score.value for c in store.cells.read()}


def warm(study: Study, folder: Path) -> None:
    """Import everything and prove nothing: a study of one model and few documents."""
    caps = study.caps.model_copy(update={"train": 8, "validation": 8, "test": 8})
    small = study.model_copy(
        update={"models": study.models[:1], "caps": caps, "store": str(folder / "warm.db")}
    )
    run_study(plan_study(small))


def clock(work: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds of this process and its children, and seconds on the wall."""

    def spent() -> float:
        used = [
            resource.getrusage(process_group)
            for process_group in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        return sum(usage.ru_utime + usage.ru_stime for usage in used)

    cpu, wall = spent(), time.monotonic()
    work()
    return spent() - cpu, time.monotonic() - wall


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
