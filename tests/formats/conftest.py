"""The cells that tests of stores make."""

from made_cells import make_cell  # noqa: F401  (a fixture)
