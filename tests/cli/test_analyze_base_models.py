"""``potentia analyze checkpoints`` and ``potentia papers proxy`` as a user types them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import typer

from potentia.cli.app import app, repeat_flags
from potentia.errors import InputError
from potentia.evidence import read
from potentia.papers import ProxyOptions, find_proxies, find_stability


def call(capsys, *arguments: str) -> str:
    command = typer.main.get_command(app)
    command(args=repeat_flags(command, list(arguments)), standalone_mode=False)
    return capsys.readouterr().out


def table(path, rows):
    lines = ["protocol,model,benchmark,score,stderr,higher_is_better"]
    path.write_text("\n".join([*lines, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


@pytest.fixture
def training(tmp_path):
    return table(
        tmp_path / "run.csv",
        [
            (protocol, f"run@{step}", task, 0.3 + slope * i, 0.005, "true")
            for i, step in enumerate((1000, 2000, 4000, 8000))
            for protocol, task, slope in (
                ("direct", "arc_easy", -0.01),
                ("direct", "arc_easy:blank_ppl", 0.05),
                ("train_before_test", "arc_easy", 0.06),
            )
        ],
    )


def test_checkpoints(capsys, training):
    findings = json.loads(
        call(capsys, "analyze", "checkpoints", training, "--baseline", "direct", "--json")
    )["stability"]
    assert {c["method"]: c["tau"]["value"] for c in findings["curves"]} == {
        "direct": -1.0,
        "blank_ppl": 1.0,
        "train_before_test": 1.0,
    }
    assert {c["method"]: c["gap"] for c in findings["curves"]} == {
        "direct": None,
        "blank_ppl": 1000.0,
        "train_before_test": 1000.0,
    }
    assert len(findings["improvements"]) == 2
    assert "Stability" in call(capsys, "analyze", "checkpoints", training, "--protocols", "direct")


def test_the_answer_comes_first_and_alone_with_quiet(capsys, training):
    """What `run` and the report said of the last checkpoint was nowhere; --quiet printed all tables."""
    lines = call(capsys, "analyze", "checkpoints", training).splitlines()
    assert lines[0].startswith("run improved over 4 checkpoints")
    assert lines[1].startswith("run: after fine-tuning it is still improving")
    printed = "\n".join(lines)
    assert "Stability" in printed
    quiet = call(capsys, "analyze", "checkpoints", training, "--quiet").splitlines()
    assert quiet[:2] == lines[:2]
    assert not set(quiet) - set(lines)
    assert "Stability" not in "\n".join(quiet)
    assert "±" in quiet[0]
    quiet = call(capsys, "analyze", "rankings", training, "--quiet")
    assert quiet.startswith("run improved over 4 checkpoints")
    assert len(quiet.splitlines()) == 2


def test_gaps_are_whole_steps_and_tau_has_one_name(capsys, training):
    """ "gap (steps) 390.000" stood beside "tau" and "τ" in one answer."""
    printed = call(capsys, "analyze", "checkpoints", training)
    assert "1000.000" not in printed
    assert "1,000" in printed
    assert not re.search(r"\btau\b", printed)


def test_checkpoints_in_a_table_of_steps(capsys, training, tmp_path):
    steps = tmp_path / "steps.csv"
    steps.write_text(
        "model,series,tokens\n"
        + "".join(f"run@{s},r,{9000 - s}\n" for s in (1000, 2000, 4000, 8000))
    )
    findings = json.loads(
        call(capsys, "analyze", "checkpoints", training, "--steps", str(steps), "--json")
    )["stability"]
    assert findings["unit"] == "tokens"
    assert {c["method"]: c["tau"]["value"] for c in findings["curves"]}["blank_ppl"] == -1.0


def test_unknown_series_and_protocols_are_named(capsys, tmp_path, training):
    plain = table(tmp_path / "plain.csv", [("direct", m, "t", 0.5, 0.1, "true") for m in "abc"])
    with pytest.raises(InputError, match="no checkpoints are known"):
        call(capsys, "analyze", "checkpoints", plain)
    with pytest.raises(InputError, match="no protocol 'few_shot'"):
        call(capsys, "analyze", "checkpoints", training, "--protocols", "few_shot")
    with pytest.raises(InputError, match="no scores of boolq"):
        call(capsys, "analyze", "checkpoints", training, "--tasks", "boolq")


def test_consistency_and_ablation(capsys, tmp_path):
    rows = []
    for i in range(6):
        for task, base, chat in (("gsm8k:instruct", (i * 3) % 6, i), ("gsm8k:iclip", i, i)):
            rows.append(("direct", f"b{i}", task, 0.1 * base, 0.01, "true"))
            rows.append(("direct", f"c{i}", task, 0.1 * chat + 0.2, 0.01, "true"))
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("base,instruct\n" + "".join(f"b{i},c{i}\n" for i in range(6)))
    scores = table(tmp_path / "scores.csv", rows)
    out = json.loads(
        call(
            capsys,
            "analyze",
            "checkpoints",
            scores,
            "--pairs",
            str(pairs),
            "--baseline",
            "instruct",
            "--json",
        )
    )
    assert {k["method"]: k["reference"] for k in out["consistency"]["links"]} == {
        "instruct": "instruct",
        "iclip": "instruct",
    }
    assert {k["method"]: k["tau"]["value"] for k in out["consistency"]["links"]}["iclip"] == 1.0
    assert out["ablation"]["models"] == [f"b{i}" for i in range(6)]
    assert set(json.loads(call(capsys, "analyze", "checkpoints", scores, "--json"))) == {"ablation"}
    pairs.write_text("base,instruct\n")
    with pytest.raises(InputError, match="0 pairs of base and instruct"):
        call(capsys, "analyze", "checkpoints", scores, "--pairs", str(pairs))


@pytest.fixture
def world(tmp_path):
    rng = np.random.default_rng(0)
    ability = rng.normal(size=(20, 2))
    rows = []
    for i in range(20):
        for j, task in enumerate(("goal", "near1", "near2", "far1", "far2", "far3")):
            side = 1 if j < 3 else 0
            rows.append(
                (
                    "direct",
                    f"m{i}",
                    task,
                    round(ability[i, side] + rng.normal(scale=0.2), 6),
                    0.1,
                    "true",
                )
            )
        rows.append(("direct", f"m{i}", "wikitext", round(3 - ability[i, 0], 6), 0.1, "false"))
    return table(tmp_path / "world.csv", rows)


def proxies(scores, truth=None, facts=None, **settings):
    """Return the findings about proxies as JSON would hold them."""
    result = find_proxies(
        read(scores, facts=facts), ProxyOptions(**settings), None if truth is None else read(truth)
    )
    return {
        name: json.loads(json.dumps(f.to_dict())) for name, f in result.findings_by_name().items()
    }


def test_proxy(capsys, world):
    content = json.loads(call(capsys, "papers", "proxy", world, "--target", "goal", "--json"))
    assert content == proxies(world, target="goal")
    out = proxies(world, target="goal", top=2)
    kept_tasks = {p["task"] for p in out["proxies"]["proxies"] if not p["dropped"]}
    assert kept_tasks == {"near1", "near2"}
    assert out["validation"]["trials"][0]["gain"]["value"] > 0
    assert {i["metric"] for i in out["sampling"]["indices"]} == {"pearson", "spearman", "kendall"}


def test_proxy_leaves_out_algorithm_1_where_the_top_is_all_there_is(world):
    out = proxies(world, target="goal", top=5)
    assert "sampling" not in out, "five candidates are the top five of every sample"


def test_proxy_with_groups_and_early_models(world):
    settings = {
        "target": "goal",
        "candidates": ("near1", "near2", "far1"),
        "correlation": "auto",
        "top": 2,
        "normalise": "feature",
        "data_group": ("m0", "m1", "m2", "m3"),
        "seed_group": ("m4", "m5", "m6"),
        "early": ("m7", "m8"),
        "truth": world,
    }
    assert "forecast" not in proxies(world, **settings, min_robustness=1e9)
    out = proxies(world, **settings, min_robustness=0)
    assert [t["task"] for t in out["robustness"]["tasks"]] == ["near1", "near2", "far1"]
    assert out["forecast"]["models"] == ["m7", "m8"]
    assert out["forecast"]["pairs"] == 1
    assert out["proxies"]["models"] == 11


def test_proxy_joins_base_and_chat_models_by_a_file_and_keeps_families_together(tmp_path):
    rng = np.random.default_rng(0)
    rows, pairs, facts = [], {}, ["model,family"]
    for i in range(12):
        ability = rng.normal()
        pairs[f"b{i}"] = f"c{i}"
        facts += [f"b{i},f{i % 4}", f"c{i},f{i % 4}"]
        rows += [
            ("direct", f"b{i}", t, sign * ability, 0.01, "true")
            for t, sign in (("near", 1), ("far", -1))
        ]
        rows.append(("direct", f"b{i}", "other", rng.normal(), 0.01, "true"))
        rows.append(("direct", f"c{i}", "tools", ability, 0.01, "true"))
    (tmp_path / "facts.csv").write_text("\n".join(facts))
    scores = table(tmp_path / "scores.csv", rows)
    usual = {"target": "tools", "normalise": "feature", "on": "base"}
    with pytest.raises(InputError, match="no pairs of base and instruct"):
        proxies(scores, **usual)
    usual |= {"pairs": pairs, "facts": tmp_path / "facts.csv", "families": True}
    made = proxies(scores, **usual, top=1, sampled=(5,), rounds=(4,))
    assert made["proxies"]["proxies"][0]["task"] == "near"
    assert made["proxies"]["proxies"][0]["relevance"] == pytest.approx(1.0)
    assert [(i["n"], i["k"]) for i in made["sampling"]["indices"]] == [(5, 4)] * 3
    assert made["validation"]["unit"] == "pairs"
    one = [line.replace("f1", "f0").replace("f2", "f0").replace("f3", "f0") for line in facts]
    (tmp_path / "facts.csv").write_text("\n".join(one))
    with pytest.raises(InputError, match="a family holds 12 of the 12 pairs"):
        proxies(scores, **usual)


def test_proxy_refuses_what_it_does_not_know(capsys, world):
    with pytest.raises(InputError, match="no task 'gsm8k'"):
        call(capsys, "papers", "proxy", world, "--target", "gsm8k")
    with pytest.raises(InputError, match="no correlation 'cosine'"):
        proxies(world, target="goal", correlation="cosine")
    with pytest.raises(InputError, match="no pairs"):
        proxies(world, target="goal", pairs=True)


@pytest.fixture
def store(tmp_path):
    """A store whose study names a series of checkpoints, and instruct versions that no fact knows."""
    from potentia.store import CellRecord, Store
    from potentia.study import make_study
    from potentia.values.metric import Metric
    from potentia.values.scores import Score

    series = {
        "name": "run",
        "path": "runs",
        "checkpoints": [{"step": s, "path": f"runs/{s}", "tokens": 1e6 * s} for s in (1, 2, 4)],
    }
    models = [
        series,
        *({"name": f"b{i}"} for i in range(3)),
        *({"name": f"c{i}", "base_model": f"b{i}"} for i in range(3)),
    ]
    study = make_study(
        {"name": "demo", "models": models, "tasks": ["arc_easy"], "protocols": ["direct"]}
    )
    path = tmp_path / "potentia.db"
    with Store.open(path) as opened:
        record = opened.studies.open("demo", "key", study.model_dump(mode="json"))
        values = {row.name: 0.3 + 0.1 * position for position, row in enumerate(study.rows())}
        opened.cells.commit_many(
            [
                CellRecord(
                    name,
                    record.key,
                    name,
                    "arc_easy",
                    "direct",
                    {"acc": Score(value, 0.01, 100, Metric.of("acc"))},
                    "acc",
                )
                for name, value in values.items()
            ]
        )
    return str(path)


def test_a_stores_studies_say_what_is_a_checkpoint_and_what_is_a_pair(capsys, store):
    stability = find_stability(read(store), unit="tokens")
    assert stability.unit == "tokens"
    assert stability.curves[0].series == "run"
    assert list(stability.curves[0].steps) == [1e6, 2e6, 4e6]
    out = json.loads(call(capsys, "analyze", "checkpoints", store, "--json"))
    assert out["consistency"]["links"][0]["pairs"] == [["b0", "c0"], ["b1", "c1"], ["b2", "c2"]]
    assert "ablation" not in out


def test_one_run_of_three_checkpoints_is_described(capsys, tmp_path):
    rows = [
        ("direct", f"run@{step}", "arc_easy", score, 0.1, "true")
        for step, score in ((100, 0.25), (200, 0.375), (300, 0.375))
    ]
    printed = call(capsys, "analyze", "checkpoints", table(tmp_path / "run.csv", rows))
    assert "Stability" in printed
    assert "no measurable improvement over 3 checkpoints" in printed
