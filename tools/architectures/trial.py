"""One case of the matrix from its config to its verdict: saved, loaded, scored beside HFLM, tuned beside PEFT."""

from __future__ import annotations

import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from architectures import score, tune
from architectures.tiny import build, words
from potentia.engine import LoadedModel, load
from potentia.errors import PotentiaError

EXACT_LIKELIHOOD = 2e-4  # of a log-likelihood, beyond its last bit


def try_case(case: str) -> dict[str, Any]:
    """Try one case; what is found is plain values, ``verdict`` among them: exact, refused, WRONG or CRASH."""
    began = time.monotonic()
    row: dict[str, Any] = {"case": case}
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            row |= _tried(case, Path(folder))
    except PotentiaError as error:
        row |= {"verdict": "refused", "reason": str(error)}
    except Exception as error:  # whatever it is, it belongs in the table
        frame = traceback.extract_tb(error.__traceback__)[-1]
        row |= {
            "verdict": "CRASH",
            "reason": f"{type(error).__name__}: {error} ({Path(frame.filename).name})",
        }
    row["seconds"] = round(time.monotonic() - began, 1)
    return row


def _tried(case: str, folder: Path) -> dict[str, Any]:
    built = build(case)
    row: dict[str, Any] = {
        "class": type(built).__name__,
        "parameters": sum(p.numel() for p in built.parameters()),
    }
    parts: tuple[Any, ...] = (built, words())
    for part in parts:
        part.save_pretrained(str(folder))
    loaded = load(str(folder), device="cpu")
    row["reloaded"] = _same(built, loaded.model)
    if not row["reloaded"]:  # its own files do not hold it: then the model in memory
        loaded = LoadedModel.of(built, words())
    comparison = score.compare(loaded)
    row |= {
        "paths": comparison.paths,
        "choice": comparison.choice,
        "rolling": comparison.rolling,
        "writing": comparison.writing,
        "written": comparison.written,
        "asked": comparison.asked,
    }
    right = (
        comparison.choice <= EXACT_LIKELIHOOD
        and comparison.rolling <= EXACT_LIKELIHOOD
        and comparison.written == comparison.asked
    )
    for name, targets in (("default", None), ("all-linear", ("all-linear",))):
        tuned = tune.compare(loaded.model, targets, loaded.max_length)
        row[name] = {
            "targets": tuned.targets,
            "layers": tuned.layers,
            "plain": tuned.plain,
            "recomputed": tuned.recomputed,
            "saved": tuned.saved,
            "refused": tuned.refused,
        }
        right = right and tuned.exact
    row["verdict"] = "exact" if right else "WRONG"
    return row


@torch.no_grad()
def _same(first: Any, second: Any) -> bool:
    ids = torch.arange(10, 30)[None]
    ours, theirs = (model(input_ids=ids, use_cache=False).logits for model in (first, second))
    return bool(torch.allclose(ours, theirs, atol=1e-4))
