"""The layout in which the train-before-test paper publishes its scores: protocol, task, model, value."""

from __future__ import annotations

from collections.abc import Iterator

from potentia.errors import DataError
from potentia.formats.columns import metric_of_task
from potentia.formats.entries import ScoreEntry, ScoreFacts, make_entry
from potentia.formats.json_values import JsonObject

_STDERR = "_stderr"
_PROTOCOLS = {"direct_eval": "direct", "direct_evaluation": "direct"}


def read_paper_scores(content: dict[str, object], source: str) -> Iterator[ScoreEntry]:
    """Give every score of such a file."""
    protocols = [protocol_name for protocol_name in content if not protocol_name.endswith(_STDERR)]
    if not protocols:
        hint = 'scores are lm-eval results ({"results": …}) or {"train_before_test": {task: {model: value}}, …}'
        raise DataError("this is not a score file", where=source, hint=hint)
    for protocol_name in content:
        if protocol_name.endswith(_STDERR) and protocol_name.removesuffix(_STDERR) not in content:
            raise DataError(
                f"there are standard errors {protocol_name!r} without scores", where=source
            )
    paper_file = JsonObject(content, source)
    for protocol_name in protocols:
        scores = JsonObject(
            paper_file.get_object(protocol_name).content, f"{source}, {protocol_name}"
        )
        errors = JsonObject(
            paper_file.get_object(protocol_name + _STDERR).content,
            f"{source}, {protocol_name}{_STDERR}",
        )
        for task in scores.content:
            errors_by_model = errors.get_object(task)
            for model, value in scores.get_object(task).content.items():
                yield make_entry(
                    f"{source}, {protocol_name}.{task}.{model}",
                    model,
                    task,
                    value,
                    stderr=errors_by_model.get_value(model),
                    protocol=_PROTOCOLS.get(protocol_name, protocol_name),
                    facts=ScoreFacts(metric_of_task(task)),
                )
