"""What is written is whole or not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from potentia.errors import InputError
from potentia.files import atomic_folder, write_file


def test_a_folder_takes_its_name_when_it_is_full(tmp_path: Path):
    place = tmp_path / "new" / "adapter"
    with atomic_folder(place) as draft:
        (draft / "a").write_text("1")
        assert not place.exists()
    assert [file.name for file in place.parent.iterdir()] == ["adapter"]
    with pytest.raises(InputError, match="not empty"), atomic_folder(place):
        pass
    with pytest.raises(FileNotFoundError), atomic_folder(place, replace=True) as draft:
        (draft / "not there" / "b").write_text("2")
    assert [file.name for file in place.iterdir()] == ["a"], "the old one stays"
    with atomic_folder(place, replace=True) as draft:
        (draft / "b").write_text("2")
        assert (place / "a").exists()
    assert [file.name for file in place.iterdir()] == ["b"]
    assert [file.name for file in place.parent.iterdir()] == ["adapter"], "nothing lies beside it"


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path):
    write_file(tmp_path / "a", "old")
    with pytest.raises(TypeError):
        write_file(tmp_path / "a", "new", None)  # type: ignore[arg-type]
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a", "old")]


FULL_DISK = """
import resource, signal, sys
import subprocess
import sys
from pathlib import Path
from potentia.files import write_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
write_file(Path(sys.argv[1]), b"new" * int(sys.argv[2]))
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path):
    file = tmp_path / "report.html"
    file.write_bytes(b"old")
    full = subprocess.run(
        [sys.executable, "-c", FULL_DISK, file, "1000"], capture_output=True, text=True
    )
    assert "File too large" in full.stderr
    assert (file.read_bytes(), [p.name for p in tmp_path.iterdir()]) == (b"old", ["report.html"])
    subprocess.run([sys.executable, "-c", FULL_DISK, file, "10"], check=True)
    assert (file.read_bytes(), [p.name for p in tmp_path.iterdir()]) == (
        b"new" * 10,
        ["report.html"],
    )
