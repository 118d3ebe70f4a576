"""The recipes of CONTRIBUTING.md hold: a metric, an analysis and a chart, added to a copy of the house as it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ANALYSIS = '''
@dataclass(frozen=True)
class Spans(Finding):
    """How far the models of each task lie apart."""

    tasks: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def tables(self):
        rows = zip(self.tasks, self.low, self.high, strict=True)
        return [Table("Span of each task", ("task", "lowest", "highest"), tuple(rows))]

    def charts(self):
        return [Spread("spans", "Spans", "From the worst model to the best.", self.tasks, self.low, self.high)]


def find_spans(evidence):
    matrix = evidence.scores[evidence.main]
    return Spans(matrix.tasks, tuple(matrix.values.min(axis=0).tolist()), tuple(matrix.values.max(axis=0).tolist()))
'''
COMMAND = '''

@analysis("spans")
def spans(evidence: Evidence, asked: Any) -> Found:
    """Say how far the models of each task lie apart.

    Example:
      potentia analyze spans scores.csv
    """
    from potentia.analysis.rankings import find_spans

    return {"spans": find_spans(evidence)}
'''
SECTION = '''def spans_section(data):
    """How far models lie apart."""
    from potentia.analysis.rankings import find_spans

    return of_findings("spans", "Spans", "How far apart?", [find_spans(data.evidence)])


SECTIONS: '''
CHART = '''
@dataclass(frozen=True)
class Spread(Chart):
    """A line from the lowest to the highest value of every name."""

    names: tuple[str, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


_DRAWING: '''
DRAWER = """

@draw_chart.register
def _spread(chart: Spread) -> Drawn:
    sheet, scale = Sheet(), make_scale([*chart.low, *chart.high], 100.0, HALF)
    for k, (name, low, high) in enumerate(zip(chart.names, chart.low, chart.high, strict=True)):
        sheet.text(96.0, (k + 0.5) * LINE, name, anchor="end")
        sheet.line(scale(low), (k + 0.5) * LINE, scale(high), (k + 0.5) * LINE, "s0 spread")
    return Drawn(sheet, HALF, LINE * len(chart.names))
"""


def test_every_file_that_it_names_is_there():
    named = re.findall(r"`([\w/]+\.(?:py|md))`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    places = (ROOT, ROOT / "src" / "potentia")
    gone = {
        name
        for name in named
        if "NAME" not in name and not any((place / name).exists() for place in places)
    }
    assert len(named) > 20
    assert gone == set()


def put(file: Path, before: str, new: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, f"{file.name}: {before!r}"
    file.write_text(text.replace(before, new))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the house with one metric, one analysis and one kind of chart more."""
    source = tmp_path_factory.mktemp("house")
    ours = source / "potentia"
    shutil.copytree(ROOT / "src" / "potentia", ours, ignore=shutil.ignore_patterns("__pycache__"))
    put(
        ours / "values" / "metric.py",
        "_KNOWN = (\n",
        '_KNOWN = (\n    *_known("grumpiness", "percent", up=False),\n',
    )
    put(ours / "values" / "findings.py", "\n_DRAWING: ", CHART)
    charts = ours / "show" / "charts.py"
    put(charts, "Plot, Points, short_names", "Plot, Points, Spread, short_names")
    charts.write_text(charts.read_text() + DRAWER)
    room = ours / "analysis" / "rankings"
    head = "from dataclasses import dataclass\n\nfrom potentia.values.findings import Finding, Spread, Table\n"
    (room / "spans.py").write_text(head + ANALYSIS)
    (room / "__init__.py").write_text(
        (room / "__init__.py").read_text()
        + "\nfrom potentia.analysis.rankings.spans import find_spans\n"
    )
    commands = ours / "cli" / "analyses.py"
    commands.write_text(commands.read_text() + COMMAND)
    put(ours / "show" / "sections.py", "SECTIONS: ", SECTION)
    put(
        ours / "show" / "sections.py",
        "    how_section,\n",
        "    spans_section,\n    how_section,\n",
    )
    (source / "scores.csv").write_text(
        "model,benchmark,metric,score\n"
        + "".join(
            f"m{k},mood,grumpiness,{10 * k + 5}\nm{k},arc,acc,{k / 10 + 0.2}\n" for k in range(4)
        )
    )
    return source


def potentia(house: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from potentia.cli import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": str(house), "COLUMNS": "200"},
        cwd=house,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_metric_is_known_by_direction_after_one_line(house: Path):
    """Lower is better: m0 is the best of both tasks' ranking only where the direction is known."""
    asked = "import potentia; m = potentia.read('scores.csv').scores; m = next(iter(m.values())); "
    asked += "print(dict(zip(m.tasks, m.higher_is_better)))"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, "PYTHONPATH": str(house)},
        cwd=house,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "'mood': " in done.stdout
    assert done.stdout.split("'mood': ")[1].lstrip("np.").startswith(("False", "bool_(False"))


def test_an_analysis_is_a_command_and_a_section(house: Path):
    found = json.loads(
        potentia(house, "analyze", "spans", "scores.csv", "--tasks", "arc", "--json")
    )
    assert found["spans"]["low"] == [0.2]
    told = json.loads(potentia(house, "report", "scores.csv", "-o", "r.html", "--json"))
    assert told["report"] == "r.html"
    page = (house / "r.html").read_text()
    assert '<section id="spans"' in page
    assert "<h3>Span of each task</h3>" in page


def test_a_chart_is_drawn_in_page_and_file(house: Path):
    potentia(
        house, "analyze", "spans", "scores.csv", "--figures", "figures", "--format", "svg", "pdf"
    )
    svg = (house / "figures" / "spans.svg").read_text()
    assert svg.count('class="s0 spread"') == 2
    assert (house / "figures" / "spans.pdf").read_bytes().startswith(b"%PDF")
