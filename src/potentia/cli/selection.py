"""What several ``analyze`` commands share: reading scores, narrowing them, and what a store's studies say of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError, PotentiaError

if TYPE_CHECKING:
    from potentia.scores import ScoreMatrix


def read_chosen(
    source: str,
    *,
    study: str | None = None,
    protocols: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
) -> dict[str, ScoreMatrix]:
    """Read scores and keep these protocols, tasks (a benchmark's name keeps all its forms) and models."""
    from potentia.analysis.base_models.methods import split_form
    from potentia.store import read_scores

    scores = read_scores(source, study=study)
    unknown = [name for name in protocols or () if name not in scores]
    if unknown:
        raise InputError(f"no protocol {unknown[0]!r} in {source}", hint=f"there are: {', '.join(scores)}")
    chosen: dict[str, ScoreMatrix] = {}
    for protocol in protocols or scores:
        matrix = scores[protocol]
        kept = [t for t in matrix.tasks if not tasks or t in tasks or split_form(t)[0] in tasks]
        if kept:
            chosen[protocol] = matrix.select(tasks=kept, models=models or None)
    if not chosen:
        known = sorted({task for matrix in scores.values() for task in matrix.tasks})
        raise InputError(
            f"no scores of {', '.join(tasks or ())} in {source}", hint=f"there are: {', '.join(known[:12])}"
        )
    return chosen


def study_models(source: str, study: str | None = None) -> tuple[Any, ...]:
    """Return the model specifications of a store's studies, checkpoint series expanded; empty for plain files."""
    from pathlib import Path

    from potentia.store import Store
    from potentia.study import make_study

    path = Path(source)
    if "://" not in source:
        try:
            with path.open("rb") as file:
                if not file.read(16).startswith(b"SQLite format 3"):
                    return ()
        except OSError:
            return ()
    found: dict[str, Any] = {}
    with Store.open(source, readonly=True) as store:
        for record in store.studies():
            if study in (None, record.name, record.key):
                try:
                    rows = make_study(dict(record.spec)).rows()
                except PotentiaError:  # an imported study, or one of another version, names no models
                    continue
                for row in rows:
                    found.setdefault(row.name, row)
    return tuple(found.values())
