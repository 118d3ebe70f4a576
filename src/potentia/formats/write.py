"""Scores to files: tidy CSV and Parquet, lm-eval-style JSON, and leaderboards in Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from potentia.errors import InputError, StoreError
from potentia.formats.leaderboard import latex, markdown
from potentia.formats.table import FORMULA
from potentia.formats.tidy import COLUMNS
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

Matrices = Mapping[Protocol, ScoreMatrix]
_TIDY = tuple(name for name in COLUMNS if name != "metric")  # a matrix does not know the metric's name
_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".json": "lm-eval", ".md": "markdown", ".tex": "latex"}


def write_scores(matrices: Matrices | ScoreMatrix, path: str | Path, format: str | None = None) -> list[Path]:
    """Write matrices and return the files written; the format follows from the file's name where it is not given.

    ``lm-eval`` writes one file per model and protocol, as lm-eval does, into the folder ``path``; a single model and
    protocol may go to a file ``*.json``.
    """
    given: Matrices = {matrices.protocol: matrices} if isinstance(matrices, ScoreMatrix) else dict(matrices)
    target = Path(path).expanduser()
    chosen = format or _SUFFIXES.get(target.suffix.casefold())
    if chosen not in FORMATS:
        raise InputError(
            f"unknown format {chosen!r}" if chosen else f"{target.name} does not say the format",
            hint=f"the formats are {', '.join(FORMATS)}",
        )
    if not given:
        raise InputError("there are no scores to write")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return FORMATS[chosen](given, target)
    except OSError as error:
        raise StoreError(
            error.strerror or str(error), where=str(target), hint="give another file, or free some space"
        ) from error


def tidy_rows(matrices: Matrices) -> Iterator[dict[str, Any]]:
    """Give one row per score that is there; what is not known is None."""
    for protocol, matrix in matrices.items():
        for i, model in enumerate(matrix.models):
            for j, task in enumerate(matrix.tasks):
                value = float(matrix.values[i, j])
                if math.isnan(value):
                    continue
                yield {
                    "protocol": protocol,
                    "model": model,
                    "benchmark": task,
                    "score": value,
                    "stderr": _known(matrix.stderr[i, j]),
                    "n": _known(matrix.n[i, j]),
                    "higher_is_better": matrix.higher_is_better[j],
                }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _save(target: Path, text: str) -> list[Path]:
    target.write_text(text, encoding="utf-8", newline="")
    return [target]


def _csv(matrices: Matrices, target: Path) -> list[Path]:
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, _TIDY, lineterminator="\n")
    writer.writeheader()
    for row in tidy_rows(matrices):
        n = row["n"]
        count = "" if n is None else int(n) if n == int(n) else repr(n)
        flag = "true" if row["higher_is_better"] else "false"
        names = {key: shielded(row[key]) for key in ("protocol", "model", "benchmark")}
        writer.writerow({**row, **names, "score": repr(row["score"]), "n": count, "higher_is_better": flag})
    return _save(target, buffer.getvalue())


def shielded(name: str) -> str:
    """Return a name that a spreadsheet takes for text: one that begins like a formula gets an apostrophe before it."""
    return f"'{name}" if name.startswith(FORMULA) else name


def _parquet(matrices: Matrices, target: Path) -> list[Path]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(tidy_rows(matrices))
    kinds = dict.fromkeys(("score", "stderr", "n"), pa.float64()) | {"higher_is_better": pa.bool_()}
    columns = {name: pa.array([row[name] for row in rows], kinds.get(name, pa.string())) for name in _TIDY}
    pq.write_table(pa.table(columns), target, compression="zstd")
    return [target]


def _lm_eval(matrices: Matrices, target: Path) -> list[Path]:
    single = target.suffix.casefold() == ".json"
    if single and (len(matrices) > 1 or len(next(iter(matrices.values())).models) > 1):
        raise InputError(
            "an lm-eval file holds one model and one protocol",
            where=str(target),
            hint=f"give a folder: {target.with_suffix('')}",
        )
    written: list[Path] = []
    for protocol, matrix in matrices.items():
        for i, model in enumerate(matrix.models):
            body = lm_eval_results(matrix, i)
            if not body["results"]:
                continue
            path = target if single else target / _safe(model) / f"results_{_safe(protocol)}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            written += _save(path, json.dumps(body, indent=2, ensure_ascii=False) + "\n")
    return written


def lm_eval_results(matrix: ScoreMatrix, row: int) -> dict[str, Any]:
    """Return one model's scores as lm-eval writes results; the metric is called ``score``."""
    model = matrix.models[row]
    results: dict[str, Any] = {}
    better: dict[str, Any] = {}
    sizes: dict[str, Any] = {}
    for j, task in enumerate(matrix.tasks):
        value, stderr, n = (float(part[row, j]) for part in (matrix.values, matrix.stderr, matrix.n))
        if math.isnan(value):
            continue
        spread = "N/A" if math.isnan(stderr) else stderr
        results[task] = {"alias": task, "score,none": value, "score_stderr,none": spread}
        better[task] = {"score": matrix.higher_is_better[j]}
        if not math.isnan(n):
            sizes[task] = {"original": int(n), "effective": int(n)}
    return {
        "results": results,
        "group_subtasks": {task: [] for task in results},
        "higher_is_better": better,
        "n-samples": sizes,
        "config": {"model": "potentia", "model_args": f"pretrained={model}"},
        "model_name": model,
        "potentia": {"protocol": matrix.protocol},
    }


def _safe(name: str) -> str:
    """Return a name for a folder, as lm-eval makes it; different names stay different."""
    import hashlib
    import re

    plain = re.sub(r"[^0-9A-Za-z._-]", "_", name.replace("/", "__")).strip(".") or "_"
    if plain == name.replace("/", "__") and len(plain) <= 120:
        return plain
    return f"{plain[:100]}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _markdown(matrices: Matrices, target: Path) -> list[Path]:
    return _save(target, "\n".join(markdown(matrix) for matrix in matrices.values()))


def _latex(matrices: Matrices, target: Path) -> list[Path]:
    return _save(target, "\n".join(latex(matrix) for matrix in matrices.values()))


FORMATS: dict[str, Callable[[Matrices, Path], list[Path]]] = {
    "csv": _csv,
    "parquet": _parquet,
    "lm-eval": _lm_eval,
    "markdown": _markdown,
    "latex": _latex,
}
