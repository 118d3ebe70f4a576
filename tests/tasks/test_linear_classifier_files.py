"""The file of a classifier on words may come from a stranger."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from potentia.errors import InputError
from potentia.tasks import LinearTextClassifier


def test_a_file_that_unpacks_to_more_than_is_read_is_no_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "classifier.npz"
    np.savez_compressed(file, words=np.zeros(200_000))
    monkeypatch.setattr("potentia.tasks.linear_classifier.LARGEST_DATA", 100_000)
    with pytest.raises(InputError, match="not a classifier that Potentia wrote") as refused:
        LinearTextClassifier.load(file)
    assert "too large" in str(refused.value.__cause__)


def test_a_file_that_is_no_archive_is_no_classifier(tmp_path: Path) -> None:
    file = tmp_path / "classifier.npz"
    file.write_bytes(b"no archive")
    with pytest.raises(InputError, match="not a classifier that Potentia wrote"):
        LinearTextClassifier.load(file)
