"""At home in a shell: a version, a module, completion, tables and files that a pipe takes whole."""

from __future__ import annotations

import csv
import io
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import tiny
from potentia import __version__
from potentia.store import Store

LONG = "an-organisation/a-model-with-a-name-so-long-that-no-terminal-of-eighty-columns-would-show-it-on-one-line"


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    lines = ["protocol,model,benchmark,score,stderr,n"]
    for protocol, lift in (("direct", 0.0), ("train_before_test", 0.2)):
        for k, model in enumerate((LONG, "b", "c")):
            lines += [
                f"{protocol},{model},{task},{0.4 + lift + 0.03 * k},0.01,900"
                for task in ("arc_easy", "boolq")
            ]
    path = tmp_path / "scores.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_version_and_the_module():
    for command in (
        [sys.executable, "-m", "potentia"],
        [str(Path(sys.executable).with_name("potentia"))],
    ):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert (done.returncode, done.stdout.strip()) == (0, f"potentia {__version__}")


def test_a_shell_completes_commands():
    asked = {
        "_POTENTIA_COMPLETE": "complete_bash",
        "COMP_WORDS": "potentia comp",
        "COMP_CWORD": "1",
    }
    command = [str(Path(sys.executable).with_name("potentia"))]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **asked})
    assert done.stdout.split() == ["compare"]


def test_little_memory_is_told_in_a_sentence(tmp_path):
    tiny.save_model(tmp_path / "m")
    tiny.save_questions(tmp_path / "q.jsonl", n=20)
    study = {
        "name": "s",
        "models": [{"name": "m", "path": "m"}],
        "tasks": [{"name": "q", "file": "q.jsonl"}],
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    addresses = 900 * 10**6  # too few for torch
    done = subprocess.run(
        [sys.executable, "-m", "potentia", "run", "study.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses)),
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "memory ran out" in done.stderr


def test_a_piped_table_is_not_broken(potentia, scores):
    done = potentia("analyze", "rankings", scores)
    assert done.returncode == 0
    row = next(line for line in done.stdout.splitlines() if LONG.rpartition("/")[2] in line)
    assert "0.400 ± " in row
    assert "+0.200" in row


def test_an_export_goes_to_standard_output(potentia, scores):
    done = potentia("export", scores, "-o", "-")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == 12
    assert {row["model"] for row in rows} == {LONG, "b", "c"}
    assert "→" not in done.stdout
    assert potentia("export", scores, "-o", "-", "--to", "markdown").stdout.startswith(
        "### before fine-tuning\n"
    )
    assert potentia("export", scores, "-o", "-", "--to", "lm-eval").returncode == 2
    assert not Path("-").exists()


def test_help_loads_nothing_that_is_slow():
    """It takes 0.3 s of one core; what would slow it down is an import."""
    code = (
        "import sys; from potentia.cli.app import app, typer; typer.main.get_command(app); heavy = {'torch', 'numpy',"
        " 'pandas', 'transformers', 'sqlalchemy', 'pydantic', 'yaml', 'urllib.request', 'scipy', 'jinja2'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
        == "[]"
    )


def test_status_loads_none_of_the_analyses(tmp_path: Path):
    """It answers within a second on any store, of which the analyses' libraries would take another."""
    with Store.open(tmp_path / "s.db") as store:
        store.studies.open("s", "k", {"models": ["m"], "tasks": ["t"]})
    code = (
        "import sys; from potentia.cli.app import run_command_line; sys.argv = ['potentia', 'status', sys.argv[1]]\n"
        "try: run_command_line()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(sorted({'torch', 'scipy', 'pandas', 'sklearn', 'vl_convert', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s.db")], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_an_interrupt_that_a_library_wrapped_is_one(potentia, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C while something is imported may come out of it as another error, which was told as a bug of ours."""

    def wrapped(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__ on 'Field'") from error

    monkeypatch.setattr("potentia.run.read_store_status", wrapped)
    earlier_handler = signal.getsignal(signal.SIGINT)
    try:
        done = potentia("status", "s.db")
    finally:
        signal.signal(signal.SIGINT, earlier_handler)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_library_that_panics_is_told_in_a_sentence(potentia, monkeypatch: pytest.MonkeyPatch):
    """Rust code that panics, such as a tokenizer's, raises what is no ``Exception``."""

    class PanicException(BaseException):
        pass

    def panic(*_: object, **__: object) -> None:
        raise PanicException("regex search error")

    monkeypatch.setattr("potentia.run.read_store_status", panic)
    done = potentia("status", "s.db")
    assert done.returncode == 1
    assert done.stderr == "error: a library failed: regex search error\n"


def test_a_bad_patience_is_told_in_a_sentence(
    potentia, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    import tiny

    tiny.save_model(tmp_path / "m")
    tiny.save_questions(tmp_path / "q.jsonl")
    monkeypatch.setenv("POTENTIA_STORE_PATIENCE", "soon")
    done = potentia(
        "run",
        "--models",
        tmp_path / "m",
        "--tasks",
        tmp_path / "q.jsonl",
        "--store",
        tmp_path / "s.db",
    )
    assert done.returncode == 2
    assert "POTENTIA_STORE_PATIENCE is 'soon'" in done.stderr
