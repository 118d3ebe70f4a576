"""The demo where something went wrong: a sentence, not a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from potentia.errors import PotentiaError
from potentia.lab import demo_findings, demo_study
from potentia.run import run_study


def test_without_tuned_cells_it_says_so(tmp_path: Path):
    study = demo_study(tmp_path, quick=True)
    study = study.model_copy(update={"models": study.models[:4], "tasks": study.tasks[:3], "protocols": ("direct",)})
    assert run_study(study).failed == 0
    with pytest.raises(PotentiaError, match="nothing to compare"):
        demo_findings(study)
