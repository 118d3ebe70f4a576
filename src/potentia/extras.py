"""The optional packages of Potentia, by the extra of ``pyproject.toml`` that installs them.

``pip install potentia`` reads, analyses, compares, reports and serves. Everything else needs an extra. Code that does
calls ``require_extra`` before anything else, so that every command and every Python function says the same line.
Modules are looked up, not imported: looking for torch costs microseconds.
"""

from __future__ import annotations

import json
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
        """The command that installs the extra, from where Potentia itself was installed."""
        return _write_install_command(self)


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
    Extra.RAY: "models on several machines: --executor ray",
    Extra.SLURM: "models as jobs of a SLURM cluster: --executor slurm",
    Extra.POSTGRES: "stores on PostgreSQL",
    Extra.GGUF: "models in GGUF files",
    Extra.QUANTISE: "models in 8 and 4 bits",
    Extra.TRACK: "metrics in W&B, MLflow or TensorBoard",
}


# The packages of modules whose names differ.
_PACKAGE_BY_MODULE = {
    "huggingface_hub": "huggingface-hub",
    "lm_eval": "lm-eval",
    "math_verify": "math-verify",
    "rouge_score": "rouge-score",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
}


def find_missing_packages(extra: Extra, modules: Sequence[str] = ()) -> list[str]:
    """Return the packages of an extra, or of some of its modules, that are not installed; nothing is imported."""
    return [
        _PACKAGE_BY_MODULE.get(module, module)
        for module in modules or extra.modules
        if not is_installed(module)
    ]


def is_installed(module: str) -> bool:
    """Whether a module can be imported; it is not imported for this."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a module that was blocked or half removed
        return False


def require_extra(
    extra: Extra, needed_for: str, *, modules: Sequence[str] = (), otherwise: str = ""
) -> None:
    """Raise if a module of an extra is missing, with the command that installs the extra as the hint.

    With ``modules`` only these are needed. ``otherwise`` says what can be done without the extra.
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


def _write_install_command(extra: Extra) -> str:
    """Return the command that adds an extra to an installation from an index, a checkout, a wheel or a repository.

    Pip records in ``direct_url.json`` where a package came from, unless it came from an index.
    """
    # Imported here: they cost a tenth of a second, and this module is loaded by every command.
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    from_index = f"pip install 'potentia[{extra}]'"
    try:
        record = distribution("potentia").read_text("direct_url.json")
    except PackageNotFoundError:
        return from_index
    if record is None:
        return from_index
    origin = json.loads(record)
    url = origin["url"]
    if "dir_info" in origin:
        folder = url2pathname(urlsplit(url).path)
        editable = "--editable " if origin["dir_info"].get("editable") else ""
        return f"pip install {editable}'{folder}[{extra}]'"
    if "vcs_info" in origin:
        vcs_info = origin["vcs_info"]
        url = f"{vcs_info['vcs']}+{url}@{vcs_info['commit_id']}"
    return f"pip install 'potentia[{extra}] @ {url}'"


def _join_names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    if len(names) > 3:
        return f"{', '.join(names[:3])} and {len(names) - 3} more packages"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _is_or_are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
