"""Cutting documents into windows of the model's context length."""

from __future__ import annotations

from potentia.engine.tokens import BosPolicy, Ids


def rolling_windows(ids: Ids, bos: BosPolicy, max_length: int, *, head: Ids | None = None) -> list[tuple[Ids, int]]:
    """Return (sequence, how many of its last tokens are predicted) for each window of a document.

    Every token is predicted once. As in lm-eval, the first window starts with the prefix token, a later one with the
    last token of its predecessor, and the last one reaches back to be full. Unlike lm-eval, where the model needs BOS,
    *every* window begins with it and predicts one token fewer (appendix B.2 of the train-before-test paper: without
    it, the perplexity of such models explodes on long documents). ``head`` replaces the first window's prefix token.
    """
    if not ids:
        return []
    if not head:
        head = [bos.prefix_id] if bos.prefix_id is not None else []
    if not head:  # nothing to condition the first token on: it is read, not scored
        head, ids = ids[:1], ids[1:]
    repeat = [bos.prefix_id] if bos.required and bos.prefix_id is not None else []
    room = max(max_length - len(repeat), 1)
    first = min(max_length, len(ids))
    windows: list[tuple[Ids, int]] = [(head + ids[:first], first)] if first else []
    done = first
    while done < len(ids):
        count = min(len(ids) - done, room)
        end = done + count
        windows.append((repeat + ids[max(end - room - 1, 0) : end], count))
        done = end
    return windows
