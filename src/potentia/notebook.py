"""``evaluate``: run a study from a notebook or a script, and get its scores, rankings and report.

It is ``potentia run`` from Python: the same study, store, resuming and numbers, with a progress bar that suits notebook
or terminal.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.analysis.rankings import Rankings, Scoreboard, find_rankings
from potentia.errors import PotentiaError
from potentia.evidence import Evidence, read
from potentia.extras import Extra, require_extra
from potentia.run import RunResult, StudyPlan, plan_study, run_study
from potentia.show import make_report, save_report
from potentia.store import Store
from potentia.study import Study, read_study
from potentia.timing import call_repeatedly

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Result:
    """What a study gave: its scores as a table, its rankings, and its report."""

    study: Study
    run: RunResult

    def __repr__(self) -> str:
        """Return the study and how its run ended."""
        return f"Result({self.study!r}, {self.run!r})"

    @cached_property
    def evidence(self) -> Evidence:
        """Everything that the store has of the study."""
        return read(self.study.store, study=self.run.study)

    @property
    def scores(self) -> pd.DataFrame:
        """One row per score: protocol, model, task, metric, score, stderr, n."""
        return self.evidence.to_frame()

    @cached_property
    def rankings(self) -> Rankings:
        """All findings of ``potentia analyze rankings``."""
        return find_rankings(self.evidence)

    @property
    def scoreboard(self) -> Scoreboard:
        """The answer: scores, gains by fine-tuning, ranks, and whether the first place is certain."""
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
    models: Sequence[str | dict[str, object]] | None = None,
    tasks: Sequence[str | dict[str, object]] | None = None,
    protocols: Sequence[str] | None = None,
    caps: Mapping[str, int] | None = None,
    tuning: Mapping[str, object] | None = None,
    data_dir: str | Path | None = None,
    store: str | Path | None = None,
    device: str | None = None,
    workers: int = 1,
    progress: bool = True,
    fields: Mapping[str, object] | None = None,
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
    require_extra(Extra.RUN, "evaluating models")
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
    study_plan = plan_study(study)
    watch = _show_progress_bar if progress else None
    run_result = run_study(study_plan, workers=workers, watch=watch)
    if run_result.failed:
        warnings.warn(_describe_failures(study, run_result), stacklevel=2)
    return Result(study, run_result)


def _describe_failures(study: Study, run_result: RunResult) -> str:
    """Return the reason of the first failure, how many more there are, and the command that shows them."""
    reason = run_result.reasons[0]
    if run_result.failed > 1:
        reason = f"{reason} and {run_result.failed - 1} more"
    return f"{reason}; see potentia status {shlex.quote(study.store)}"


@contextmanager
def _show_progress_bar(study_plan: StudyPlan) -> Iterator[None]:
    """While the context is open, show finished cells (results) as a progress bar: a widget in a notebook, else text."""
    from tqdm.auto import tqdm

    from potentia.run import CellCount

    cell_count = CellCount(study_plan)
    with (
        Store.open(study_plan.study.store) as store,
        tqdm(
            total=len(cell_count.asked), unit="cell", desc=study_plan.study.name, disable=False
        ) as progress_bar,
    ):
        last_event_id = store.events.read_last_id(study_plan.key)

        def show_new_events() -> None:
            nonlocal last_event_id
            for event in store.events.read(study_plan.key, after_id=last_event_id):
                last_event_id = event.id
                if not cell_count.hear(event):
                    continue
                progress_bar.update(cell_count.ended - progress_bar.n)
                facts = event.payload
                if "task" in facts:
                    cell_name = f"{facts['row']} × {facts['task']} × {facts['protocol']}"
                    progress_bar.set_postfix_str(cell_name)

        with call_repeatedly(show_new_events, 0.5):
            yield
