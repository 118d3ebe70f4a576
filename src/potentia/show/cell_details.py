"""What the page shows of one cell: its score, what validation chose, the curves of its lanes, prompts and items."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from potentia.store import CellRecord, LaneRecord
from potentia.values.scores import ItemOutcome

if TYPE_CHECKING:
    from potentia.show.source import ItemSample

SPLITS = ("train", "validation", "test")
IN_LANES = ("seeds", "failed_lanes", "validation_stderr", "validation_right")  # of a selection: the lanes say it
LONGEST = 2_000  # characters of a prompt or an answer; the middle of longer ones is left out


def cell_payload(
    cell: CellRecord, lanes: Iterable[LaneRecord], items: ItemSample | None = None, *, manifest: bool = False
) -> dict[str, Any]:
    """Return one cell as plain values for the page or the API."""
    score, splits = cell.score, (cell.manifest.get("task") or {}).get("splits") or {}
    made: dict[str, Any] = {
        "key": cell.key,
        "model": cell.model,
        "task": cell.task,
        "protocol": cell.protocol,
        "metric": cell.metric,
        "value": _known(score.value),
        "stderr": _known(score.stderr),
        "n": score.n,
        "higher_is_better": score.higher_is_better,
        "scores": {name: [_round(s.value), _round(s.stderr)] for name, s in cell.scores.items()},
        "seconds": round(cell.seconds, 2),
        "created": cell.created,
        "direct": _known(cell.direct_value),
        "gain": _known(cell.gain),
        "selection": {k: v for k, v in cell.selection.items() if k not in IN_LANES and v not in (None, [], {}, 0)},
        "splits": {name: int(used) for name in SPLITS if (used := (splits.get(name) or {}).get("used")) is not None},
        "lanes": [lane_payload(lane) for lane in lanes],
        "items": [item_payload(item) for item in items.shown] if items else [],
        "total": items.total if items else 0,
        "right": items.right if items else None,
    }
    return made | ({"manifest": cell.manifest} if manifest else {})


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
        "epoch": [point.epoch for point in lane.epochs],
        "value": [_round(point.value) for point in lane.epochs],
        "stderr": [_round(point.stderr) for point in lane.epochs],
        "loss": [_round(point.train_loss) for point in lane.epochs],
    }


def item_payload(item: ItemOutcome) -> dict[str, Any]:
    """Return one item: what was asked, what was right, what the model chose and how sure it was."""
    detail = item.detail
    choices = detail.get("choices")
    logprobs = detail.get("logprobs")
    made: dict[str, Any] = {
        "id": item.doc_id,
        "value": _round(item.value),
        "prompt": shorten(str(detail.get("prompt", ""))),
        "gold": shorten(item.gold),
        "prediction": shorten(item.prediction),
    }
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        made["choices"] = [shorten(str(choice), 300) for choice in choices]
        if isinstance(logprobs, Sequence) and len(logprobs) == len(choices):
            made["logprobs"] = [_round(value) for value in logprobs]
    return made


def find_items(items: Sequence[ItemOutcome], *, query: str = "", outcome: str = "all") -> list[ItemOutcome]:
    """Return the items that are right or wrong as asked and hold the query in prompt, gold or answer, in any case."""
    wanted = query.casefold().strip()

    def holds(item: ItemOutcome) -> bool:
        texts = (str(item.detail.get("prompt", "")), item.gold, item.prediction, str(item.doc_id))
        return any(wanted in text.casefold() for text in texts)

    return [item for item in items if (outcome == "all" or (item.value > 0.5) == (outcome == "right")) and holds(item)]


def shorten(text: str, longest: int = LONGEST) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _round(value: Any) -> float | None:
    return round(float(value), 5) if isinstance(value, (int, float)) and math.isfinite(value) else None
