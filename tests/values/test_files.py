"""A file is replaced as a whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import resource, signal, sys
from pathlib import Path
from potentia.files import write_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
write_file(Path(sys.argv[1]), b"new" * int(sys.argv[2]))
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path):
    file = tmp_path / "report.html"
    file.write_bytes(b"old")
    full = subprocess.run([sys.executable, "-c", CODE, file, "1000"], capture_output=True, text=True)
    assert "File too large" in full.stderr
    assert (file.read_bytes(), [p.name for p in tmp_path.iterdir()]) == (b"old", ["report.html"])
    subprocess.run([sys.executable, "-c", CODE, file, "10"], check=True)
    assert (file.read_bytes(), [p.name for p in tmp_path.iterdir()]) == (b"new" * 10, ["report.html"])
