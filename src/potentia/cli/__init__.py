"""The command line: one file per command group; each parses, calls and prints."""

from __future__ import annotations


def main() -> None:
    """Run the ``potentia`` command."""
    from potentia.cli.app import run

    run()
