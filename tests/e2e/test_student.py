"""The student's story: a paper's wide table, a folder of lm-eval results with samples; tables for a thesis."""

from __future__ import annotations

import json
import random
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

import potentia
from potentia.cli.app import app, repeat_flags

TABLE = """Model,WikiText-2 (ppl),ARC-e,BoolQ (%),Params
Pythia-160M,26.5,43.6,52.1,160M
Pythia-410M,16.2,52.0,60.5,410M
Pythia-1B,13.0,57.0,61.0,1B
OPT-125M,27.7,43.4,55.4,125M
"""


def command(*arguments: object) -> tuple[str, str]:
    result = CliRunner().invoke(app, repeat_flags(get_command(app), [str(a) for a in arguments]))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout, result.stderr


def test_a_papers_table_is_read_the_right_way_round_and_comes_out_as_latex(tmp_path: Path) -> None:
    table = tmp_path / "paper.csv"
    table.write_text(TABLE)
    told, read = command(
        "analyze",
        "rankings",
        table,
        "--figures",
        tmp_path / "out.csv",
        tmp_path / "out.tex",
        tmp_path / "out.svg",
    )
    lines = {line.split("  ")[0].strip(): line for line in read.splitlines()}
    assert "lower" in lines["WikiText-2 (ppl)"]
    assert "perplexity corpus" in lines["WikiText-2 (ppl)"]
    assert "higher" in lines["ARC-e"]
    assert "divided by 100" in lines["BoolQ (%)"]
    assert "Left out: Params" in read
    assert "Pythia-1B has the best score of 4 models" in told
    assert "a difference needs standard errors to be called significant" in told
    assert "the scores have no standard errors" in told
    latex = (tmp_path / "out" / "Mean-score-over-2-tasks.tex").read_text()
    assert "\\toprule" in latex
    printed = [line.split()[1] for line in told.splitlines()[2:6]]
    rows = (tmp_path / "out" / "Mean-score-over-2-tasks.csv").read_text().splitlines()
    assert printed == [row.split(",")[1] for row in rows[1:]]
    assert list((tmp_path / "out").glob("*.svg"))


def lm_eval(folder: Path, model: str, right: list[int]) -> None:
    stamp, n = "2026-02-01T00-00-00.000000", len(right)
    mean = sum(right) / n
    body = {
        "results": {
            "arc_easy": {"acc,none": mean, "acc_stderr,none": (mean * (1 - mean) / (n - 1)) ** 0.5}
        },
        "n-samples": {"arc_easy": {"original": n, "effective": n}},
        "model_name": model,
    }
    model_folder = folder / model
    model_folder.mkdir(parents=True)
    (model_folder / f"results_{stamp}.json").write_text(json.dumps(body))
    samples = [
        {"doc_id": k, "doc_hash": f"{k:064x}", "filter": "none", "acc": float(v)}
        for k, v in enumerate(right)
    ]
    (model_folder / f"samples_arc_easy_{stamp}.jsonl").write_text(
        "".join(json.dumps(s) + "\n" for s in samples)
    )


def test_samples_of_lm_eval_decide_what_scores_alone_cannot(tmp_path: Path) -> None:
    """Two models 4 points apart on 400 documents: apart by McNemar's test, not by two standard errors."""
    stream = random.Random(0)
    first = [int(stream.random() < 0.6) for _ in range(400)]
    second = list(first)
    for k in [k for k, v in enumerate(first) if not v][:18]:
        second[k] = 1
    for k in [k for k, v in enumerate(first) if v][:2]:
        second[k] = 0
    results = tmp_path / "results"
    lm_eval(results, "org__one", first)
    lm_eval(results, "org__two", second)
    content = json.loads(command("compare", "two", "one", results, "--json")[0])
    (task,) = content["tasks"]
    assert task["test"] == "McNemar"
    assert task["p_value"] < 0.001
    for samples in results.rglob("samples*.jsonl"):
        samples.unlink()
    (task,) = json.loads(command("compare", "two", "one", results, "--json")[0])["tasks"]
    assert task["test"] == "z"
    assert task["p_value"] > 0.1


def test_a_table_of_pandas_says_the_same(tmp_path: Path) -> None:
    import pandas as pd

    table = tmp_path / "paper.csv"
    table.write_text(TABLE)
    frame = pd.read_csv(table).drop(columns="Params").set_index("Model")
    ours, theirs = (
        potentia.find_rankings(potentia.read(source)).scoreboard for source in (frame, table)
    )
    assert ours.headline() == theirs.headline()
