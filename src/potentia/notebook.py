"""Potentia in a notebook or a script: one call that runs a study and holds what it found.

``evaluate`` is ``potentia run`` from Python: the same study, store, resume and numbers, with a progress bar that suits
the place it is called from.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.analysis.rankings import Rankings, Scoreboard, find_rankings
from potentia.errors import PotentiaError
from potentia.evidence import Evidence, read
from potentia.run import RunResult, StudyPlan, plan_study, run_study
from potentia.show import make_report, save_report
from potentia.store import Store
from potentia.study import Study, read_study
from potentia.timing import repeatedly

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Result:
    """What a study gave: its scores as a table, its findings, and its report."""

    study: Study
    run: RunResult

    @cached_property
    def evidence(self) -> Evidence:
        """Everything that the study's store holds of it."""
        return read(self.study.store, study=self.run.study)

    @property
    def scores(self) -> pd.DataFrame:
        """One row per score: protocol, model, task, metric, score, stderr, n."""
        return self.evidence.frame()

    @cached_property
    def rankings(self) -> Rankings:
        """Every ranking finding, as ``potentia analyze rankings`` makes them."""
        return find_rankings(self.evidence)

    @property
    def scoreboard(self) -> Scoreboard:
        """The answer: scores, gains, ranks, and whether the first is sure."""
        return self.rankings.scoreboard

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the report, one HTML file that needs no network."""
        return save_report(make_report(self.evidence), Path(path))

    def _repr_html_(self) -> str:
        """Return the scoreboard as HTML, or why there is none."""
        try:
            return self.scoreboard._repr_html_()
        except PotentiaError as error:
            return f"<p>{error.message}</p>"


def evaluate(
    study: str | Path | Study | None = None,
    *,
    models: Sequence[str | dict[str, Any]] | None = None,
    tasks: Sequence[str | dict[str, Any]] | None = None,
    protocols: Sequence[str] | None = None,
    caps: Mapping[str, int] | None = None,
    tuning: Mapping[str, Any] | None = None,
    data_dir: str | Path | None = None,
    store: str | Path | None = None,
    device: str | None = None,
    workers: int = 1,
    progress: bool = True,
    fields: Mapping[str, Any] | None = None,
) -> Result:
    """Run a study, from a file or from what is named here, and return what it found; run again, it resumes.

    Args:
        study: A study file, or a study made by ``make_study``; or none, with models and tasks named here.
        models: Hub names, folders, or records as in a study file.
        tasks: lm-eval tasks, files of your own, or records as in a study file.
        protocols: ``direct`` and ``train_before_test`` where absent.
        caps: The most examples of each split: ``{"train": 500, "test": 500}``.
        tuning: The fine-tuning that every model receives: ``{"epochs": 2}``.
        data_dir: Folder of benchmark splits; the hub where absent.
        store: SQLite file or database URL; ``potentia.db`` where absent.
        device: ``auto``, ``cpu``, ``cuda`` …
        workers: Models at once.
        progress: Whether a progress bar is shown.
        fields: Any other field of the study file: ``{"seeds": 3}``. What is named here goes over the file.

    Returns:
        The scores as a table (``scores``), the rankings, and the report.

    Example:
        >>> result = potentia.evaluate(models=["my-model", "other"], tasks=["my.csv"], store="my.db")
        >>> result.scoreboard.headline()
    """
    if not isinstance(study, Study):
        named_fields = {
            "models": models,
            "tasks": tasks,
            "protocols": protocols,
            "caps": caps,
            "tuning": tuning,
            "data_dir": None if data_dir is None else str(data_dir),
            "store": None if store is None else str(store),
            "device": device,
            **(fields or {}),
        }
        overrides = {name: value for name, value in named_fields.items() if value is not None}
        study = read_study(study, overrides)
    plan = plan_study(study)
    watch = _show_progress_bar if progress else None
    run = run_study(plan, workers=workers, watch=watch)
    if run.failed:
        warnings.warn(_describe_failures(study, run), stacklevel=2)
    return Result(study, run)


def _describe_failures(study: Study, run: RunResult) -> str:
    """Return the first failure's reason, how many more there are, and the command that shows them."""
    reason = run.reasons[0]
    if run.failed > 1:
        reason = f"{reason} and {run.failed - 1} more"
    return f"{reason}; see potentia status {shlex.quote(study.store)}"


@contextmanager
def _show_progress_bar(plan: StudyPlan) -> Iterator[None]:
    """Show the cells that end as a bar: a widget in a notebook, text elsewhere."""
    from tqdm.auto import tqdm

    from potentia.run import CellCount

    cell_count = CellCount(plan)
    with (
        Store.open(plan.study.store) as store,
        tqdm(
            total=len(cell_count.asked), unit="cell", desc=plan.study.name, disable=False
        ) as progress_bar,
    ):
        last_event_id = store.events.read_last_id(plan.key)

        def show_new_events() -> None:
            nonlocal last_event_id
            for event in store.events.read(plan.key, after_id=last_event_id):
                last_event_id = event.id
                if not cell_count.hear(event):
                    continue
                progress_bar.update(cell_count.ended - progress_bar.n)
                facts = event.payload
                if "task" in facts:
                    cell_name = f"{facts['row']} × {facts['task']} × {facts['protocol']}"
                    progress_bar.set_postfix_str(cell_name)

        with repeatedly(show_new_events, 0.5):
            yield
