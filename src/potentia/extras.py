"""What Potentia needs beyond its core, by the extra that installs it.

``pip install potentia`` reads, analyses, compares, reports and serves. Everything else is an extra of
``pyproject.toml``, and what needs one asks ``require_extra`` before it does anything, so that every command and every
Python function says the same line. A module is looked up, not imported: looking for torch costs microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from importlib.util import find_spec

from potentia.errors import MissingExtraError


class Extra(StrEnum):
    """An extra of ``pyproject.toml``, by its name there."""

    RUN = "run"
    PARQUET = "parquet"
    PANDAS = "pandas"
    FIGURES = "figures"
    TREES = "trees"
    RAY = "ray"
    SLURM = "slurm"
    POSTGRES = "postgres"
    GGUF = "gguf"
    QUANTISE = "quantise"
    TRACK = "track"

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that the extra installs and that Potentia imports."""
        return _MODULES[self]

    @property
    def purpose(self) -> str:
        """What the extra is for."""
        return _PURPOSES[self]

    @property
    def install_command(self) -> str:
        """The line that installs the extra."""
        return f"pip install 'potentia[{self}]'"


_MODULES: dict[Extra, tuple[str, ...]] = {
    Extra.RUN: (
        "torch",
        "transformers",
        "peft",
        "lm_eval",
        "datasets",
        "accelerate",
        "safetensors",
        "tokenizers",
        "huggingface_hub",
        "math_verify",
        "rouge_score",
        "sklearn",
        "tqdm",
    ),
    Extra.PARQUET: ("pyarrow",),
    Extra.PANDAS: ("pandas",),
    Extra.FIGURES: ("vl_convert",),
    Extra.TREES: ("xgboost", "sklearn"),
    Extra.RAY: ("ray",),
    Extra.SLURM: ("submitit",),
    Extra.POSTGRES: ("psycopg",),
    Extra.GGUF: ("gguf",),
    Extra.QUANTISE: ("bitsandbytes",),
    Extra.TRACK: ("wandb", "mlflow", "tensorboard"),
}
_PURPOSES = {
    Extra.RUN: "running, selecting and fine-tuning models: potentia run, select, predict, demo",
    Extra.PARQUET: "Parquet files, and the results by example of a store",
    Extra.PANDAS: "scores as pandas tables, in and out",
    Extra.FIGURES: "figures as PDF and PNG",
    Extra.TREES: "the classifiers of the test-task paper",
    Extra.RAY: "rows on several machines: --executor ray",
    Extra.SLURM: "rows as jobs of a SLURM cluster: --executor slurm",
    Extra.POSTGRES: "stores on PostgreSQL",
    Extra.GGUF: "models in GGUF files",
    Extra.QUANTISE: "models in 8 and 4 bits",
    Extra.TRACK: "metrics in W&B, MLflow or TensorBoard",
}


# Packages whose module has another name.
_PACKAGE_NAMES = {
    "huggingface_hub": "huggingface-hub",
    "lm_eval": "lm-eval",
    "math_verify": "math-verify",
    "rouge_score": "rouge-score",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
}


def find_missing_packages(extra: Extra, modules: Sequence[str] = ()) -> list[str]:
    """Return the packages of an extra, or of some of its modules, that are not installed; none is imported."""
    return [
        _PACKAGE_NAMES.get(module, module)
        for module in modules or extra.modules
        if not is_installed(module)
    ]


def is_installed(module: str) -> bool:
    """Say whether a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a module that was blocked or half removed
        return False


def require_extra(
    extra: Extra, needed_for: str, *, modules: Sequence[str] = (), otherwise: str = ""
) -> None:
    """Refuse with the line that installs an extra where one of its modules, or of ``modules``, is missing.

    ``otherwise`` says what can be done without it.
    """
    missing = find_missing_packages(extra, modules)
    if missing:
        hint = extra.install_command
        if otherwise:
            hint = f"{hint}, or {otherwise}"
        raise MissingExtraError(
            f"{needed_for} needs {_join_names(missing)}, which {_is_or_are(missing)} not installed",
            hint=hint,
        )


def _join_names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    if len(names) > 3:
        return f"{', '.join(names[:3])} and {len(names) - 3} more packages"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _is_or_are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
