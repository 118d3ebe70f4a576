"""Conversations written the way a model's chat template writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Messages = list[dict[str, str]]


def chat_template(tokenizer: Any) -> Callable[[Messages], str] | None:
    """Return the tokenizer's chat template as a function of messages, or None where it has none."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    return lambda messages: write_chat(tokenizer, messages)


def write_chat(tokenizer: Any, messages: Messages, *, reply: bool = True) -> str:
    """Write messages up to the model's reply, or, without ``reply``, so that the last message goes on.

    Some templates refuse a system message: it is left out then, as lm-eval does.
    """
    from jinja2 import TemplateError

    def write(turns: Messages) -> str:
        text = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=reply, continue_final_message=not reply
        )
        return str(text)

    try:
        return write(messages)
    except TemplateError:
        return write([message for message in messages if message["role"] != "system"])
