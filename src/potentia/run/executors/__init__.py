"""What runs the rows of a study: this machine, a Ray cluster, a SLURM cluster, or what another package registers."""

from importlib import import_module

from potentia.errors import InputError
from potentia.run.executors.base import AssignmentQueue, ExecutionRequest, Executor

EXECUTORS = {  # by name: the module and its class, which is imported when it is used
    "local": "potentia.run.executors.local:LocalExecutor",
    "ray": "potentia.run.executors.ray:RayExecutor",
    "slurm": "potentia.run.executors.slurm:SlurmExecutor",
}


def register_executor(name: str, location: str) -> None:
    """Add an executor: its name after ``--executor``, and where its class is, as ``package.module:Class``."""
    EXECUTORS[name] = location


def find_executor(name: str) -> type[Executor]:
    """Return the class of an executor; one that is not there, or that lacks a package, is refused."""
    if name not in EXECUTORS:
        *names, last = EXECUTORS
        raise InputError(f"no executor {name!r}", hint=f"use {', '.join(names)} or {last}")
    module, _, attribute = EXECUTORS[name].partition(":")
    executor: type[Executor] = getattr(import_module(module), attribute)
    executor.check_installed()
    return executor
