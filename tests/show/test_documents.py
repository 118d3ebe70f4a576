"""The report's sections for base models, proxies and the test task: where the evidence is, as the terminal says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from potentia.cli.app import app, repeat_flags
from potentia.errors import InputError
from potentia.evidence import read
from potentia.papers import ProxyOptions, TestTaskOptions, find_ablation
from potentia.papers.task_training.options import TestTaskCommandOptions
from potentia.show import ReportOptions, build_sections, make_report, save_report

TASKS = ("arc_easy", "boolq", "mmlu", "piqa", "sciq", "gsm8k")


def table(path: Path, rows: Iterable[tuple[Any, ...]]) -> Path:
    lines = ["protocol,model,benchmark,score,stderr,higher_is_better"]
    path.write_text("\n".join([*lines, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, repeat_flags(get_command(app), [*arguments, "--json"]))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


@pytest.fixture
def base_models(tmp_path: Path) -> tuple[Path, Path]:
    """Eight base models of four sizes with instruct versions, a run of checkpoints, one task in two forms."""
    rng = np.random.default_rng(0)
    rows, facts = [], ["model,family,kind,base_model,params_b,tokens_b"]
    for k in range(8):
        for kind, base in (("base", ""), ("instruct", f"b{k}")):
            model = f"{kind[0]}{k}"
            facts.append(f"{model},f{k % 4},{kind},{base},{k + 1},300")
            for task in ("gsm8k:instruct", "gsm8k:iclip", *TASKS[:5]):
                value = 0.2 + 0.05 * k + 0.1 * (kind == "instruct") + rng.normal(scale=0.02)
                rows.append(("direct", model, task, value, 0.01, "true"))
    for step in (1000, 2000, 4000, 8000):
        for task in ("gsm8k:iclip", "gsm8k:instruct"):
            rows.append(("direct", f"run@{step}", task, 0.1 + step / 1e5, 0.005, "true"))
    (tmp_path / "facts.csv").write_text("\n".join(facts))
    return table(tmp_path / "scores.csv", rows), tmp_path / "facts.csv"


def test_sections_of_base_models_say_what_the_terminal_says(
    base_models: tuple[Path, Path], tmp_path: Path
) -> None:
    scores, facts = map(str, base_models)
    data = make_report(read(scores, facts=facts), options=ReportOptions(baseline="instruct"))
    sections = {id: html for id, _, html in build_sections(data)}
    assert {"stability", "consistency", "ablation"} <= set(sections)
    assert "proxies" not in sections
    assert "1 if every later checkpoint scores higher" in sections["stability"]
    named = {
        name: json.loads(json.dumps(finding.to_dict()))
        for name, finding in data.findings_by_name().items()
    }
    result = run("analyze", "checkpoints", scores, "--facts", facts, "--baseline", "instruct")
    assert result.pop("training")
    assert result.pop("signal")  # of every run, with its noise
    assert set(result) == {"stability", "consistency", "ablation"}
    assert {name: named[name] for name in result} == result
    out = run("report", scores, "--facts", facts, "-o", str(tmp_path / "r.html"))
    assert set(result) <= set(out["findings"])
    unknown = make_report(read(scores, facts=facts), options=ReportOptions(baseline="nothing"))
    with pytest.raises(InputError, match="no method 'nothing'"):
        build_sections(unknown)


def test_forms_without_pairs_are_ranked_too(base_models: tuple[Path, Path]) -> None:
    """Table 4 of BOSE has base models alone."""
    scores = str(base_models[0])
    data = make_report(read(scores))
    assert "consistency" not in data.registered
    (ablation,) = data.registered["ablation"].shown
    assert "ablation" in {id for id, _, _ in build_sections(data)}
    assert run("analyze", "checkpoints", scores)["ablation"] == json.loads(
        json.dumps(ablation.to_dict())
    )
    bare = find_ablation(read(scores), ["b0", "b1", "b2"]).to_dict()
    assert bare["models"] == ["b0", "b1", "b2"]
    assert bare["methods"] == ["instruct", "iclip"]  # the other tasks have one form only


def test_a_plain_report_has_none_of_these_sections(tmp_path: Path) -> None:
    rows = [
        ("direct", f"m{k}", task, 0.3 + 0.02 * k, 0.01, "true") for k in range(5) for task in TASKS
    ]
    ids = {id for id, _, _ in build_sections(make_report(read(table(tmp_path / "s.csv", rows))))}
    assert not {"stability", "consistency", "ablation", "proxies", "test-task"} & ids


def test_proxies_of_a_target(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [
        ("direct", f"m{k}", task, 0.3 + 0.02 * k + rng.normal(scale=0.02), 0.01, "true")
        for k in range(12)
        for task in TASKS
    ]
    scores = str(table(tmp_path / "s.csv", rows))
    data = make_report(read(scores), options=ReportOptions(proxies=ProxyOptions(target="gsm8k")))
    result = run("papers", "proxy", scores, "--target", "gsm8k")
    assert set(result) <= set(data.findings_by_name())
    page = save_report(data, tmp_path / "r.html").read_text()
    assert 'id="proxies"' in page
    assert "models that were not used to choose them" in page
    unknown = ReportOptions(proxies=ProxyOptions(target="maths"))
    with pytest.raises(InputError, match="no task 'maths'"):
        build_sections(make_report(read(scores), options=unknown))


@pytest.fixture
def adjusted(tmp_path: Path) -> tuple[Path, Path]:
    """Twenty-four models on two tasks, before, on the way and after adjustment; half of them know Chinese."""
    rng = np.random.default_rng(0)
    x = rng.uniform(20, 24, 24)
    late = np.arange(24) % 2 == 1
    rows = []
    for protocol, c in {
        "direct": 22.0,
        "adjust@10": 21.5,
        "adjust@100": 21.0,
        "adjust": 20.5,
    }.items():
        for task in ("mmlu", "arc_easy"):
            values = 0.25 + 0.1 * np.maximum(0, x - c) + 0.1 * late * (protocol == "direct")
            values += rng.normal(scale=0.005, size=24)
            rows += [
                (protocol, f"m{i}", task, value, 0.01, "true") for i, value in enumerate(values)
            ]
    facts = ["model,family,compute,trained,language,exposure"]
    for i in range(24):
        date, tongue = ("2024-01" if late[i] else "2022-01"), ("en+cn" if i % 3 else "en")
        facts.append(f"m{i},f{i % 6},{10 ** x[i]},{date},{tongue},{'mmlu' if late[i] else ''}")
    (tmp_path / "facts.csv").write_text("\n".join(facts))
    return table(tmp_path / "scores.csv", rows), tmp_path / "facts.csv"


@pytest.mark.parametrize(
    ("asked", "group"),
    [
        ((), "trained 2023-11 or later"),
        (("--group", "2023-06"), "trained 2023-06 or later"),
        (("--group", "language=en+cn"), "of language en+cn"),
        (("--group", "exposed"), "trained on the form of mmlu"),
    ],
)
def test_the_test_task_section_is_divided_as_asked(
    adjusted: tuple[Path, Path], tmp_path: Path, asked: tuple[str, ...], group: str
) -> None:
    scores, facts = map(str, adjusted)
    chosen = TestTaskCommandOptions(group=asked[1] if asked else None).analysis_options()
    data = make_report(read(scores, facts=facts), options=ReportOptions(test_task=chosen))
    result = run("papers", "test-task", scores, "--facts", facts, *asked)
    assert result["mmlu-adjustment"]["before"]["split"]["label"] == group
    assert set(result) <= set(data.findings_by_name())
    page = save_report(data, tmp_path / "r.html").read_text()
    assert f"how far models {group} move the frontier" in page
    assert (
        "emergence by amount of test-task training" in page
    )  # scores on the way (adjust@N) are shown


def test_a_division_that_divides_nothing_leaves_what_needs_none(
    adjusted: tuple[Path, Path], tmp_path: Path
) -> None:
    scores, facts = map(str, adjusted)
    test_task_options = TestTaskOptions(since="2030-01")
    data = make_report(
        read(scores, facts=facts), options=ReportOptions(test_task=test_task_options)
    )
    result = data.findings_by_name()
    assert {"mmlu-gain", "mmlu-ranks", "mmlu-families", "mmlu-emergence"} <= set(result)
    assert "mmlu-adjustment" not in result
    assert (
        "all models are on one side of the split"
        in save_report(data, tmp_path / "r.html").read_text()
    )


def test_a_section_does_not_explain_what_it_does_not_show(tmp_path: Path) -> None:
    """Two sizes of a family, and the page explained under "Stability" the checkpoints that nobody has."""
    rows = []
    facts = ["model,family,kind,params_b"]
    for family in range(4):
        for size in (1, 7):
            facts.append(f"m{family}-{size},f{family},base,{size}")
            for number, task in enumerate(TASKS[:5]):
                value = 0.2 + 0.1 * family + 0.02 * size + 0.01 * number
                rows.append(("direct", f"m{family}-{size}", task, value, 0.01, "true"))
    (tmp_path / "facts.csv").write_text("\n".join(facts))
    scores = table(tmp_path / "scores.csv", rows)
    report = make_report(read(str(scores), facts=str(tmp_path / "facts.csv")))
    sections = {id: html for id, _, html in build_sections(report)}
    assert "stability" not in sections
    assert "in the same order as models of" in sections["small-models"]
    assert "Decisions by small models" in sections["small-models"]


def test_without_groups_single_tasks_are_left_to_the_command() -> None:
    """24 charts and 38 tables of single tasks stood under "Test task" of a study that compares no groups."""
    examples = Path(__file__).resolve().parents[2] / "examples"
    report = make_report(read(str(examples / "real-models.csv")))
    content = report.registered["test-task"]
    (shown,) = content.shown
    assert [chart.name for chart in shown.charts()] == ["copies", "copies-by-model"]
    assert len(shown.tables()) == 2
    assert {"arc_easy-gain", "arc_easy-ranks"} <= set(content.named)
