"""Results that travel: Every Eval Ever (schema 0.3.0, aggregate and instance level) and the Hub's ``.eval_results``.

What Every Eval Ever has no place for (protocol, seeds, fingerprints of data and recipe) goes into its ``details``,
whose values are texts, and comes back from there.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from potentia.errors import DataError, InputError, PotentiaError
from potentia.files import write_file
from potentia.formats.columns import metric_of
from potentia.formats.entries import Entry, documents, scored, tidy_row, told
from potentia.formats.layout import TRAVELS
from potentia.formats.table import json_lines, safe_name, section
from potentia.values.metric import Metric, Scale
from potentia.values.protocol import DIRECT, Protocol, TaskName
from potentia.values.scores import ItemOutcome, Score, ScoreMatrix

SCHEMA = "0.3.0"
Items = Callable[[str, str, str], Sequence[ItemOutcome]]  # (protocol, model, task) → outcomes
_BOUNDS: dict[Scale | None, tuple[Any, Any]] = {
    "share": (0.0, 1.0),
    "percent": (0.0, 100.0),
    "unbounded": ("-Infinity", "Infinity"),
}


@cache
def hub_dataset(task: str) -> str | None:
    """Return the dataset on the Hub that a task of lm-eval is made of; None where there is none, or several."""
    from potentia.tasks import read_stock_task

    try:
        definitions = read_stock_task(TaskName(task).base, as_data=True)
        found = {str(subtask.get("dataset_path") or "") for subtask in definitions.subtasks}
    except (PotentiaError, KeyError):
        return None
    name = found.pop() if len(found) == 1 else ""
    return name if name.count("/") == 1 and not Path(name).suffix else None


def write_every_eval_ever(
    matrices: Mapping[Protocol, ScoreMatrix], folder: Path, items: Items | None = None
) -> list[Path]:
    """Write one file per model, and beside it ``…_samples.jsonl`` where ``items`` gives the outcomes of documents."""
    models: dict[str, list[tuple[Protocol, str, Score]]] = {}
    for protocol, matrix in matrices.items():
        for model, task, score in matrix.scores():
            models.setdefault(model, []).append((protocol, task, score))
    now = str(int(time.time()))
    written: list[Path] = []
    for model, rows in models.items():
        developer, _, name = model.rpartition("/")
        place = folder / "data" / "potentia" / safe_name(developer or "unknown") / safe_name(name)
        run = f"potentia/{model.replace('/', '_')}/{now}"
        file = place / f"{uuid.uuid4()}.json"
        body = _aggregate(model, run, now, rows)
        samples = (
            [line for row in rows for line in _instances(model, run, row, items)]
            if items is not None
            else []
        )
        if samples:
            beside = file.with_name(f"{file.stem}_samples.jsonl")
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in samples)
            write_file(beside, text)
            body["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": str(beside.relative_to(folder)),
                "hash_algorithm": "sha256",
                "checksum": hashlib.sha256(text.encode()).hexdigest(),
                "total_rows": len(samples),
            }
            written.append(beside)
        write_file(file, json.dumps(body, indent=2, ensure_ascii=False) + "\n")
        written.append(file)
    return written


def _aggregate(
    model: str, run: str, now: str, rows: Sequence[tuple[Protocol, str, Score]]
) -> dict[str, Any]:
    developer, _, name = model.rpartition("/")
    details = {"deployment_type": "unknown", "model_availability": "unknown"}
    source = {
        "source_name": "Potentia",
        "source_type": "evaluation_run",
        "source_organization_name": "unknown",
        "evaluator_relationship": "other",
    }
    about = {"name": name, "id": model, "additional_details": details}
    return {
        "schema_version": SCHEMA,
        "evaluation_id": run,
        "retrieved_timestamp": now,
        "source_metadata": source,
        "eval_library": {"name": "potentia", "version": version("potentia")},
        "model_info": about | ({"developer": developer} if developer else {}),
        "evaluation_results": [_result(*row) for row in rows],
    }


def _result(protocol: Protocol, task: str, score: Score) -> dict[str, Any]:
    metric, dataset = score.metric, hub_dataset(task)
    low, high = _BOUNDS.get(metric.scale, (None, None))
    hub = {"source_type": "hf_dataset", "hf_repo": dataset, "hf_split": "test"}
    source = {"dataset_name": task, **({"source_type": "other"} if dataset is None else hub)}
    uncertainty: dict[str, Any] = (
        {} if math.isnan(score.stderr) else {"standard_error": {"value": score.stderr}}
    )
    uncertainty |= {"num_samples": score.n} if score.n else {}
    config: dict[str, Any] = {
        "metric_id": metric.canonical or "score",
        "metric_name": metric.name or "score",
        "lower_is_better": not metric.higher_is_better,
        "score_type": "continuous",
        "min_score": low,
        "max_score": high,
    }
    row = tidy_row(protocol, "", task, score)
    facts = {
        name: str(row[name]) for name in ("protocol", "shots", *TRAVELS) if row[name] is not None
    }
    scored: dict[str, Any] = {"score": score.value, "details": {**facts, "metric": metric.name}}
    return {
        "evaluation_result_id": f"{protocol}.{task}",
        "evaluation_name": task,
        "source_data": source,
        "metric_config": config,
        "score_details": scored | ({"uncertainty": uncertainty} if uncertainty else {}),
    }


def _instances(
    model: str, run: str, row: tuple[Protocol, str, Score], items: Items
) -> Iterator[dict[str, Any]]:
    protocol, task, _ = row
    for item in items(protocol, model, task):
        prompt, gold = str(item.detail.get("prompt", "")), str(item.gold)
        yield {
            "schema_version": SCHEMA,
            "evaluation_id": run,
            "model_id": model,
            "evaluation_name": task,
            "evaluation_result_id": f"{protocol}.{task}",
            "sample_id": str(item.doc_id),
            "sample_hash": hashlib.sha256((prompt + gold).encode("utf-8", "replace")).hexdigest(),
            "interaction_type": "single_turn",
            "input": {"raw": prompt, "reference": [gold]},
            "output": {"raw": [str(item.prediction)]},
            "answer_attribution": [
                {
                    "turn_idx": 0,
                    "source": "output.raw",
                    "extracted_value": str(item.prediction),
                    "extraction_method": "custom",
                    "is_terminal": True,
                }
            ],
            "evaluation": {"score": item.value, "is_correct": item.value >= 1.0},
        }


def is_every_eval_ever(content: Any) -> bool:
    """Tell a file of Every Eval Ever by its keys."""
    return (
        isinstance(content, dict)
        and "schema_version" in content
        and "evaluation_results" in content
    )


def every_eval_ever_entries(content: Mapping[str, Any], path: Path) -> Iterator[Entry]:
    """Give the scores of one file, with their items where its samples lie beside it."""
    where = str(path)
    results = content["evaluation_results"]
    model = section(dict(content), "model_info", where).get("id")
    if not isinstance(results, list) or not isinstance(model, str) or not model.strip():
        raise DataError("this file of Every Eval Ever names no model or no results", where=where)
    items = _samples(path)
    for place, result in enumerate(results):
        at = f"{where}, evaluation_results[{place}]"
        if not isinstance(result, dict):
            raise DataError("the result is no object", where=at)
        config, found = section(result, "metric_config", at), section(result, "score_details", at)
        details, spread = section(found, "details", at), section(found, "uncertainty", at)
        task = str(result.get("evaluation_name") or "").strip()
        if not task:
            raise DataError("the result has no evaluation_name", where=at)
        own = str(result.get("evaluation_result_id") or task)
        yield scored(
            at,
            model,
            task,
            found.get("score"),
            stderr=section(spread, "standard_error", at).get("value"),
            n=spread.get("num_samples"),
            protocol=str(details.get("protocol") or DIRECT),
            items=items.get(own) or items.get(task),
            **_known(config, details, task, at),
        )


def _known(
    config: Mapping[str, Any], details: Mapping[str, Any], task: str, at: str
) -> dict[str, Any]:
    """Return metric, origin and seeds: as Potentia wrote them into the details, else as the schema tells them."""
    lower = config.get("lower_is_better")
    if not isinstance(lower, bool):
        raise DataError("lower_is_better is neither true nor false", where=at)
    facts = told(
        {**details, "higher_is_better": not lower},
        task,
        str(details.get("metric") or "") or None,
        at,
    )
    if "metric" not in details:
        name = str(config.get("metric_id") or config.get("metric_name") or "")
        known = metric_of(task, name or None, not lower)
        bounds = (config.get("min_score"), config.get("max_score"))
        scale = next((scale for scale, given in _BOUNDS.items() if bounds == given), None)
        facts["metric"] = Metric(name, not lower, known.kind, scale or known.scale)
    return facts


def _samples(path: Path) -> dict[str, dict[int, float]]:
    """Return evaluation → document → value of the samples beside a file; documents go by their hash."""
    beside = path.with_name(f"{path.stem}_samples.jsonl")
    found: dict[str, list[tuple[object, Any]]] = {}
    for line in json_lines(beside) if beside.is_file() else ():
        if isinstance(line, dict):
            name = str(line.get("evaluation_result_id") or line.get("evaluation_name"))
            value = (line.get("evaluation") or {}).get("score")
            found.setdefault(name, []).append((line.get("sample_hash") or line.get("input"), value))
    return {name: documents(pairs) for name, pairs in found.items()}


def write_hub(matrices: Mapping[Protocol, ScoreMatrix], folder: Path) -> list[Path]:
    """Write ``MODEL/.eval_results/potentia.yaml`` for every model: the tasks whose documents are on the Hub."""
    import yaml
    from huggingface_hub import EvalResultEntry
    from huggingface_hub import eval_result_entries_to_yaml as plain

    found: dict[str, list[EvalResultEntry]] = {}
    for protocol, matrix in matrices.items():
        for model, task, score in matrix.scores():
            dataset = hub_dataset(task)
            if dataset is None:
                continue
            recipe = f", recipe {score.origin.recipe[:12]}" if score.origin.recipe else ""
            error = "" if math.isnan(score.stderr) else f" ± {score.stderr:.4f} (standard error)"
            notes = f"{protocol.label}{recipe}; {score.metric.name or 'score'}{error}; Potentia {version('potentia')}"
            entry = EvalResultEntry(
                dataset_id=dataset, task_id=task, value=round(score.value, 6), notes=notes
            )
            found.setdefault(model, []).append(entry)
    if not found:
        raise InputError(
            "no task of these scores has its documents on the Hub",
            hint="the Hub asks for a dataset id",
        )
    written = []
    for model, entries in found.items():
        file = folder / safe_name(model) / ".eval_results" / "potentia.yaml"
        write_file(file, yaml.safe_dump(plain(entries), sort_keys=False, allow_unicode=True))
        written.append(file)
    return written
