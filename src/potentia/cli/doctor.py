"""``potentia doctor``: what is installed, what can be reached, what is missing and how to get it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from potentia.cli.app import app
from potentia.cli.output import print_json, print_table
from potentia.values.findings import Table

_PARTS = (
    "torch", "transformers", "peft", "datasets", "lm-eval", "accelerate", "safetensors", "numpy", "scipy", "pandas",
    "scikit-learn", "statsmodels", "pyarrow", "SQLAlchemy", "vl-convert-python", "math-verify", "typer",
)  # fmt: skip
# Extra → the modules it brings and what needs them.
_EXTRAS = {
    "web": (("fastapi", "uvicorn"), "the live board: potentia serve"),
    "ray": (("ray",), "rows on several machines: --executor ray"),
    "postgres": (("psycopg",), "stores on PostgreSQL"),
    "track": (("wandb", "mlflow", "tensorboard"), "metrics in W&B, MLflow or TensorBoard"),
    "gguf": (("gguf",), "models in GGUF files"),
}
_HUB_SECONDS = 3.0


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print versions, device, cache folders, whether the hub answers, and what is missing.

    Example:
      potentia doctor
    """
    report = examine()
    if as_json:
        print_json(report)
    else:
        _show(report)
    if any(version is None for version in report["versions"].values()):
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Look at this machine; nothing is downloaded or changed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for part in ("potentia", *_PARTS):
        try:
            versions[part] = metadata.version(part)
        except metadata.PackageNotFoundError:
            versions[part] = None
    hub = _hub()
    caches = _caches()
    device = _device()
    missing = [
        {"what": part, "needed for": "Potentia itself", "get it": "pip install --upgrade potentia"}
        for part, version in versions.items()
        if version is None
    ]
    for extra, (modules, purpose) in _EXTRAS.items():
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        if absent:
            command = f"pip install 'potentia[{extra}]'"
            missing.append({"what": ", ".join(absent), "needed for": purpose, "get it": command})
    if device["kind"] == "cpu":
        missing.append({"what": "a GPU", "needed for": "models beyond a few hundred million parameters in good time",
                        "get it": "a machine with CUDA and a torch built for it"})  # fmt: skip
    if hub["state"] != "reachable":
        missing.append({"what": "the hub", "needed for": "models and benchmarks that are not on this disk",
                        "get it": hub["fix"]})  # fmt: skip
    return {"versions": versions, "device": device, "caches": caches, "hub": hub, "missing": missing}


def _device() -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "cpu", "cores": os.cpu_count(), "gpus": []}
    try:
        import torch
    except (ImportError, OSError) as error:
        return {**found, "problem": f"torch cannot be loaded: {error}"}
    found["threads"] = torch.get_num_threads()
    if torch.cuda.is_available():
        found["kind"] = "cuda"
        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            memory = round(facts.total_memory / 2**30, 1)
            found["gpus"].append({"name": facts.name, "memory_gib": memory, "bfloat16": torch.cuda.is_bf16_supported()})
    elif torch.backends.mps.is_available():
        found["kind"] = "mps"
    return found


def _caches() -> list[dict[str, Any]]:
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    folders = {
        "models": Path(os.environ.get("HF_HUB_CACHE") or home / "hub"),
        "datasets": Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets"),
        "results": Path.cwd(),
    }
    return [_folder(use, path.expanduser()) for use, path in folders.items()]


def _folder(use: str, path: Path) -> dict[str, Any]:
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    free = round(shutil.disk_usage(existing).free / 2**30, 1)
    return {"use": use, "path": str(path), "exists": path.exists(), "writable": os.access(existing, os.W_OK),
            "free_gib": free}  # fmt: skip


def _hub() -> dict[str, Any]:
    import urllib.error
    import urllib.request

    from huggingface_hub import constants

    endpoint = constants.ENDPOINT
    if constants.HF_HUB_OFFLINE:
        fix = "unset HF_HUB_OFFLINE, or work from local folders with --data-dir"
        return {"endpoint": endpoint, "state": "switched off (HF_HUB_OFFLINE)", "fix": fix}
    request = urllib.request.Request(endpoint, method="HEAD")
    fix = "check network and proxy (HTTPS_PROXY, HF_ENDPOINT), or work from local folders with --data-dir"
    try:
        with urllib.request.urlopen(request, timeout=_HUB_SECONDS):
            return {"endpoint": endpoint, "state": "reachable", "fix": None}
    except urllib.error.HTTPError as error:
        state = "reachable" if error.code < 500 else f"answers with error {error.code}"
        return {"endpoint": endpoint, "state": state, "fix": None if error.code < 500 else fix}
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return {"endpoint": endpoint, "state": f"not reachable ({reason})", "fix": fix}


def _show(report: dict[str, Any]) -> None:
    versions = tuple((part, version or "missing") for part, version in report["versions"].items())
    print_table(Table(title="Versions", columns=("part", "version"), rows=versions))
    device = report["device"]
    machine = [("kind", device["kind"]), ("cores", str(device["cores"]))]
    machine += [(f"gpu {i}", f"{gpu['name']}, {gpu['memory_gib']} GiB") for i, gpu in enumerate(device["gpus"])]
    if "problem" in device:
        machine.append(("problem", device["problem"]))
    machine.append(("hub", f"{report['hub']['endpoint']}: {report['hub']['state']}"))
    print_table(Table(title="Machine", columns=("what", "found"), rows=tuple(machine)))
    caches = tuple(
        (c["use"], c["path"], "yes" if c["writable"] else "no", f"{c['free_gib']} GiB") for c in report["caches"]
    )
    print_table(Table(title="Folders", columns=("for", "path", "writable", "free"), rows=caches))
    missing = tuple((m["what"], m["needed for"], m["get it"]) for m in report["missing"])
    print_table(
        Table(
            title="Missing" if missing else "Nothing is missing",
            columns=("what", "needed for", "how to get it"),
            rows=missing,
        )
    )
