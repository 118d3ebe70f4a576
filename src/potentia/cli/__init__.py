"""The command line: one file per command group; each parses, calls and prints."""

from potentia.cli.app import run_command_line as main
