"""The cells that tests of stores make."""

from store.conftest import make_cell  # noqa: F401
