"""The demo where something went wrong: a sentence, not a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from potentia.errors import PotentiaError
from potentia.lab import demo_findings, demo_study
from potentia.run import run_study


def test_without_tuned_cells_it_says_so(tmp_path: Path):
    study = demo_study(tmp_path)
    few = {
        "models": study.models[:2],
        "tasks": study.tasks[:2],
        "caps": study.caps.model_copy(update={"test": 40}),
    }
    study = study.model_copy(update={**few, "protocols": ("direct",)})
    assert run_study(study).failed == 0
    with pytest.raises(PotentiaError, match="nothing to compare"):
        demo_findings(study)
