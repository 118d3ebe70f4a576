"""What the cells of a study cost: lanes, tokens and FLOPs from the tasks, and seconds from measured paces.

A pace says how fast a model of some size ran on a device: seconds to load, seconds per token scored (by task, because
generating costs more than reading) and seconds per token trained. Paces come from the rows in the store, else from a
short ``calibration``. A model between two measured sizes has a pace between theirs; a larger model than all measured
ones pays in proportion to its size.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from potentia.errors import InputError
from potentia.run.progress import read_events
from potentia.study import tuning_for_adjust
from potentia.values.protocol import TRAIN_BEFORE_TEST, Protocol, TaskName

if TYPE_CHECKING:
    from potentia.run.ask import SplitName
    from potentia.run.plan import CellPlan, Row, StudyPlan
    from potentia.store import Store
    from potentia.study import ModelSpec
    from potentia.tasks import Task

Key = TypeVar("Key")

CHARACTERS_PER_TOKEN = 4.0  # roughly, in English text; paces are measured by the same ruler
SAMPLED_DOCUMENTS = 50  # of a split, by which the length of all is estimated
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Bytes of a GPU: what every row needs, and what each parameter needs for weights and their float32 copy.
LEAST_ROOM = 4 * 2**30
ROOM_PER_PARAMETER = 6.0
# Bytes of activations per token and √parameter: half as much again as the layers of five models keep.
ROOM_PER_TOKEN = 44.0
PASS_TOKENS = 20_000
SCORING_FLOPS = 2  # for a token and a parameter
# Bytes per weight, averaged with embeddings and head, which keep their dtype.
FEW_BYTES = {"8bit": 1.2, "4bit": 0.75}
GGUF_BYTES = 0.65  # per weight, as most files on the hub have them


@dataclass(frozen=True)
class CellWork:
    """What one cell has to do, whoever computes it."""

    model: str
    task: str
    protocol: Protocol
    finished: bool
    lanes: float  # as many as are expected: a search may ask for more learning rates
    train_tokens: float  # over all epochs of all lanes
    score_tokens: float  # test, and validation after every epoch of every lane
    flops: float  # NaN where the size is unknown
    seconds: float = float("nan")
    sampled_tokens: float = 0.0  # of those scored, the samples of pass@k
    train_factor: float = 2.0  # the work of learning from a token over that of scoring one

    @property
    def work_in_scored_tokens(self) -> float:
        """The tokens whose scoring alone would be as much work."""
        return self.train_factor * self.train_tokens + self.score_tokens


def find_train_factor(method: str) -> float:
    """Return the work of learning from a token over that of scoring one, by the ``method`` of a tuning.

    Scoring goes forward: 2 FLOPs a parameter. Gradients of the activations are as much again. Those of the weights are
    another 2 where all weights are tuned, 6 in all; the few of adapters do not count.
    """
    return 3.0 if method == "full" else 2.0


@dataclass(frozen=True)
class Pace:
    """Seconds that a model of this size took; None where that was not measured."""

    parameters: float
    load: float | None  # and all else that is done once a row
    score: Mapping[str, float]  # per token, by task
    train: float | None  # per token
    tuned_slowdown: float = 1.0  # how much slower tuned models are scored than untuned ones
    epoch_end: float = 0.0  # the fixed part of an epoch's end, for all lanes together
    # Per token of a question after examples, by task and protocol.
    few_shot: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyCost:
    """The work of every cell, with seconds where a pace is known."""

    cells: tuple[CellWork, ...]
    loads: Mapping[str, float]  # seconds by model; 0 where only the store's cells were timed
    weights: Mapping[str, float]  # bytes by model; NaN where unknown
    source: str  # where the seconds come from
    device: str
    start: float = 0.0  # seconds more that a new process takes: libraries, kernels, the device
    shortages: Mapping[str, str] = field(
        default_factory=dict
    )  # by model whose memory may not suffice

    @property
    def pending(self) -> tuple[CellWork, ...]:
        """The cells still to compute."""
        return tuple(cell for cell in self.cells if not cell.finished)

    @property
    def seconds(self) -> float:
        """Seconds of the pending cells in a new process."""
        start = self.start if self.pending else 0.0
        cell_seconds = sum(cell.seconds for cell in self.pending)
        pending_models = {cell.model for cell in self.pending}
        load_seconds = sum(self.loads[model] for model in pending_models)
        return float(start + cell_seconds + load_seconds)


def describe_extra_work(cells: Sequence[CellWork]) -> str:
    """Say which share of the work blind twins and samples take; empty where there are none."""
    total = sum(cell.work_in_scored_tokens for cell in cells)
    blind = 0.0
    for cell in cells:
        if TaskName(cell.task).sighted is not None:
            blind += cell.work_in_scored_tokens
    sampled = sum(cell.sampled_tokens for cell in cells)
    parts = []
    if blind:
        parts.append(f"Blind twins are {blind / total:.0%} of the work.")
    if sampled:
        parts.append(f"The samples of pass@k are {sampled / total:.0%} of the work.")
    return " ".join(parts)


@dataclass(frozen=True)
class _TuningWork:
    """What tuning adds to the work of a cell."""

    lanes: float = 0.0
    train_tokens: float = 0.0
    validation_tokens: float = 0.0
    train_factor: float = 2.0


class _TokenCounts:
    """The tokens of the splits of a study's tasks, each counted once."""

    def __init__(self, study_plan: StudyPlan) -> None:
        self._tasks = study_plan.tasks.by_name
        self._counts: dict[tuple[str, str], float] = {}

    def count(self, task_name: str, split: SplitName) -> float:
        """Return the tokens of a task's split."""
        if (task_name, split) not in self._counts:
            self._counts[task_name, split] = estimate_tokens(self._tasks[task_name], split)
        return self._counts[task_name, split]


def count_work(study_plan: StudyPlan) -> list[CellWork]:
    """Count lanes, tokens and FLOPs of every cell."""
    token_counts = _TokenCounts(study_plan)
    all_work: list[CellWork] = []
    for row in study_plan.rows:
        parameters = find_parameters(row.model)
        adjusted_cells = [cell for cell in row.cells if _is_adjusted_to_the_end(cell)]
        for cell in row.cells:
            tuning_work = _TuningWork()
            if cell.protocol == TRAIN_BEFORE_TEST:
                tuning_work = _count_task_tuning(
                    study_plan, row.model.name, cell.task, token_counts
                )
            elif cell in adjusted_cells and study_plan.tasks.auxiliary is not None:
                tuning_work = _count_adjustment(
                    study_plan,
                    row.model,
                    study_plan.tasks.auxiliary,
                    cell,
                    adjusted_cells,
                    token_counts,
                )
            test_tokens = token_counts.count(cell.task, "test")
            samples = study_plan.tasks.by_name[cell.task].samples
            sampled_tokens = test_tokens * samples.count if samples is not None else 0.0
            score_tokens = test_tokens + sampled_tokens + tuning_work.validation_tokens
            cell_work = CellWork(
                model=row.model.name,
                task=cell.task,
                protocol=cell.protocol,
                finished=cell.finished,
                lanes=tuning_work.lanes,
                train_tokens=tuning_work.train_tokens,
                score_tokens=score_tokens,
                flops=math.nan,
                sampled_tokens=sampled_tokens,
                train_factor=tuning_work.train_factor,
            )
            flops = SCORING_FLOPS * parameters * cell_work.work_in_scored_tokens
            all_work.append(replace(cell_work, flops=flops))
    return all_work


def _is_adjusted_to_the_end(cell: CellPlan) -> bool:
    return cell.protocol.kind == "adjust" and cell.protocol.step is None


def _count_task_tuning(
    study_plan: StudyPlan, model_name: str, task_name: str, token_counts: _TokenCounts
) -> _TuningWork:
    """Count the work of tuning a model on a task's own training documents."""
    tuning = study_plan.study.tuning
    documents = len(study_plan.tasks.by_name[task_name].documents("train"))
    epochs, passes_per_epoch = tuning.plan_epochs(documents)
    lanes = tuning.expected_lanes * study_plan.study.count_seeds(model_name, task_name)
    return _TuningWork(
        lanes=lanes,
        train_tokens=token_counts.count(task_name, "train") * epochs * passes_per_epoch * lanes,
        validation_tokens=token_counts.count(task_name, "validation") * (epochs * lanes + 1),
        train_factor=find_train_factor(tuning.method),
    )


def _count_adjustment(
    study_plan: StudyPlan,
    model: ModelSpec,
    auxiliary: Task,
    cell: CellPlan,
    adjusted_cells: Sequence[CellPlan],
    token_counts: _TokenCounts,
) -> _TuningWork:
    """Count a cell's share of the one tuning on auxiliary data that all adjusted cells of a row have in common."""
    parameters = find_parameters(model)
    if math.isnan(parameters):
        parameters = 0.0
    recipe = tuning_for_adjust(study_plan.study, model, parameters)
    lanes = recipe.expected_lanes * study_plan.study.seeds
    epochs, passes_per_epoch = recipe.plan_epochs(len(auxiliary.documents("train")))
    train_tokens = estimate_tokens(auxiliary, "train") * epochs * passes_per_epoch * lanes
    counted_lanes = lanes if cell is adjusted_cells[0] else 0.0  # once for all of them
    return _TuningWork(
        lanes=counted_lanes,
        train_tokens=train_tokens / len(adjusted_cells),
        validation_tokens=token_counts.count(cell.task, "validation") * (lanes + 1),
        train_factor=find_train_factor(recipe.method),
    )


def price_work(
    study_plan: StudyPlan, paces: Sequence[Pace], source: str, device: str, *, start: float = 0.0
) -> StudyCost:
    """Put seconds on the work of a study."""
    all_work = count_work(study_plan)
    exposure_tokens = count_exposure_tokens(study_plan)
    usual_bytes = 4 if device == "cpu" else 2
    pace_by_model: dict[str, Pace] = {}
    loads: dict[str, float] = {}
    weights: dict[str, float] = {}
    for row in study_plan.rows:
        model = row.model
        parameters = find_parameters(model)
        pace = _estimate_pace(paces, parameters)
        exposure_seconds = 0.0
        if model.copy_of is not None:  # an exposed copy is tuned before it is scored
            exposure_seconds = exposure_tokens * (pace.train or 0.0)
        pace_by_model[model.name] = pace
        loads[model.name] = (pace.load or 0.0) + exposure_seconds
        bytes_per_weight = BYTES.get(model.dtype or study_plan.study.dtype, usual_bytes)
        weights[model.name] = parameters * FEW_BYTES.get(model.quantise or "", bytes_per_weight)
    epochs = _most_epochs(study_plan)
    tuned_cells = [cell for cell in all_work if cell.protocol.tuned and cell.protocol.step is None]
    tuned_cells_by_model = Counter(cell.model for cell in tuned_cells)
    priced_cells = []
    for cell in all_work:
        epoch_share = epochs / max(tuned_cells_by_model[cell.model], 1)
        seconds = _estimate_seconds(cell, pace_by_model[cell.model], epoch_share)
        priced_cells.append(replace(cell, seconds=seconds))
    return StudyCost(
        cells=tuple(priced_cells),
        loads=loads,
        weights=weights,
        source=source,
        device=device,
        start=start,
    )


def _most_epochs(study_plan: StudyPlan) -> int:
    """Return the epochs of the task that is trained for the most epochs."""
    tasks = study_plan.tasks.by_name.values()
    return max(
        study_plan.study.tuning.plan_epochs(len(task.documents("train")))[0] for task in tasks
    )


def _estimate_seconds(cell: CellWork, pace: Pace, epoch_share: float) -> float:
    """Return the seconds of a cell; ``epoch_share`` is its share of the epochs of its row, whose lanes end together."""
    score_pace = pace.score.get(cell.task, _median_pace(pace.score))
    if cell.protocol.kind == "few_shot":
        shots = cell.protocol.shots or 0
        score_pace = pace.few_shot.get((cell.task, str(cell.protocol)), score_pace * (1 + shots))
    if not cell.train_tokens:
        return float(cell.score_tokens * score_pace)
    train_pace = math.nan if pace.train is None else pace.train
    score_seconds = cell.score_tokens * score_pace * pace.tuned_slowdown
    train_seconds = cell.train_tokens * train_pace
    return float(score_seconds + train_seconds + pace.epoch_end * epoch_share)


def count_exposure_tokens(study_plan: StudyPlan) -> float:
    """Return the tokens that an exposed copy learns from before it is scored."""
    exposure = study_plan.study.treat
    if exposure is None:
        return 0.0
    tasks = study_plan.tasks.exposure.values()
    documents = sum(len(task.documents("train")) for task in tasks)
    exposure_tuning = exposure.make_tuning(study_plan.study.tuning)
    epochs, passes_per_epoch = exposure_tuning.plan_epochs(documents)
    return epochs * passes_per_epoch * sum(estimate_tokens(task, "train") for task in tasks)


def read_paces(study_plan: StudyPlan, store: Store, device: str) -> list[Pace]:
    """Return the paces of the rows whose cells are in the store and ran on the same kind of device."""
    work_by_cell = {(work.model, work.task, work.protocol): work for work in count_work(study_plan)}
    load_seconds = _read_load_seconds(study_plan, store)
    paces = []
    for row in study_plan.rows:
        timed_cells = []
        for cell in row.cells:
            seconds = _read_seconds(store, cell, device) if cell.finished else None
            if seconds is not None:
                work = work_by_cell[row.model.name, cell.task, cell.protocol]
                timed_cells.append((work, seconds))
        load = None
        if row.model.copy_of is None:  # a copy's seconds also hold the tuning that made it
            load = load_seconds.get(row.model.name)
        pace = measure_pace(find_parameters(row.model), timed_cells, load_seconds=load)
        if pace is not None and np.isfinite(pace.parameters):
            paces.append(pace)
    return paces


def measure_pace(
    parameters: float, timed: Iterable[tuple[CellWork, float]], *, load_seconds: float | None = None
) -> Pace | None:
    """Return the pace of one row by its cells and the seconds they took; None where nothing was measured.

    The tuned cells of a row train together and are committed one by one, so their seconds count as one sum.
    """
    score: dict[str, float] = {}
    few_shot: dict[tuple[str, str], float] = {}
    tuned_cells = []
    for cell_work, seconds in timed:
        if cell_work.protocol.kind == "direct" and cell_work.score_tokens:
            score[cell_work.task] = seconds / cell_work.score_tokens
        if cell_work.protocol.kind == "few_shot" and cell_work.score_tokens:
            few_shot[cell_work.task, str(cell_work.protocol)] = seconds / cell_work.score_tokens
        if cell_work.train_tokens:
            tuned_cells.append((cell_work, seconds))
    if not score and not tuned_cells:
        return None
    train = _measure_train_pace(tuned_cells, score) if tuned_cells else None
    if not score:  # all seconds of the tuned cells count as training
        score = {cell_work.task: 0.0 for cell_work, _ in tuned_cells}
    return Pace(
        parameters=parameters, load=load_seconds, score=score, train=train, few_shot=few_shot
    )


def _measure_train_pace(
    tuned_cells: Sequence[tuple[CellWork, float]], score: Mapping[str, float]
) -> float:
    """Return the seconds per token trained: all seconds but those of scoring; where these are unknown, all."""
    median_pace = _median_pace(score)
    seconds = sum(cell_seconds for _, cell_seconds in tuned_cells)
    score_seconds = sum(
        cell_work.score_tokens * score.get(cell_work.task, median_pace)
        for cell_work, _ in tuned_cells
    )
    if not np.isfinite(score_seconds):
        score_seconds = 0.0
    train_seconds = max(seconds - score_seconds, 0.1 * seconds)
    return train_seconds / sum(cell_work.train_tokens for cell_work, _ in tuned_cells)


def estimate_tokens(task: Task, split: SplitName) -> float:
    """Estimate the tokens of a split from its first documents."""
    documents: Sequence[Any] = task.documents(split)
    if not documents:
        return 0.0
    sample = documents[:SAMPLED_DOCUMENTS]
    examples = task.examples(sample)
    characters = sum(len(example.context) + len(example.continuation) for example in examples)
    return len(documents) * (characters / len(sample)) / CHARACTERS_PER_TOKEN


def estimate_gpu_bytes(model: ModelSpec) -> float:
    """Return the bytes of a GPU that a row needs: weights, passes of lanes, caches; NaN where its size is unknown.

    Passes need most: small models hold longer ones, and a model whose passes find no room runs them kernel by kernel.
    """
    parameters = find_parameters(model)
    pass_tokens = min(PASS_TOKENS, max(10_000, 1e13 / parameters))
    activation_bytes = ROOM_PER_TOKEN * math.sqrt(parameters) * pass_tokens
    return LEAST_ROOM + ROOM_PER_PARAMETER * parameters + activation_bytes


def find_parameters(model: ModelSpec) -> float:
    """Return a model's parameters by the study, by its facts, or by its weight files; NaN where unknown."""
    from potentia.facts import models

    if model.parameters:
        return model.parameters
    facts = models().find(model.name) or models().find(model.source)
    if facts is not None and facts.parameters:
        return facts.parameters
    return _estimate_parameter_count(model) or math.nan


def _estimate_parameter_count(model: ModelSpec) -> float:
    """Estimate the parameter count of a GGUF file or of a model folder; 0 where it has no weights.

    A folder is counted by the headers of its safetensors files, else by the size of its files: GGUF at ``GGUF_BYTES`` a
    weight, all others at 2 bytes.
    """
    source = Path(model.source).expanduser()
    if source.is_file():
        return source.stat().st_size / GGUF_BYTES
    weight_files = sorted(source.glob("*.safetensors"))
    counts = [count_safetensors_weights(weight_file) for weight_file in weight_files]
    if weight_files and all(counts):
        return float(sum(counts))
    packed_files = sorted(source.glob("*.gguf"))
    if packed_files and not _count_file_bytes(model):
        return packed_files[0].stat().st_size / GGUF_BYTES
    return _count_file_bytes(model) / 2


def count_safetensors_weights(weight_file: Path) -> int:
    """Return the numbers that a safetensors file holds, by its header; 0 where that cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weight_file, framework="numpy") as tensors:
            shapes = [tensors.get_slice(tensor_name).get_shape() for tensor_name in tensors.keys()]  # noqa: SIM118
    except (SafetensorError, OSError):
        return 0
    return sum(math.prod(shape) for shape in shapes)


def _count_file_bytes(model: ModelSpec) -> int:
    """Return the size of the weight files of a folder; 0 where there are none."""
    folder = Path(model.source).expanduser()
    weight_files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    return sum(weight_file.stat().st_size for weight_file in weight_files)


def estimate_weight_bytes(row: Row) -> int | None:
    """Return the size of a model's weights in memory, by its files or its facts; None where nothing is known."""
    bytes_per_weight = 4 if row.study.dtype in ("float32", "auto") else 2
    source = Path(row.model.source).expanduser()
    file_bytes = _count_file_bytes(row.model)
    if source.is_file():
        weight_bytes = 4 * source.stat().st_size  # a GGUF file is unpacked
    elif file_bytes:
        weight_bytes = file_bytes * (bytes_per_weight // 2)  # files hold 16 bits a weight
    elif row.model.parameters:
        weight_bytes = int(row.model.parameters * bytes_per_weight)
    else:
        return None
    quantised_bytes = FEW_BYTES.get(row.model.quantise or "")
    if quantised_bytes is None:
        return weight_bytes
    return int(weight_bytes / bytes_per_weight * quantised_bytes)


# --- paces in between ---------------------------------------------------------------------------------------------


def _estimate_pace(paces: Sequence[Pace], parameters: float) -> Pace:
    """Return the pace of a size: between measured ones on log scales, beyond them in proportion."""
    measured_parameters = [pace.parameters for pace in paces]
    slowdowns = [pace.tuned_slowdown for pace in paces]
    tuned_slowdown = _interpolate(
        measured_parameters, slowdowns, parameters, grows_with_parameters=False
    )
    if tuned_slowdown is None:
        tuned_slowdown = 1.0
    loads = [pace.load for pace in paces]
    training_paces = [pace.train for pace in paces]
    epoch_ends = [pace.epoch_end for pace in paces]
    scoring_paces = [pace.score for pace in paces]
    few_shot_paces = [pace.few_shot for pace in paces]
    return Pace(
        parameters=parameters,
        load=_interpolate(measured_parameters, loads, parameters),
        score=_interpolate_each(measured_parameters, scoring_paces, parameters),
        train=_interpolate(measured_parameters, training_paces, parameters),
        tuned_slowdown=tuned_slowdown,
        epoch_end=_interpolate(measured_parameters, epoch_ends, parameters) or 0.0,
        few_shot=_interpolate_each(measured_parameters, few_shot_paces, parameters),
    )


def _interpolate_each(
    measured_parameters: Sequence[float], tables: Sequence[Mapping[Key, float]], parameters: float
) -> dict[Key, float]:
    """Interpolate the value of every key at a number of parameters, from a table for each measured model."""
    all_keys: set[Key] = set().union(*tables)
    interpolated = {}
    for work_kind in all_keys:
        value = _interpolate(
            measured_parameters, [table.get(work_kind) for table in tables], parameters
        )
        if value is not None:
            interpolated[work_kind] = value
    return interpolated


def _interpolate(
    measured_parameters: Sequence[float],
    values: Sequence[float | None],
    parameters: float,
    *,
    grows_with_parameters: bool = True,
) -> float | None:
    """Return a figure at a number of parameters by the values at measured ones.

    None where no value was measured, and the median of the values where the number is unknown.
    """
    points: list[tuple[float, float]] = []
    for parameter_count, value in zip(measured_parameters, values, strict=True):
        if value is not None:
            points.append((parameter_count, value))
    if not points:
        return None
    points.sort()
    counts, measured_values = np.array(points, dtype=np.float64).T
    if not np.isfinite(parameters):
        return float(np.median(measured_values))
    distinct_parameters = np.unique(counts)
    means = []
    for parameter_count in distinct_parameters:
        means.append(measured_values[counts == parameter_count].mean())
    log_means = np.log(np.maximum(means, 1e-12))
    value_inside = float(
        np.exp(np.interp(np.log(parameters), np.log(distinct_parameters), log_means))
    )
    if not grows_with_parameters:
        return value_inside
    return value_inside * max(parameters / float(distinct_parameters[-1]), 1.0)


def _median_pace(score: Mapping[str, float]) -> float:
    return float(np.median(list(score.values()))) if score else math.nan


def _read_seconds(store: Store, cell: CellPlan, device: str) -> float | None:
    """Return the seconds of a stored cell; None where they were not measured on such a device."""
    record = store.cells.get(cell.key)
    if record is None or record.seconds <= 0:
        return None
    recorded_device = record.provenance.model.device or ""
    if recorded_device.partition(":")[0] != device:
        return None
    return record.seconds


def _read_load_seconds(study_plan: StudyPlan, store: Store) -> dict[str, float]:
    """Return the seconds that the rows of this study took to load when they ran last, by model."""
    load_seconds = {}
    for event in read_events(store, study_plan.key):
        if event.kind == "row" and "load" in event.payload.get("tally", {}):
            load_seconds[str(event.payload["row"])] = float(event.payload["tally"]["load"])
    return load_seconds


UNITS = {
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "gpuh": 3600.0,
    "gpu-hour": 3600.0,
    "gpu-hours": 3600.0,
    "d": 86400.0,
    "days": 86400.0,
}


def parse_budget(text: str, full_cost: float) -> float:
    """Read a budget in seconds of the device: ``90s``, ``30min``, ``1.5h``, ``2gpu-hours``, or ``10%`` of all."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z-]+|%)\s*", text)
    amount = 0.0 if match is None else float(match[1])
    unit = "" if match is None else match[2].lower()
    if amount <= 0 or unit not in ("%", *UNITS):
        raise InputError(
            f"{text!r} is no budget",
            hint="give 90s, 30min, 2h, 2gpu-hours, or 10% of the whole study",
        )
    if unit == "%":
        return amount / 100.0 * full_cost
    return amount * UNITS[unit]


def format_time(seconds: float) -> str:
    """Write a time as a person would: 40 s, 2.5 min, 12 min, 3.5 h."""
    if not np.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 600:
        return f"{seconds / 60:.1f} min".replace(".0 ", " ")
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
