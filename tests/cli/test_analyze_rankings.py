"""``analyze rankings`` and ``reproduce train-before-test`` as a user calls them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from potentia.analysis.rankings import RankingOptions, find_rankings
from potentia.evidence import read


@pytest.fixture
def table(tmp_path):
    """Write a score table of eight known models, three tasks, a corpus and two protocols."""
    rng = np.random.default_rng(0)
    models = [f"Qwen/Qwen{v}-{s}B" for v in ("1.5", "2.5") for s in ("0.5", "7", "14")] + [
        "Qwen/Qwen2-7B",
        "me/mine",
    ]
    lines = ["protocol,model,benchmark,score,stderr"]
    for protocol, noise in (("direct", 0.1), ("train_before_test", 0.02)):
        for k, model in enumerate(models):
            for task in ("arc_easy", "boolq", "gsm8k"):
                lines.append(
                    f"{protocol},{model},{task},{0.3 + k * 0.06 + noise * rng.normal():.4f},0.01"
                )
            lines.append(f"{protocol},{model},wiki,{1.5 - k * 0.05:.4f},")
    path = tmp_path / "scores.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_analyze_rankings_prints_findings_as_json(potentia, table):
    done = potentia("analyze", "rankings", table, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (
        printed["change direct train_before_test"]["mean_after"]
        > printed["agreement direct"]["mean"]
    )
    assert printed["perplexity direct"]["corpora"] == ["wiki"]


def test_analyze_rankings_prints_tables_and_draws(potentia, table, tmp_path):
    done = potentia(
        "analyze",
        "rankings",
        table,
        "--protocols",
        "direct",
        "--all",
        "--figures",
        tmp_path / "figures.svg",
        tmp_path / "figures",
    )
    assert done.returncode == 0, done.stderr
    assert "Aggregate ranking" in done.stdout
    assert "train_before_test" not in done.stdout
    drawn = {p.name for p in (tmp_path / "figures").iterdir()}
    assert {"agreement-direct-kendall.svg", "agreement-direct-kendall.png"} <= drawn


def test_it_is_short_unless_all_is_asked_for(potentia, table):
    short, whole = (
        potentia("analyze", "rankings", table, *more).stdout for more in ([], ["--all"])
    )
    assert short.splitlines()[0] == whole.splitlines()[0] == "Mean score over 3 tasks"
    assert re.split(r"\s{2,}", short.splitlines()[1]) == [
        "rank",
        "model",
        "P(first)",
        "mean z",
        "before fine-tuning",
        "after fine-tuning",
        "gain",
    ]
    assert len(short.splitlines()) < 40 < len(whole.splitlines())
    assert "All tasks together" in short
    assert "Aggregate ranking" not in short


def test_no_line_of_a_piped_table_is_broken(potentia, table):
    text = potentia("analyze", "rankings", table, "--all").stdout
    assert (
        max(map(len, text.splitlines())) > 120
    )  # the width of a terminal that is not there cuts nothing
    head = next(
        line for line in text.splitlines() if line.startswith("model") and "rank by PC1" in line
    )
    assert "rank by mean rank" in head


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--protocol", "nope"], "no protocol 'nope'"),
        (["--figures", "figures.bmp"], "no figure format"),
        (["--show", "nothing"], "nothing to show as 'nothing'"),
    ],
)
def test_bad_input_exits_with_two_and_a_hint(potentia, table, arguments, message):
    done = potentia("analyze", "rankings", table, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "hint:" in done.stderr


def test_reproduce_needs_both_protocols(potentia, tmp_path):
    path = tmp_path / "one.csv"
    path.write_text(
        "protocol,model,benchmark,score,stderr\ndirect,a,rte,0.5,0.1\ndirect,b,rte,0.6,0.1\n"
    )
    done = potentia("papers", "reproduce", "train-before-test", path)
    assert done.returncode == 2
    assert "train_before_test" in done.stderr


def test_reproduce_prints_paper_and_ours(potentia, shared_data):
    done = potentia(
        "papers",
        "reproduce",
        "train-before-test",
        shared_data / "published" / "train_before_test_scores.csv",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    checks = {(c["where"].split(":")[0], c["what"]): c for c in json.loads(done.stdout)["checks"]}
    nq = checks["Table 5", "nq_open, train-before-test"]
    assert nq["paper"] == 0.74
    assert round(nq["ours"], 2) == 0.74


def test_reproduce_ends_with_what_differs(potentia, shared_data):
    scores = shared_data / "published" / "train_before_test_scores.csv"
    done = potentia("papers", "reproduce", "train-before-test", scores, "--quiet")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) < 10
    (differing,) = (line.split()[-1] for line in lines if line.startswith("different"))
    _, _, sentence = lines[-1].partition("Different from the paper: ")
    assert sentence.count(", printed ") == int(differing) > 0


def test_items_of_a_store_give_paired_tests(potentia, tmp_path):
    from potentia.store import CellRecord, Store
    from potentia.values.metric import Metric
    from potentia.values.scores import ItemOutcome, Score

    rng = np.random.default_rng(0)
    hardness = rng.random(200)
    with Store.open(tmp_path / "potentia.db") as store:
        store.studies.open("s", "study-key", {})
        for k in range(3):
            for task in ("rte", "boolq"):
                right = hardness < 0.5 + 0.1 * k
                mean = float(right.mean())
                score = Score(mean, float(np.sqrt(mean * (1 - mean) / 199)), 200, Metric.of("acc"))
                items = [ItemOutcome(i, float(r), "", "", {}) for i, r in enumerate(right)]
                cell = CellRecord(
                    key=f"key-{k}-{task}",
                    study="s",
                    model=f"m{k}",
                    task=task,
                    protocol="direct",
                    scores={"acc": score},
                    metric="acc",
                )
                store.cells.commit(cell, items=items)
    done = potentia("analyze", "rankings", tmp_path / "potentia.db", "--json")
    assert done.returncode == 0, done.stderr
    paired = json.loads(done.stdout)["significance direct"]
    assert paired["items"] == [200, 200]
    assert paired["significant"] == [3, 3]
    assert paired["tests"] == ["McNemar", "McNemar"]
    bare = find_rankings(
        read(tmp_path / "potentia.db"), RankingOptions(resamples=20, use_items=False)
    ).findings_by_name()
    assert bare["significance direct"].to_dict()["items"] == [0, 0]
