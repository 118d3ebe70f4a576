"""The report in one file: whole, self-contained, escaped, and with the command line's numbers."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from made_store import DOCUMENT, EVIL, MODELS, TASKS, make_store
from potentia.analysis.completion import find_outlook
from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.evidence import read as open_evidence
from potentia.formats import write_scores
from potentia.show import (
    ReportData,
    ReportOptions,
    build_sections,
    make_report,
    report_page,
    save_report,
    write_report,
)
from potentia.show.page import embed
from potentia.store import Store
from potentia.values.scores import ScoreMatrix
from speed import loop_seconds

POTENTIA = str(Path(sys.executable).with_name("potentia"))


class Reader(HTMLParser):
    """Collects what a browser would see: tags, ids, scripts by type, and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._open: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = dict(attrs) if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.scripts.append((self._open, data))
            self._open = None

    def json(self, name: str) -> object:
        return next(self.all(name))

    def all(self, name: str) -> Iterator[object]:
        """Every value under this id or class, unpacked where it is packed."""
        for attributes, text in self.scripts:
            if name in (attributes.get("id"), attributes.get("class")):
                yield json.loads(
                    gzip.decompress(base64.b64decode(text)) if "data-packed" in attributes else text
                )


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


@pytest.fixture(scope="module")
def page(data: ReportData) -> str:
    return report_page(data)


def test_a_report_of_one_section_computes_no_other(store: Path):
    """Rankings, benchmarks, predictions and registered sections were computed for every report at once."""
    report = make_report(open_evidence(store), options=ReportOptions(only=("cells", "how")))
    assert [section_id for section_id, _, _ in build_sections(report)] == ["cells", "how"]
    assert "benchmarks" not in vars(report)
    answer = make_report(open_evidence(store), options=ReportOptions(only=("answer",)))
    assert "most likely" in build_sections(answer)[0][2]
    for finding in ("benchmarks", "items"):
        assert finding not in vars(answer)
        assert getattr(answer, finding)  # there is something to compute


def test_every_section_is_there(page: str):
    sections = [a["id"] for tag, a in read(page).tags if tag == "section"]
    assert sections == [
        "answer",
        "scores",
        "predicted",
        "ranks",
        "agreement",
        "evidence",
        "structure",
        "benchmarks",
        "answer-bits",
        "cells",
        "how",
    ]


def test_nothing_is_fetched_and_only_our_scripts_may_run(page: str):
    reader = read(page)
    for tag, attributes in reader.tags:
        for name in ("src", "href", "action", "srcset"):
            value = attributes.get(name) or ""
            assert value == "" or value.startswith(("#", "data:,")), (tag, name, value)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    assert "@import" not in page.partition("<main")[0]
    assert "url(http" not in page.partition("<main")[0]
    policy = next(a["content"] for tag, a in reader.tags if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert "default-src 'none'" in policy
    allowed = set(re.findall(r"'(sha256-[^']+)'", policy))
    plain = [text for attributes, text in reader.scripts if "type" not in attributes]
    assert len(plain) == 1
    assert _sha(plain[0]) in allowed
    assert len(allowed) == 1


def _sha(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_names_and_documents_stay_text(page: str):
    assert EVIL not in page
    assert "</script><script>alert(2)" not in page
    assert "<b>badly</b>" not in page
    assert not any(tag == "img" for tag, _ in read(page).tags)
    cells = [cell for part in read(page).all("cells-data") for cell in part]
    assert any(DOCUMENT in item["prompt"] for cell in cells for item in cell["items"])


def test_embedded_data_cannot_end_its_element():
    text = str(embed({"a": "</script><!--<script>", "b": [float("nan"), "\u2028&"]}))
    assert "<" not in text
    assert "\u2028" not in text
    assert json.loads(text) == {"a": "</script><!--<script>", "b": [None, "\u2028&"]}


def matrices(page: str, name: str) -> dict[str, dict[tuple[str, str], dict[str, str]]]:
    """The score tables of a matrix as they stand in the HTML: protocol → (model, task) → attributes of the cell."""
    text = page.split(f'id="{name}"', 1)[1].split("</section>", 1)[0]
    result: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for protocol, table in re.findall(
        r'<table class="scores" data-protocol="([^"]+)">(.*?)</table>', text, re.S
    ):
        tasks = [
            unescape(t)
            for t in re.findall(r"<th scope=col class=task[^>]*><span>([^<]*)</span>", table)
        ]
        cells = result.setdefault(protocol, {})
        for model, row in re.findall(r'<tr data-name="([^"]*)"[^>]*>(.*?)</tr>', table, re.S):
            places = re.findall(r"<td class=[\"\']score[^>]*>.*?</td>", row, re.S)
            assert len(places) == len(tasks)
            for task, cell in zip(tasks, places, strict=True):
                known = dict(re.findall(r'data-(\w+)="([^"]*)"', cell))
                cells.setdefault((unescape(model), task), known | {"html": cell})
    return result


def test_the_score_table_needs_no_script(page: str, data: ReportData):
    shown = matrices(page, "matrix")
    assert list(shown) == ["train_before_test", "direct"]  # the one that ranks is shown first
    for protocol, matrix in data.evidence.scores.items():
        for model in MODELS:
            for task in TASKS:
                stored = (
                    matrix.values[matrix.models.index(model), matrix.tasks.index(task)]
                    if model in matrix.models
                    else np.nan
                )
                cell = shown[protocol][model, task]
                if np.isfinite(stored):
                    assert float(cell["v"]) == pytest.approx(stored, abs=1e-5)
                    assert f"{stored:.3f}" in cell["html"]
                else:
                    assert "v" not in cell
    assert "failed: it broke: &lt;b&gt;badly&lt;/b&gt;" in shown["direct"][EVIL, "piqa"]["html"]


def test_every_table_and_chart_needs_no_script(page: str, data: ReportData):
    still = unescape(re.sub(r"<script.*?</script>", "", page, flags=re.S))
    agreement = data.rankings.agreement["direct"]
    for table in agreement.tables():
        assert f"<h3>{table.title}</h3>" in still
    charts = [c for c in agreement.charts() if c.has_content]
    assert charts
    for chart in charts:
        figure = still.split(f'id="fig-{chart.name}"', 1)[1].split("</figure>", 1)[0]
        assert figure.count("<rect") >= len(chart.rows)


def test_the_rest_is_folded(page: str):
    reader = read(page)
    sections = [a for tag, a in reader.tags if tag == "details" and a.get("class") == "section"]
    assert len(sections) == 10
    assert not any("open" in a for a in sections)


def test_a_report_is_moved_into_its_place(
    data: ReportData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "r.html"
    out.write_text("the old one")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(InputError, match="cannot be written"):
        save_report(data, out)
    assert out.read_text() == "the old one"
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


def test_cells_hold_as_many_wrong_as_right_items(data: ReportData):
    for sample in data.items.values():
        wrong = [item for item in sample.outcomes if item.value <= 0.5]
        assert len(sample.outcomes) == 40
        assert sample.total == 60
        assert len(wrong) == min(20, sample.total - sample.right) or sample.right < 20


def test_items_can_be_left_out(store: Path, tmp_path: Path):
    assert make_report(open_evidence(store), items=0).items == {}
    assert len(next(iter(make_report(open_evidence(store), items=6).items.values())).outcomes) == 6


def test_the_numbers_are_the_command_lines(store: Path, data: ReportData):
    printed = subprocess.run(
        [POTENTIA, "analyze", "rankings", str(store), "--json"], capture_output=True, text=True
    )
    assert printed.returncode == 0, printed.stderr
    result = json.loads(printed.stdout)
    measured = {
        name: finding
        for name, finding in data.findings_by_name().items()
        if name not in ("completion", "answer_bits")
    }
    assert list(result) == list(measured)
    for name, finding in measured.items():
        assert json.loads(json.dumps(finding.to_dict())) == result[name], name


def test_a_plain_table_makes_a_report_too(tmp_path: Path):
    stream = np.random.default_rng(1)
    matrix = ScoreMatrix.build([f"m{k}" for k in range(6)], ["a", "b", "c"], stream.random((6, 3)))
    write_scores({"direct": matrix}, tmp_path / "scores.csv")
    out = write_report(tmp_path / "scores.csv", tmp_path / "deep" / "report.html")
    sections = [a["id"] for tag, a in read(out.read_text()).tags if tag == "section"]
    assert sections == ["answer", "scores", "ranks", "agreement", "structure", "benchmarks", "how"]
    assert "no standard errors" in out.read_text()


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 1), (3, 1), (2, 2)])
def test_few_scores_make_a_modest_report(tmp_path: Path, shape: tuple[int, int]):
    values = np.random.default_rng(0).random(shape)
    matrix = ScoreMatrix.build(
        [f"m{k}" for k in range(shape[0])],
        [f"t{k}" for k in range(shape[1])],
        values,
        stderr=np.full(shape, 0.01),
    )
    write_scores({"direct": matrix}, tmp_path / "scores.csv")
    text = write_report(tmp_path / "scores.csv", tmp_path / "r.html").read_text()
    assert ("has scores to rank" in text) == (shape[0] == 1)
    assert "nothing to rank" not in text
    drawings = re.findall(r'<svg class="chart".*?</svg>', text, flags=re.S)
    assert all(svg.count("<title>") > 1 for svg in drawings), "a picture of one number"
    assert not re.search(r"\bnan\b", re.sub(r"<script.*?</script>", "", text, flags=re.S))


@pytest.mark.parametrize("seed", range(8))
def test_scores_with_gaps_never_show_nan(tmp_path: Path, seed: int):
    """As a board sees a study that runs: few cells, some without errors, some models alike."""
    stream = np.random.default_rng(seed)
    shape = tuple(stream.integers(2, 5, size=2))
    scores = {}
    for protocol in ("direct", "train_before_test"):
        values = stream.random(shape).round(int(stream.integers(0, 3)))
        values[stream.random(shape) < 0.5] = np.nan
        values[0, 0] = 0.5
        errors = np.where(np.isfinite(values), 0.02 if seed % 2 else np.nan, np.nan)
        names = [f"m{k}" for k in range(shape[0])], [f"t{k}" for k in range(shape[1])]
        scores[protocol] = ScoreMatrix.build(*names, values, stderr=errors)
    write_scores(scores, tmp_path / "scores.csv")
    page = report_page(make_report(open_evidence(tmp_path / "scores.csv")))
    assert not re.search(r"\bnan\b", re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S))


def test_a_store_with_failures_alone_says_so(tmp_path: Path):
    with Store.open(tmp_path / "s.db") as store:
        store.studies.open("failed", "a" * 32, {})
        store.failures.record("a" * 32, "m", "t", "direct", "no such file")
    text = write_report(tmp_path / "s.db", tmp_path / "r.html").read_text()
    assert "No ranking yet" in text
    assert "no such file" in text


def test_an_empty_store_and_an_unknown_study_are_told(store: Path, tmp_path: Path):
    Store.open(tmp_path / "empty.db").close()
    with pytest.raises(InputError, match="no scores yet"):
        write_report(tmp_path / "empty.db", tmp_path / "r.html")
    with pytest.raises(InputError, match="no study 'other'") as error:
        write_report(store, tmp_path / "r.html", study="other")
    assert error.value.hint == "there are: made"
    with pytest.raises(InputError, match="folder"):
        write_report(store, tmp_path)


def test_items_left_behind_leave_the_scores(tmp_path: Path):
    path = make_store(tmp_path / "moved.db")
    (tmp_path / "moved.db.items").rename(tmp_path / "elsewhere")
    data = make_report(open_evidence(path))
    assert data.items == {}
    assert "train_before_test" in data.rankings.aggregate


def test_the_command_writes_report_and_figures(store: Path, tmp_path: Path):
    done = subprocess.run(
        [
            POTENTIA,
            "report",
            str(store),
            "-o",
            "r.html",
            "--figures",
            "f.svg",
            "--json",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["bytes"] == (tmp_path / "r.html").stat().st_size
    assert len(printed["figures"]) == len(list((tmp_path / "f").glob("*.svg"))) > 5
    bad = subprocess.run(
        [POTENTIA, "report", str(store), "--figures", "f.gif"], capture_output=True, text=True
    )
    assert bad.returncode == 2
    assert "pdf, png, svg" in bad.stderr


@pytest.mark.shared
def test_the_published_scores_are_quick_and_small(shared_data: Path, tmp_path: Path):
    began = time.process_time()
    out = write_report(
        shared_data / "published" / "train_before_test_scores.csv", tmp_path / "r.html"
    )
    assert time.process_time() - began < 600 * loop_seconds()
    assert out.stat().st_size < 8e6
    text = out.read_text()
    assert "Qwen/Qwen2.5-14B" in text
    assert re.search(
        r"0\.52\b.{0,60}0\.76", unescape(text.split('id="answer"')[1].split("</section>")[0]), re.S
    )


@pytest.mark.shared
def test_training_on_the_test_task_has_its_section(shared_data: Path, tmp_path: Path):
    from dataclasses import replace

    from potentia.formats import StagedScores

    staged = StagedScores(shared_data / "published" / "test_task_training_scores.csv")
    before, after = (
        staged.matrix(stage, {"gsm8k": "exact_match|flexible-extract"})
        for stage in ("base", "tuned_math_3ep")
    )
    some = [model for model in before.models if model in after.models][::2]
    before, after = before.select(models=some), after.select(models=some)
    scores = {
        "direct": replace(before, protocol="direct"),
        "adjust": replace(after, protocol="adjust"),
    }
    write_scores(scores, tmp_path / "scores.csv")
    data = make_report(open_evidence(tmp_path / "scores.csv"))
    assert data.ranking_protocol == "adjust"
    result = data.findings_by_name()["gsm8k-adjustment"]
    assert result.before.effect.value > 0
    page = report_page(data)
    assert "Training on the test task" in page
    assert "gsm8k before adjustment: θ = " in page


# --- predicted cells ---


def test_predictions_are_marked_and_in_no_table_of_scores(page: str, data: ReportData):
    """The made store has one tuned cell to come: predicted in a section of its own, a gap in the matrix of scores."""
    done = data.completion
    assert done is not None
    assert int((~done.measured).sum()) == 1
    missing_cell = tuple(np.argwhere(~done.measured)[0])
    assert (done.models[missing_cell[0]], done.tasks[missing_cell[1]]) == (EVIL, "piqa")
    completed, scores = (
        matrices(page, "completed")["train_before_test"],
        matrices(page, "matrix")["train_before_test"],
    )
    predicted = {
        cell_name: cell for cell_name, cell in completed.items() if "predicted" in cell["html"]
    }
    assert list(predicted) == [(EVIL, "piqa")]
    cell = predicted[EVIL, "piqa"]
    assert float(cell["low"]) < float(cell["v"]) < float(cell["high"])
    assert "e" not in cell
    assert "v" not in scores[EVIL, "piqa"]
    assert not any("predicted" in cell["html"] for cell in scores.values())
    frame = data.evidence.to_frame()
    assert not ((frame.model == EVIL) & (frame.task == "piqa")).any()


def test_the_outlook_says_the_same_in_report_and_python(page: str, store: Path, data: ReportData):
    done = find_outlook(open_evidence(store))
    assert done is not None
    assert data.findings_by_name()["completion"].to_dict() == done.to_dict()
    answer = page.split('id="outlook"', 1)[1].split("</section>", 1)[0]
    assert "predicted" in answer
    assert f"best with probability {done.p_best.max():.2f}, predicted" in answer


def test_a_finished_study_has_nothing_to_predict(tmp_path: Path):
    store = make_store(tmp_path / "whole.db", models=("org/a", "org/b", "org/c"))
    report = make_report(open_evidence(store))
    assert report.completion is None
    assert find_outlook(open_evidence(store)) is None
    assert 'id="predicted"' not in report_page(report)


def test_a_page_of_very_many_models_shows_the_best_and_says_where_the_rest_is(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("potentia.show.matrix.MAX_CELLS", 120)
    monkeypatch.setattr("potentia.show.model_charts.MAX_MODELS_RANKED", 10)
    stream = np.random.default_rng(0)
    models, tasks = [f"m{k:03d}" for k in range(40)], [f"t{k}" for k in range(5)]
    ability = np.sort(stream.normal(size=40))[:, None]
    scores = {}
    for protocol in ("direct", "train_before_test"):
        values = 1 / (1 + np.exp(-ability - stream.normal(scale=0.3, size=(40, 5))))
        scores[protocol] = ScoreMatrix.build(
            models, tasks, values, stderr=values * 0 + 0.01, protocol=protocol
        )
    page = report_page(make_report(Evidence.of(scores)))
    table = matrices(page, "matrix")["train_before_test"]
    assert len({model for model, _ in table}) == 24
    assert (models[-1], "t0") in table
    assert (models[0], "t0") not in table
    assert "The first 24 of 40 models, by rank" in page
    assert "The first 10 of 40 models." in page


def test_a_page_of_three_models_without_errors_claims_no_more_than_it_knows(tmp_path: Path):
    """No interval in words where there is none, no agreement in view, and how the table was read is in view."""
    table = tmp_path / "wide.csv"
    table.write_text(
        "Model,arc_easy,boolq,perplexity\na,45.2,60.1,12.3\nb,50.2,62.1,10.3\nc,55.1,64.2,9.1\n"
    )
    sections = {id: html for id, _, html in build_sections(make_report(open_evidence(table)))}
    assert "95 % interval" not in sections["answer"]
    assert "agreement between tasks" not in sections["answer"]
    for name in ("agreement", "structure", "perplexity"):
        before = sections[name].partition('<details class="more">')[0]
        assert "<figure" not in before, name
        assert "<figure" in sections[name], name
    assert sections["reading"].index("lower") < sections["reading"].index("</table>")
    assert '<details class="tables">' not in sections["reading"]
    assert "<code>--columns</code>" in sections["reading"]
    assert "by each way of combining the tasks" in sections["ranks"]


def test_one_task_has_no_ways_of_taking_tasks_together(tmp_path: Path):
    table = tmp_path / "one.csv"
    table.write_text(
        "model,benchmark,score,stderr,n\n"
        + "".join(f"m{k},boolq,0.{40 + 4 * k},0.01,900\n" for k in range(6))
    )
    sections = {id: html for id, _, html in build_sections(make_report(open_evidence(table)))}
    assert "Rank by each way of aggregating" not in sections.get("ranks", "")
