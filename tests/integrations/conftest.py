"""Fixtures of the tests of integrations."""

from made_cells import make_cell  # noqa: F401  (a fixture)
