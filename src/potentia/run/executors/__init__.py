"""What runs the rows of a study: this machine, a Ray cluster, a SLURM cluster, or what an installed package adds."""

from importlib import import_module

from potentia.errors import InputError
from potentia.extensions import ExtensionKind, has_extension, list_extensions, load_extension
from potentia.run.executors.base import AssignmentQueue, ExecutionRequest, Executor

BUILT_IN = {  # by name: the module and its class, which is imported when it is used
    "local": ("potentia.run.executors.local", "LocalExecutor"),
    "ray": ("potentia.run.executors.ray", "RayExecutor"),
    "slurm": ("potentia.run.executors.slurm", "SlurmExecutor"),
}


def list_executors() -> list[str]:
    """Return the names of all executors, those of Potentia first."""
    return [*BUILT_IN, *list_extensions(ExtensionKind.EXECUTOR)]


def find_executor(executor_name: str) -> type[Executor]:
    """Return the class of an executor; one that is not there, or that lacks a package, is refused."""
    executor: type[Executor]
    if executor_name in BUILT_IN:
        module, class_name = BUILT_IN[executor_name]
        executor = getattr(import_module(module), class_name)
    elif has_extension(ExtensionKind.EXECUTOR, executor_name):
        executor = load_extension(ExtensionKind.EXECUTOR, executor_name)
    else:
        *names, last_name = list_executors()
        raise InputError(
            f"no executor {executor_name!r}", hint=f"use {', '.join(names)} or {last_name}"
        )
    executor.check_installed()
    return executor
