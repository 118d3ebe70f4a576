"""Whole commands, as a user types them."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiny

POTENTIA = str(Path(sys.executable).with_name("potentia"))


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    new_folder = tmp_path_factory.mktemp("cli")
    tiny.save_model(new_folder / "m0")
    tiny.save_model(new_folder / "m1", seed=1)
    tiny.save_questions(new_folder / "q.jsonl")
    return new_folder


@pytest.fixture
def potentia(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Run a command in the folder as the console script does, in this process: torch is loaded once."""
    monkeypatch.chdir(folder)
    for name, value in {"OMP_NUM_THREADS": "1", "COLUMNS": "160", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: object) -> Done:
        from potentia.cli.app import run_command_line

        monkeypatch.setattr(sys, "argv", ["potentia", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            run_command_line()
        return Done(int(exit_info.value.code or 0), *capfd.readouterr())

    return call


Potentia = Callable[..., Done]


def test_help_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['potentia', '--help']\n"
        "from potentia.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'peft', 'ray', 'lm_eval', 'datasets', 'pandas', 'scipy', 'sklearn', "
        "'vl_convert', 'sqlalchemy', 'fastapi'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    bare = "import sys, typer, rich.table; sys.argv = ['x', '--help']; typer.run(lambda: None)"
    commands = [POTENTIA, "--help"], [sys.executable, "-c", bare]
    ours, least = (
        min(times) for times in zip(*([*map(_seconds, commands)] for _ in range(5)), strict=True)
    )
    assert ours < 2.5 * least, (
        f"--help took {ours:.2f} s of processor time, a command without options {least:.2f} s"
    )


def _seconds(command: list[str]) -> float:
    """Processor time, which a busy machine stretches less than wall time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_every_command_shows_a_runnable_example():
    import typer

    from potentia.cli.app import app

    def walk(command, path):
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                yield from walk(inner, [*path, name])
            if not getattr(command, "invoke_without_command", False):
                return
        yield path, (command.help or "") + (command.epilog or "")

    missing = [
        " ".join(path)
        for path, text in walk(typer.main.get_command(app), ["potentia"])
        if "potentia " not in text
    ]
    assert not missing, f"no example in the help of: {missing}"


def test_run_status_export(potentia: Potentia, folder: Path):
    done = potentia(
        "run", "--models", "./m0", "--tasks", "q.jsonl", "--protocols", "direct", "--json"
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["computed"] == 1
    (score,) = printed["scores"]
    printed_score = printed["scoreboard"]["standings"][0]["scores"][0]
    assert (score["protocol"], score["model"], score["task"]) == ("direct", "./m0", "q.jsonl")
    assert printed_score["value"] == score["value"]
    again = potentia("run", "--models", "./m0", "--tasks", "q.jsonl", "--protocols", "direct")
    interval = f"({printed_score['low']:.3f} to {printed_score['high']:.3f})"  # of six documents: far from even
    assert f"m0     {score['value']:.3f} {interval}" in again.stdout
    assert "In brackets behind a score: the 95 % interval of test noise." in again.stdout
    assert "±" not in again.stdout
    assert "1 found" in again.stdout
    state = json.loads(potentia("status", "potentia.db", "--json").stdout)
    assert state["studies"][0]["done"] == state["studies"][0]["asked"] == 1
    exported = potentia("export", "potentia.db", "-o", "scores.csv")
    assert exported.returncode == 0, exported.stderr
    assert "q.jsonl" in (folder / "scores.csv").read_text()


def test_a_finished_run_ends_with_the_score_table(potentia: Potentia):
    done = potentia(
        "run",
        "--models",
        "./m0",
        "./m1",
        "--tasks",
        "q.jsonl",
        "--set",
        "tuning.epochs=1",
        "tuning.learning_rates=[1e-3]",
        "--store",
        "two.db",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    columns = ["rank", "model", "P(first)", "before fine-tuning", "after fine-tuning", "gain"]
    assert re.split(r"\s{2,}", lines[1]) == columns
    assert {lines[2].split()[2], lines[3].split()[2]} == {"m0", "m1"}
    assert any("best of 2 models" in line or "tie after" in line for line in lines)
    assert not any("other tasks" in line or "choice of tasks" in line for line in lines)


def test_a_plan_runs_nothing(potentia: Potentia, folder: Path):
    asked = (
        "run",
        "--dry-run",
        "--models",
        "./m0",
        "--tasks",
        "q.jsonl",
        "--store",
        "dry.db",
        "--json",
    )
    done = potentia(*asked)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["cells_to_do"] == 2
    assert plan["lanes"] == 4  # three rates, and what the search adds on average
    assert plan["train_tokens"] > 0
    assert not (folder / "dry.db").exists(), "a plan leaves nothing behind"


def test_a_flags_path_is_relative_to_where_the_command_runs(
    potentia: Potentia, folder: Path, tmp_path: Path
):
    """The study file's own folder has a ``d`` too, without the data."""
    (tmp_path / "study.yaml").write_text(
        f"models: [{folder / 'm0'}]\ntasks: [arc_easy]\nprotocols: [direct]\n"
    )
    (tmp_path / "d").mkdir()
    data = folder / "d" / "allenai--ai2_arc" / "ARC-Easy"
    data.mkdir(parents=True)
    arguments = (
        "run",
        "--dry-run",
        tmp_path / "study.yaml",
        "--data-dir",
        "d",
        "--store",
        tmp_path / "s.db",
    )
    done = potentia(*arguments)
    assert done.returncode == 2
    assert str(tmp_path) not in done.stderr.replace(str(tmp_path / "study.yaml"), "")
    rows = {
        "id": ["1"],
        "question": ["what is it ?"],
        "choices": [{"text": ["cat", "dog"], "label": ["A", "B"]}],
    }
    for split in ("train", "validation", "test"):
        pq.write_table(pa.table(rows | {"answerKey": ["A"]}), data / f"{split}.parquet")
    done = potentia(*arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "--models and --tasks"),
        (["run", "nowhere.yaml"], "potentia run --save nowhere.yaml"),
        (["run", "--models", "./nowhere", "--tasks", "q.jsonl"], "./nowhere: no such folder"),
        (["run", "--models", "./m0", "--tasks", "no_such_task_at_all"], "no_such_task_at_all"),
        (
            ["run", "--models", "./m0", "--tasks", "q.jsonl", "--protocols", "fewshot"],
            "is not a protocol",
        ),
        (["tasks", "no_such_task_at_all"], "no_such_task_at_all"),
        (["export", "nowhere.db", "-o", "x.csv"], "nowhere.db"),
        (["status", "nowhere.db"], "no such store"),
        (["analyze", "rankings", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_bad_input_names_the_trouble_and_exits_with_2(
    potentia: Potentia, arguments: list[str], said: str
):
    done = potentia(*arguments)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_hub_model_is_recorded_as_failed(potentia: Potentia):
    done = potentia(
        "run",
        "--models",
        "nobody/nothing",
        "--tasks",
        "q.jsonl",
        "--protocols",
        "direct",
        "--store",
        "f.db",
    )
    assert done.returncode == 1
    assert "nobody/nothing" in done.stderr
    state = json.loads(potentia("status", "f.db", "--json").stdout)
    assert state["failures"][0]["model"] == "nobody/nothing"


def test_doctor_names_a_folder_that_is_not_there(potentia, tmp_path):
    (tmp_path / "own").mkdir()
    done = potentia("doctor", tmp_path / "own" / "tiny-x")
    assert done.returncode == 2
    assert "own/tiny-x: no such folder" in done.stderr
