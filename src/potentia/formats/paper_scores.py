"""The layout in which the train-before-test paper publishes its scores: protocol, task, model, value."""

from __future__ import annotations

from collections.abc import Iterator

from potentia.errors import DataError
from potentia.formats.columns import metric_of_task
from potentia.formats.entries import ScoreEntry, ScoreFacts, make_entry
from potentia.formats.json_values import JsonObject

_STDERR = "_stderr"
_PROTOCOLS = {"direct_eval": "direct", "direct_evaluation": "direct"}


def read_paper_scores(content: dict[str, object], where: str) -> Iterator[ScoreEntry]:
    """Give every score of such a file."""
    protocols = [name for name in content if not name.endswith(_STDERR)]
    if not protocols:
        hint = 'scores are lm-eval results ({"results": …}) or {"train_before_test": {task: {model: value}}, …}'
        raise DataError("this is no score file", where=where, hint=hint)
    for name in content:
        if name.endswith(_STDERR) and name.removesuffix(_STDERR) not in content:
            raise DataError(f"there are standard errors {name!r} without scores", where=where)
    file = JsonObject(content, where)
    for name in protocols:
        scores = JsonObject(file.get_object(name).content, f"{where}, {name}")
        errors = JsonObject(file.get_object(name + _STDERR).content, f"{where}, {name}{_STDERR}")
        for task in scores.content:
            errors_by_model = errors.get_object(task)
            for model, value in scores.get_object(task).content.items():
                yield make_entry(
                    f"{where}, {name}.{task}.{model}",
                    model,
                    task,
                    value,
                    stderr=errors_by_model.get_value(model),
                    protocol=_PROTOCOLS.get(name, name),
                    facts=ScoreFacts(metric_of_task(task)),
                )
