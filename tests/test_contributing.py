"""The recipes of CONTRIBUTING.md hold: what it says can be added is added here, from a package outside Potentia."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from potentia.extensions import ExtensionKind, list_extensions, load_extension

ROOT = Path(__file__).resolve().parents[1]

# A distribution of another author: one module, and the entry points that name what it adds.
MODULE = '''
from dataclasses import dataclass

from potentia.analysis.registration import (
    AnalysisCommand, AnalysisOutput, PaperReproduction, ReportSection, SectionContent, command_option,
)
from potentia.show.charts import draw_chart
from potentia.values.findings import Bars, Chart, Finding, Table
from potentia.values.metric import Metric

GRUMPINESS = Metric("grumpiness", higher_is_better=False, kind="task", scale="percent")


@dataclass(frozen=True)
class SpanChart(Chart):
    """From the lowest to the highest score of every task."""

    names: tuple[str, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@draw_chart.register
def _draw_spans(chart: SpanChart):
    return draw_chart(Bars("bars", "", "", chart.names, {"lowest": chart.low, "highest": chart.high}))


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
        return [SpanChart("spans", "Spans", "From the worst model to the best.", self.tasks, self.low, self.high)]


@dataclass(frozen=True)
class SpanOptions:
    """How the spans are measured."""

    factor: float = command_option("Multiply scores by this.", 1.0, minimum=0.0)
    quietly: bool = command_option("Remark nothing.", False, "--quietly")


def find_spans(evidence, factor=1.0):
    matrix = evidence.scores[evidence.main]
    low = tuple((factor * matrix.values.min(axis=0)).tolist())
    high = tuple((factor * matrix.values.max(axis=0)).tolist())
    return Spans(matrix.tasks, low, high)


def analyze_spans(evidence, options: SpanOptions) -> AnalysisOutput:
    """Say how far the models of each task lie apart.

    Example:
      potentia analyze spans scores.csv
    """
    remarks = () if options.quietly else ("measured from the outside",)
    return AnalysisOutput({"spans": find_spans(evidence, options.factor)}, remarks)


def find_span_content(request):
    spans = find_spans(request.evidence)
    return SectionContent(shown=[spans], named={"spans": spans}, lead="Far apart.")


def reproduce_spans(request):
    return Spans(("printed",), (0.25,), (float(len(request.files)),))


def greet() -> None:
    """Greet."""
    print("hello from outside")


ANALYSIS = AnalysisCommand(analyze_spans, SpanOptions)
SECTION = ReportSection("Spans", find_span_content, heading="How far apart?", after="scores")
REPRODUCTION = PaperReproduction(reproduce_spans, files=("SCORES",))
'''
ENTRY_POINTS = """[potentia]
analysis.spans = spans_extension:ANALYSIS
analysis.broken = spans_extension:NOT_THERE
section.spans = spans_extension:SECTION
reproduction.spans = spans_extension:REPRODUCTION
command.greet = spans_extension:greet
metric.grumpiness = spans_extension:GRUMPINESS
executor.patient = patient_executor:PatientExecutor
adapter_method.double = double_adapter:DoubleAdapter
"""
EXECUTOR = """
from potentia.run.executors import Executor


class PatientExecutor(Executor):
    @classmethod
    def check_installed(cls): ...

    def run(self, request): return {}
"""
ADAPTER = """
from potentia.engine.layers.adapter_methods import LowRankAdapter


class DoubleAdapter(LowRankAdapter):
    def scale(self, rank, alpha): return 2 * alpha / rank
"""


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the path that holds an installed distribution, and a table of scores."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "spans_extension.py").write_text(MODULE)
    (folder / "patient_executor.py").write_text(EXECUTOR)
    (folder / "double_adapter.py").write_text(ADAPTER)
    metadata = folder / "spans_extension-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: spans-extension\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    lines = ["model,benchmark,metric,score"]
    for k in range(4):
        lines += [f"m{k},mood,grumpiness,{10 * k + 5}", f"m{k},arc,acc,{k / 10 + 0.2}"]
    (folder / "scores.csv").write_text("\n".join(lines) + "\n")
    return folder


def run_python(outside: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(outside), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        cwd=outside,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done


def potentia(outside: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(outside, "from potentia.cli import main; main()", *arguments)


def test_an_analysis_is_a_command_with_its_own_options(outside: Path):
    done = potentia(
        outside, "analyze", "spans", "scores.csv", "--tasks", "arc", "--factor", "10", "--json"
    )
    assert json.loads(done.stdout)["spans"]["low"] == [2.0]
    assert "measured from the outside" in done.stderr
    done = potentia(outside, "analyze", "spans", "scores.csv", "--tasks", "arc", "--quietly")
    assert "Span of each task" in done.stdout
    assert "measured from the outside" not in done.stderr
    assert "Multiply scores by this." in potentia(outside, "analyze", "spans", "--help").stdout


def test_a_section_stands_in_the_report_where_it_asks_to(outside: Path):
    answer = json.loads(potentia(outside, "report", "scores.csv", "-o", "r.html", "--json").stdout)
    assert "spans" in answer["findings"]
    page = (outside / "r.html").read_text()
    sections = re.findall(r'<section id="([\w-]+)"', page)
    assert sections.index("spans") == sections.index("scores") + 1
    assert "<h3>Span of each task</h3>" in page


def test_a_chart_of_a_new_kind_is_drawn_into_files(outside: Path):
    arguments = ("--figures", "figures.svg", "figures.pdf")
    potentia(outside, "analyze", "spans", "scores.csv", *arguments)
    assert (outside / "figures" / "spans.svg").read_text().startswith("<svg")
    assert (outside / "figures" / "spans.pdf").read_bytes().startswith(b"%PDF")


def test_a_paper_and_a_command_are_added_too(outside: Path):
    done = potentia(outside, "papers", "reproduce", "spans", "scores.csv", "--json")
    assert json.loads(done.stdout)["spans"]["high"] == [1.0]
    assert "hello from outside" in potentia(outside, "greet").stdout


def test_a_metric_is_known_by_direction(outside: Path):
    """Lower is better: that follows from the metric's name alone."""
    code = (
        "import potentia; matrix = next(iter(potentia.read('scores.csv').scores.values())); "
        "print(dict(zip(matrix.tasks, map(bool, matrix.higher_is_better))))"
    )
    assert "'mood': False" in run_python(outside, code).stdout


def test_an_executor_is_found_by_its_name(outside: Path):
    code = (
        "from potentia.run.executors import find_executor; print(find_executor('patient').__name__)"
    )
    assert "PatientExecutor" in run_python(outside, code).stdout


def test_an_adapter_method_is_found_by_its_name(outside: Path):
    code = (
        "from potentia.engine.layers.adapter_methods import find_adapter_method; "
        "print(find_adapter_method('double').scale(8, 16))"
    )
    assert run_python(outside, code).stdout.split() == ["4.0"]


def test_what_cannot_be_loaded_is_told_and_costs_nothing_else(outside: Path):
    done = potentia(outside, "analyze", "--help")
    assert "'broken' of spans-extension cannot be loaded" in done.stderr
    assert "spans" in done.stdout


@pytest.mark.parametrize("kind", list(ExtensionKind))
def test_all_that_the_papers_register_can_be_loaded(kind: ExtensionKind):
    for name in list_extensions(kind):
        assert load_extension(kind, name) is not None


def test_every_file_that_it_names_is_there():
    named = re.findall(r"`([\w/]+\.(?:py|md))`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    folders = (ROOT, ROOT / "src" / "potentia")
    there = {name for name in named if any((folder / name).exists() for folder in folders)}
    gone = {name for name in named if name not in there and "NAME" not in name}
    assert len(named) > 20
    assert gone == set()
