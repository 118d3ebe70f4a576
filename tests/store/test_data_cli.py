"""The commands on data, as a user types them: models, import, export, doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from potentia import facts


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def potentia(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Run a command in ``tmp_path`` as the console script does, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> Done:
        from potentia.cli.app import run_command_line

        monkeypatch.setattr(sys, "argv", ["potentia", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            run_command_line()
        spoken = capsys.readouterr()
        return Done(int(exit_info.value.code or 0), spoken.out, spoken.err)

    return call


Potentia = Callable[..., Done]


def test_facts_of_models_are_there() -> None:
    table = facts.models()
    known = table.find("Qwen1.5-0.5B")
    assert known is not None
    assert (known.family, known.repository) == ("qwen", "Qwen/Qwen1.5-0.5B")
    assert known.flops == pytest.approx(8.928e21)
    assert table.find("gemma-2-2x") is None


def test_scores_go_in_and_out(potentia: Potentia, tmp_path: Path) -> None:
    table = "protocol,model,benchmark,score,stderr\ndirect,a,boolq,0.5,0.1\ndirect,b,boolq,0.75,\n"
    (tmp_path / "scores.csv").write_text(table)
    done = potentia("export", "scores.csv", "-o", "s.db", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["imported"] == [
        {"source": "scores.csv", "study": "scores.csv", "new": 2, "known": 0}
    ]
    assert "0" in potentia("export", "scores.csv", "-o", "s.db").stdout
    done = potentia("export", "s.db", "-o", "out.csv")
    assert done.returncode == 0, done.stderr
    assert "direct (2 × 1), models × tasks → out.csv" in done.stdout
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines == [
        "protocol,model,benchmark,score,stderr,n,metric,higher_is_better,metric_kind,metric_scale,source",
        "direct,a,boolq,0.5,0.1,,,true,task,share,scores.csv",
        "direct,b,boolq,0.75,,,,true,task,share,scores.csv",
    ]
    for name, sign in (("out.md", "| 1 | b |"), ("out.tex", r"\toprule"), ("out.parquet", "PAR1")):
        assert potentia("export", "s.db", "-o", name, "--protocol", "direct").returncode == 0
        assert sign.encode() in (tmp_path / name).read_bytes()
    done = potentia("export", "s.db", "-o", "results", "--json", "--to", "lm-eval")
    assert json.loads(done.stdout)["files"] == [
        "results/a/results_direct.json",
        "results/b/results_direct.json",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("export", "absent.csv", "-o", "s.db"), "absent.csv: there is no such file"),
        (("export", "bad.csv", "-o", "s.db"), "bad.csv, line 2, column score"),
        (("export", "absent.db", "-o", "x.csv"), "absent.db: there is no such file"),
        (("analyze", "rankings"), "run a study first, which makes a store"),
        (("compare", "a", "b"), "run a study first, which makes a store"),
        (("report",), "potentia.db: there is no such file"),
        (("export", "good.csv", "-o", "x.doc"), "does not say the format"),
        (("export", "good.csv", "-o", "x.csv", "--protocol", "few_shot"), "no protocol 'few_shot'"),
    ],
)
def test_bad_input_exits_2_and_writes_nothing(
    potentia: Potentia, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "bad.csv").write_text("model,benchmark,score\na,x,NaN\n")
    (tmp_path / "good.csv").write_text("model,benchmark,score\na,x,1\n")
    done = potentia(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "good.csv"]


def test_the_doctor_says_what_is_missing(potentia: Potentia) -> None:
    done = potentia("doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["versions"]["potentia"]
    assert report["hub"]["state"] == "switched off (HF_HUB_OFFLINE)"
    assert {folder["use"] for folder in report["caches"]} == {"models", "datasets", "results"}
    assert any(entry["what"] == "the hub" for entry in report["missing"])


def test_the_doctor_tries_the_hub(tmp_path: Path) -> None:
    nowhere = {
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "NO_PROXY": "*",
        "COLUMNS": "200",
    }
    command = [sys.executable, "-c", "from potentia.cli import main; main()", "doctor"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **nowhere},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "http://127.0.0.1:9: not reachable" in done.stdout
    assert "--data-dir" in done.stdout


def test_base_and_tuned_folders_of_one_model_join(
    potentia: Callable[..., Done], tmp_path: Path
) -> None:
    for folder, value in (("base", 0.3), ("tuned", 0.5)):
        (tmp_path / folder).mkdir()
        for model in ("a-7b", "b-7b"):
            arguments = f"pretrained=/fast/{folder}/{model}/,trust_remote_code=True"
            results = {
                "results": {"arc_easy": {"acc,none": value, "acc_stderr,none": 0.01}},
                "n-shot": {"arc_easy": 0},
            }
            results |= {"config": {"model": "hf", "model_args": arguments}}
            (tmp_path / folder / f"{model}.json").write_text(json.dumps(results))
    for folder, protocol in (("base", "direct"), ("tuned", "adjust")):
        described = f"study: both\nprotocol: {protocol}\nshort_names: true\n"
        (tmp_path / "columns.yaml").write_text(described)
        done = potentia("export", folder, "-o", "potentia.db", "--columns", "columns.yaml")
        assert done.returncode == 0, done.stderr
    table = potentia("export", "potentia.db", "-o", "-").stdout
    assert table.count("a-7b") == table.count("b-7b") == 2, "one name, two protocols"
    assert "/fast" not in table
