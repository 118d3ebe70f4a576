"""The live board: the report's pages from a store, while studies run. ``potentia.show.board.app`` needs FastAPI."""
