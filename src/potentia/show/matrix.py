"""The score matrix of the page: a table for every protocol and for every gain, with gaps and the reasons for them.

The completed matrix, where cells that are not measured yet are predicted, is the same table with those cells hatched.
One cell by itself is plain values, for the page or the API.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import numpy as np

from potentia.analysis.completion import Completion
from potentia.analysis.rankings import (
    AGGREGATE_LABELS,
    ScoresWithItems,
    measure_gain_variance,
)
from potentia.analysis.stats import interval_of_score
from potentia.store import CellRecord, LaneRecord
from potentia.values.findings import Interval, short_names
from potentia.values.metric import Metric
from potentia.values.protocol import Protocol, TaskName, sort_protocols
from potentia.values.scores import ItemOutcome
from potentia.values.selection import Selection
from potentia.values.wording import set_signs_of_cell

if TYPE_CHECKING:
    from potentia.show.answer import Answer
    from potentia.show.source import ItemSample, ReportData

ModelAndTask = tuple[str, str]
Z_95 = 1.96  # standard errors: the half-width of a 95 % interval
# PageData of a selection that the page does not show: the lanes say them.
SHOWN_BY_LANES = ("seeds", "failed_lanes", "validation_stderr", "validation_right")
MAX_TEXT_CHARACTERS = 2_000  # of a prompt or an answer; the middle of longer ones is left out
MAX_CHOICE_CHARACTERS = 300
MAX_CELLS = 12_000  # of one table of the page; the best models come first
MIN_MODELS = 20  # of one table, however many tasks there are
SHADE_POWER = 1.7  # of the share of models that score less: the top is shaded steeper


class ShownScore(NamedTuple):
    """What one cell shows: a measured score with its error, or a predicted one with its interval."""

    value: float
    stderr: float = math.nan
    interval: tuple[float, float] | None = None  # of a prediction
    measured: Interval | None = None  # of a measured score

    def describe_error(self, digits: int) -> str:
        """Write how far the interval of a measured score reaches; a gain has its standard error alone."""
        measured = self.measured
        if measured is None:
            measured = Interval.around(self.value, Z_95 * self.stderr)
        text = (measured.format_error(digits=digits) or "").replace("± ", "±")
        if measured.low < 0:
            return text
        return text.strip("()").replace(" to ", "–")  # as narrow as the scores around it


@dataclass(frozen=True)
class ScoreView:
    """One table of the matrix: models and tasks in the order of the page, and what its cells show.

    The templates read its fields and methods.
    """

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    ranks: Mapping[str, tuple[float, float, float]]
    method: str
    higher_is_better: Mapping[str, bool]  # by task
    facts: Mapping[str, Mapping[str, str]]  # family and kind of a model
    failed: Mapping[tuple[str, str, str], str]  # model, task, protocol → reason
    address: Callable[[str, str, str], str] | None  # of a cell's details
    id: str = ""
    label: str = ""
    protocol: Protocol = field(default_factory=lambda: Protocol(""))
    cells: Mapping[ModelAndTask, ShownScore] = field(default_factory=dict)
    gain: bool = False

    def shown_tasks(self) -> list[str]:
        """Return the tasks that some model has under this protocol: a column of dots says nothing."""
        tasks = {task for _, task in self.cells}
        tasks |= {task for _, task, protocol in self.failed if protocol == self.protocol}
        return [task for task in self.tasks if task in tasks]

    def names(self) -> list[tuple[str, str]]:
        """Return every model with its short name."""
        return list(zip(self.models, short_names(self.models), strict=True))

    @cached_property
    def _sorted_values(self) -> dict[str, list[float]]:
        """The scores of each task, the smallest first."""
        values_by_task: dict[str, list[float]] = {}
        for (_, task), score in self.cells.items():
            values_by_task.setdefault(task, []).append(score.value)
        for values in values_by_task.values():
            values.sort()
        return values_by_task

    def cell(self, model: str, task: str) -> dict[str, Any]:
        """Return what the template writes of one cell."""
        reason = ""
        if not self.gain:
            reason = self.failed.get((model, task, self.protocol), "")
        score = self.cells.get((model, task))
        if score is None:
            return {"reason": reason, "value": None}
        digits = _digits_of(score)
        sign = "+" if self.gain else ""
        is_good, share = self._shade(score.value, task)
        link = ""
        if self.address is not None and not self.gain and score.interval is None:
            link = self.address(model, task, self.protocol)
        return {
            "reason": reason,
            "value": score.value,
            "text": set_signs_of_cell(f"{score.value:{sign}.{digits}f}"),
            "good": is_good,
            "share": f"{share:.2f}",
            "link": link,
            "error": score.stderr if math.isfinite(score.stderr) else None,
            "half": score.describe_error(digits),
            "interval": score.interval,
            "ends": [f"{end:.{digits}f}" for end in score.interval or ()],
        }

    def _shade(self, value: float, task: str) -> tuple[bool, float]:
        """Return whether it is good, and how strong its colour is.

        Scores go by their place among the models of the task, and steeper at the top: there the models differ least
        and matter most. Gains go by their size.
        """
        values = self._sorted_values[task]
        higher_is_better = self.higher_is_better.get(task, True)
        if self.gain:
            largest = max(abs(values[0]), abs(values[-1])) or 1.0
            is_good = (value > 0) == higher_is_better or value == 0
            return is_good, abs(value) / largest
        share_below = 0.5
        if len(values) > 1:
            share_below = bisect_left(values, value) / (len(values) - 1)
        if not higher_is_better:
            share_below = 1 - share_below
        return True, share_below**SHADE_POWER


def _digits_of(score: ShownScore) -> int:
    if abs(score.value) >= 100:
        return 1
    return 2 if score.interval else 3


# --- the tables of the page -------------------------------------------------------------------------------------------


def make_score_views(report_data: ReportData, answer: Answer, board_url: str) -> list[ScoreView]:
    """Return the scores by every protocol, the one that ranks first, and the gains over the first."""
    empty_view = _make_shared_view(report_data, answer, board_url)
    failed_protocols = (failure.protocol for failure in report_data.failures)
    protocols = sort_protocols(dict.fromkeys((*report_data.evidence.scores, *failed_protocols)))
    cells_by_protocol = {
        protocol: _measured_scores(report_data, protocol) for protocol in protocols
    }
    views = [
        replace(
            empty_view,
            id=protocol,
            label=protocol.label,
            protocol=protocol,
            cells=cells_by_protocol[protocol],
        )
        for protocol in sorted(
            protocols, key=lambda protocol: protocol != report_data.ranking_protocol
        )
    ]
    first_protocol, *other_protocols = protocols
    for protocol in other_protocols:
        label = f"gain, {protocol.label}" if len(protocols) > 2 else "gain"
        gains = _compute_gains(
            cells_by_protocol[first_protocol],
            cells_by_protocol[protocol],
            _measure_gain_errors(report_data, first_protocol, protocol),
        )
        views.append(
            replace(
                empty_view,
                id=f"gain-{protocol}",
                label=label,
                protocol=protocol,
                cells=gains,
                gain=True,
            )
        )
    return views


def _measure_gain_errors(
    report_data: ReportData, before: Protocol, after: Protocol
) -> dict[ModelAndTask, float]:
    """Return the standard errors of gains, paired where both scores are of the same stored examples."""
    scores = report_data.evidence.scores
    if before not in scores or after not in scores:
        return {}
    outcomes = report_data.evidence.outcomes
    matrix = scores[after]
    variance = measure_gain_variance(
        ScoresWithItems(scores[before], outcomes.get(before, {})),
        ScoresWithItems(matrix, outcomes.get(after, {})),
        matrix.models,
        matrix.tasks,
    )
    errors = np.sqrt(variance)
    return {
        (matrix.models[row], matrix.tasks[column]): float(errors[row, column])
        for row, column in np.ndindex(errors.shape)
    }


def _compute_gains(
    before: Mapping[ModelAndTask, ShownScore],
    after: Mapping[ModelAndTask, ShownScore],
    errors: Mapping[ModelAndTask, float],
) -> dict[ModelAndTask, ShownScore]:
    """Return the differences of the cells that both have, with their errors."""
    gains = {}
    for cell in after.keys() & before.keys():
        difference = after[cell].value - before[cell].value
        error = errors.get(cell, math.nan)
        gains[cell] = ShownScore(difference, error)
    return gains


def make_completed_view(
    report_data: ReportData, answer: Answer, completion: Completion, board_url: str
) -> ScoreView:
    """Return the matrix that the study will have: measured cells, and predicted ones with their intervals."""
    max_models = max(MIN_MODELS, MAX_CELLS // len(completion.tasks))
    order = [int(row) for row in np.argsort(completion.rank, kind="stable")][:max_models]
    ranks = {
        completion.models[row]: (
            completion.rank[row],
            completion.rank_low[row],
            completion.rank_high[row],
        )
        for row in order
    }
    return replace(
        _make_shared_view(report_data, answer, board_url),
        models=tuple(completion.models[row] for row in order),
        tasks=completion.tasks,
        ranks=ranks,
        method="mean z score over tasks, predicted",
        higher_is_better=dict(zip(completion.tasks, completion.higher_is_better, strict=True)),
        id="completed",
        label=completion.protocol.label,
        protocol=completion.protocol,
        cells=_complete_cells(_measured_scores(report_data, completion.protocol), completion),
    )


def _complete_cells(
    measured: Mapping[ModelAndTask, ShownScore], completion: Completion
) -> dict[ModelAndTask, ShownScore]:
    """Return the measured cells, and predictions for the others."""
    cells = {}
    for row, model in enumerate(completion.models):
        for column, task in enumerate(completion.tasks):
            predicted = ShownScore(
                float(completion.mean[row, column]),
                interval=(float(completion.low[row, column]), float(completion.high[row, column])),
            )
            cells[model, task] = predicted
            if completion.measured[row, column]:
                cells[model, task] = measured.get((model, task), predicted)
    return cells


def has_details(report_data: ReportData) -> bool:
    """Whether some cell has more to show than its score: lanes, items, or how it was made."""
    if report_data.items:
        return True
    return any(cell.provenance.task.fingerprint for cell in report_data.cells)


def cells_context(report_data: ReportData, answer: Answer) -> dict[str, Any]:
    """Return what the browser of single cells needs: which there are, and for a file what they hold, by model."""
    models, _ = list_models_and_tasks(report_data)
    tasks = list_tasks_of_cells(report_data)
    shown_models = list_shown_models(report_data, answer)

    def make_index(board_url: str) -> dict[str, Any]:
        """Return for every protocol and model a row of noughts and ones over the tasks, folds apart."""
        existing = {(cell.protocol, cell.model, cell.task) for cell in report_data.cells}
        model_names = models if board_url else shown_models
        protocols = sort_protocols(dict.fromkeys(cell.protocol for cell in report_data.cells))
        rows_by_protocol = {}
        for protocol in protocols:
            rows = []
            for model in model_names:
                flags = [str(int((protocol, model, task) in existing)) for task in tasks]
                rows.append("".join(flags))
            rows_by_protocol[protocol] = rows
        return {
            "models": model_names,
            "tasks": tasks,
            "labels": [task.label for task in tasks],
            "wholes": [task.whole for task in tasks],
            "protocols": [{"name": protocol, "label": protocol.label} for protocol in protocols],
            "there": rows_by_protocol,
            "main": report_data.ranking_protocol,
        }

    def collect_cells() -> dict[str, list[Any]]:
        """Return the cells of the shown models, for the file; the board fetches a cell when it is looked at."""
        lanes_by_cell: dict[str | None, list[LaneRecord]] = {}
        only_models = shown_models if len(shown_models) < len(models) else None
        for lane in report_data.evidence.lanes(only_models):
            lanes_by_cell.setdefault(lane.cell, []).append(lane)
        cells_by_model: dict[str, list[Any]] = {model: [] for model in shown_models}
        for cell in report_data.cells:
            if cell.model in cells_by_model:
                lanes = lanes_by_cell.get(cell.key, ())
                payload = cell_payload(cell, lanes, report_data.items.get(cell.key))
                cells_by_model[cell.model].append(payload)
        return cells_by_model

    return {"by_model": collect_cells, "index": make_index, "per_cell": report_data.items_per_cell}


def list_tasks_of_cells(report_data: ReportData) -> list[TaskName]:
    """Return the tasks that the cells are of, in the order of the matrices: of a task in folds every fold."""
    _, tasks = list_models_and_tasks(report_data)
    position_by_task = {task: position for position, task in enumerate(tasks)}

    def order(task: TaskName) -> tuple[int, tuple[int, int], str]:
        position = position_by_task.get(task, position_by_task.get(task.whole, len(tasks)))
        return position, task.fold or (0, 0), task

    return sorted({TaskName(cell.task) for cell in report_data.cells}, key=order)


def list_models_and_tasks(report_data: ReportData) -> tuple[list[str], list[str]]:
    """Return every model and task that has a score or a failure, tasks in the order of the matrices."""
    models: list[str] = []
    tasks: list[str] = []
    for matrix in report_data.evidence.scores.values():
        models += matrix.models
        tasks += matrix.tasks
    for failure in report_data.failures:
        models.append(failure.model)
        tasks.append(failure.task)
    return list(dict.fromkeys(models)), list(dict.fromkeys(tasks))


def list_shown_models(report_data: ReportData, answer: Answer) -> list[str]:
    """Return the models of the page: ranked ones first, of checkpoints in the order of their steps; no more than fit.

    A page of thousands of models would open in no browser; what is left out is told, and an export has it.
    """
    models, tasks = list_models_and_tasks(report_data)
    rank_by_model = {standing.model: position for position, standing in enumerate(answer.standings)}
    models.sort(key=lambda name: (rank_by_model.get(name, len(rank_by_model)), name.casefold()))
    if report_data.pretraining_runs is not None:
        checkpoints: list[str] = []
        for run in report_data.pretraining_runs.runs:
            checkpoints.extend(run.models)
        checkpoint_position = {model: position for position, model in enumerate(checkpoints)}
        models.sort(key=lambda name: checkpoint_position.get(name, len(checkpoint_position)))
    return models[: max(MIN_MODELS, MAX_CELLS // max(1, len(tasks)))]


def _make_shared_view(report_data: ReportData, answer: Answer, board_url: str) -> ScoreView:
    """Return what all views share: models and tasks in the order of the page, and what is known of them."""
    metric_by_task: dict[str, Metric] = {}
    for matrix in report_data.evidence.scores.values():
        metric_by_task.update(zip(matrix.tasks, matrix.metrics, strict=True))
    corpora = {task for task, metric in metric_by_task.items() if metric.is_text}
    models = list_shown_models(report_data, answer)
    _, tasks = list_models_and_tasks(report_data)
    tasks.sort(key=lambda task: task in corpora)  # corpora come after the tasks
    background = report_data.evidence.background
    facts = {
        model: {
            "family": background.families.get(model, ""),
            "kind": background.kinds.get(model, ""),
        }
        for model in models
    }
    ranks: dict[str, tuple[float, float, float]] = {}
    if report_data.pretraining_runs is None and answer.board is not None:
        can_claim = (
            answer.board.ranking.can_claim
        )  # without errors an interval of ranks says nothing
        for standing in answer.standings:
            low, high = standing.rank_interval if can_claim else (math.nan, math.nan)
            ranks[standing.model] = (standing.rank, low, high)
    failure_reasons = {}
    for failure in report_data.failures:
        failure_reasons[failure.model, failure.task, failure.protocol] = failure.reason
    return ScoreView(
        models=tuple(models),
        tasks=tuple(tasks),
        ranks=ranks,
        method=AGGREGATE_LABELS.get(answer.method, answer.method),
        higher_is_better={task: metric.higher_is_better for task, metric in metric_by_task.items()},
        facts=facts,
        failed=failure_reasons,
        address=partial(_address_of_cell, board_url) if has_details(report_data) else None,
    )


def _address_of_cell(board_url: str, model: str, task: str, protocol: str) -> str:
    """Return where the details of a cell are: on the board, or in the page where there is no board."""
    if board_url:
        query = urlencode({"model": model, "task": task, "protocol": protocol})
        return f"{board_url}/cell?{query}"
    return "#cell=" + "/".join(quote(part, safe="") for part in (model, task, protocol))


def _measured_scores(report_data: ReportData, protocol: Protocol) -> dict[ModelAndTask, ShownScore]:
    """Return the measured scores of a protocol."""
    matrix = report_data.evidence.scores.get(protocol)
    if matrix is None:
        return {}
    return {
        (model, task): ShownScore(score.value, score.stderr, measured=interval_of_score(score))
        for model, task, score in matrix.scores()
    }


# --- one cell as plain values -----------------------------------------------------------------------------------------


def cell_payload(
    cell: CellRecord,
    lanes: Iterable[LaneRecord],
    items: ItemSample | None = None,
    *,
    with_provenance: bool = False,
) -> dict[str, Any]:
    """Return one cell as plain values for the page or the API: score, what validation chose, lanes, items."""
    score = cell.score
    examples_by_split = cell.provenance.task.used_by_split()
    scores_by_metric: dict[str, list[float | None]] = {}
    for metric_name, metric_score in cell.scores.items():
        scores_by_metric[metric_name] = [_round(metric_score.value), _round(metric_score.stderr)]
    payload: dict[str, Any] = {
        "key": cell.key,
        "model": cell.model,
        "task": cell.task,
        "task_label": TaskName(cell.task).label,
        "protocol": cell.protocol,
        "metric": cell.metric,
        "created": cell.created,
        "value": _finite_or_none(score.value),
        "stderr": _finite_or_none(score.stderr),
        "error": interval_of_score(score).format_error(),
        "n": score.n,
        "higher_is_better": score.higher_is_better,
        "scores": scores_by_metric,
        "seconds": round(cell.seconds, 2),
        "direct": _finite_or_none(cell.direct_value),
        "gain": _finite_or_none(cell.gain),
        "selection": selection_payload(cell.selection),
        "splits": {split: used for split, used in examples_by_split.items() if used is not None},
        "lanes": [lane_payload(lane) for lane in lanes],
        "items": [],
        "total": 0,
        "right": None,
    }
    if items is not None:
        payload["items"] = [item_payload(outcome) for outcome in items.outcomes]
        payload["total"] = items.total
        payload["right"] = items.right
    if with_provenance:
        payload["provenance"] = cell.provenance.to_dict()
    return payload


def selection_payload(selection: Selection) -> dict[str, Any]:
    """Return what validation chose as plain values for the page; what the lanes say is left out."""
    payload = selection.to_dict()
    if selection.search is not None:
        payload["search"] = selection.search.label
        payload["may_have_more"] = selection.may_have_more
    shown_fields = {}
    for field_name, value in payload.items():
        is_empty = value in (None, [], {}, 0)
        if field_name not in SHOWN_BY_LANES and not is_empty:
            shown_fields[field_name] = value
    return shown_fields


def lane_payload(lane: LaneRecord) -> dict[str, Any]:
    """Return one lane with its curve."""
    return {
        "key": lane.key,
        "task": lane.task,
        "learning_rate": lane.learning_rate,
        "style": lane.style,
        "seed": lane.seed,
        "status": lane.status,
        "selected": lane.selected,
        "note": lane.note,
        "epoch": [epoch.epoch for epoch in lane.epochs],
        "value": [_round(epoch.value) for epoch in lane.epochs],
        "stderr": [_round(epoch.stderr) for epoch in lane.epochs],
        "loss": [_round(epoch.train_loss) for epoch in lane.epochs],
    }


def item_payload(outcome: ItemOutcome) -> dict[str, Any]:
    """Return one item: what was asked, what was right, what the model chose and how sure it was."""
    choices = outcome.detail.get("choices")
    logprobs = outcome.detail.get("logprobs")
    payload: dict[str, Any] = {
        "id": outcome.doc_id,
        "value": _round(outcome.value),
        "prompt": shorten_text(str(outcome.detail.get("prompt", ""))),
        "gold": shorten_text(outcome.gold),
        "prediction": shorten_text(outcome.prediction),
    }
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        payload["choices"] = [
            shorten_text(str(choice), MAX_CHOICE_CHARACTERS) for choice in choices
        ]
        if isinstance(logprobs, Sequence) and len(logprobs) == len(choices):
            payload["logprobs"] = [_round(value) for value in logprobs]
    return payload


def filter_items(
    items: Sequence[ItemOutcome], *, query: str = "", outcome: str = "all"
) -> list[ItemOutcome]:
    """Return the items that are right or wrong as asked and hold the query in prompt, gold or answer, in any case."""
    folded_query = query.casefold().strip()

    def has_outcome(item: ItemOutcome) -> bool:
        is_right = item.value > 0.5
        return outcome == "all" or is_right == (outcome == "right")

    def has_query(outcome: ItemOutcome) -> bool:
        texts = (
            str(outcome.detail.get("prompt", "")),
            outcome.gold,
            outcome.prediction,
            str(outcome.doc_id),
        )
        return any(folded_query in text.casefold() for text in texts)

    return [outcome for outcome in items if has_outcome(outcome) and has_query(outcome)]


def shorten_text(text: str, max_characters: int = MAX_TEXT_CHARACTERS) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= max_characters:
        return text
    half_length = max_characters // 2
    left_out = len(text) - 2 * half_length
    return f"{text[:half_length]}\n… {left_out:,} characters left out …\n{text[-half_length:]}"


def _finite_or_none(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return value


def _round(value: Any) -> float | None:
    """Round a number to five digits; None where there is none."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return round(float(value), 5)
