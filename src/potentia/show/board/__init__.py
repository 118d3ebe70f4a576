"""The live board: the report's pages from a store, while studies run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.show.board.app import create_app
    from potentia.show.board.server import serve

__all__ = ["create_app", "serve"]


def __getattr__(name: str) -> Any:
    if name == "create_app":
        from potentia.show.board.app import create_app

        return create_app
    if name == "serve":
        from potentia.show.board.server import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
