"""Conversations written the way a model's chat template writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from potentia.errors import ModelError
from potentia.limited import LimitError, render_chat

Messages = list[dict[str, str]]
_END = "END-OF-THE-LAST-MESSAGE "


def chat_template(tokenizer: Any) -> Callable[[Messages], str] | None:
    """Return the tokenizer's chat template as a function of messages, or None where it has none."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    return lambda messages: write_chat(tokenizer, messages)


def write_chat(tokenizer: Any, messages: Messages, *, reply: bool = True) -> str:
    """Write messages up to the model's reply, or, without ``reply``, so that the last message goes on.

    Templates are a stranger's: they are rendered within limits. Some refuse a system message: it is left out then, as
    lm-eval does.
    """
    if not reply:
        messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + _END}]
    template = tokenizer.get_chat_template()
    values = {"tools": None, "documents": None, "add_generation_prompt": reply, **tokenizer.special_tokens_map}
    try:
        text = render_chat(template, {"messages": messages, **values})
    except LimitError:
        try:
            without = [message for message in messages if message["role"] != "system"]
            text = render_chat(template, {"messages": without, **values})
        except LimitError as error:
            raise ModelError(f"its chat template cannot be used: {error}") from None
    if reply:
        return text
    before, end, _ = text.rpartition(_END.strip())
    if not end:
        raise ModelError("its chat template leaves out the last message")
    return before if _END in text else before.rstrip()  # a template that strips messages
