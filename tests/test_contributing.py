"""The recipes of CONTRIBUTING.md hold: what it says can be added is added here, from a package outside Potentia."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from one_process import CommandResult, run_commands
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
adapter_method.mistaken = double_adapter:MistakenAdapter
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


class MistakenAdapter(LowRankAdapter):  # its adapters would compute something else in PEFT
    def scale(self, rank, alpha): return 2 * alpha / rank


class DoubleAdapter(MistakenAdapter):
    peft_alpha_factor = 2
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


COMMANDS = {
    "options": "analyze spans scores.csv --tasks arc --factor 10 --json",
    "quiet": "analyze spans scores.csv --tasks arc --quietly",
    "help": "analyze spans --help",
    "list": "analyze --help",
    "report": "report scores.csv -o r.html --json",
    "figures": "analyze spans scores.csv --figures figures.svg figures.pdf",
    "paper": "papers reproduce spans scores.csv --json",
    "command": "greet",
}
# What is not a command: printed by the same interpreter before the commands run.
LOOKED_UP = """
import json
import potentia
import transformers
from potentia.engine.training import LaneSpec, LaneTrainer, TokenisedExamples
from potentia.errors import TuningError
from potentia.run.executors import find_executor
from potentia.study import Tuning


def train(method):
    tuning = Tuning(method=method, rank=2, alpha=4, epochs=1, batch=2, targets=("q_proj",))
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=32,
    )
    examples = TokenisedExamples.from_lists([[1, 5, 9, 3], [1, 7, 2, 8]])
    lane = LaneSpec(method, examples, tuning.make_schedule(1e-2), tuning.make_lora_config())
    try:
        with LaneTrainer(transformers.LlamaForCausalLM(config)) as trainer:
            results = trainer.train([lane])
            return [results[method].status, trainer.install_bank(lane.lora, 1).peft_config().lora_alpha]
    except TuningError as error:
        return [type(error).__name__, error.message]


matrix = next(iter(potentia.read("scores.csv").scores.values()))
answers = {
    "higher is better": dict(zip(matrix.tasks, map(bool, matrix.higher_is_better))),
    "executor": find_executor("patient").__name__,
    "adapter methods": {method: train(method) for method in ("double", "mistaken")},
}
open("answers.json", "w").write(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def results(outside: Path) -> dict[str, CommandResult]:
    """What every command says where the other package is installed."""
    path = os.pathsep.join([str(outside), str(ROOT / "src")])
    commands = [line.split() for line in COMMANDS.values()]
    done = run_commands(commands, outside, prelude=LOOKED_UP, PYTHONPATH=path)
    for result in done:
        assert result.returncode == 0, result.stderr
    return dict(zip(COMMANDS, done, strict=True))


@pytest.fixture(scope="module")
def answers(outside: Path, results: dict[str, CommandResult]) -> dict[str, Any]:
    """What Python finds where the other package is installed."""
    return json.loads((outside / "answers.json").read_text())


def test_an_analysis_is_a_command_with_its_own_options(results: dict[str, CommandResult]):
    assert json.loads(results["options"].stdout)["spans"]["low"] == [2.0]
    assert "measured from the outside" in results["options"].stderr
    assert "Span of each task" in results["quiet"].stdout
    assert "measured from the outside" not in results["quiet"].stderr
    assert "Multiply scores by this." in results["help"].stdout


def test_a_section_stands_in_the_report_where_it_asks_to(
    outside: Path, results: dict[str, CommandResult]
):
    assert "spans" in json.loads(results["report"].stdout)["findings"]
    page = (outside / "r.html").read_text()
    sections = re.findall(r'<section id="([\w-]+)"', page)
    assert sections.index("spans") == sections.index("scores") + 1
    assert "<h3>Span of each task</h3>" in page


def test_a_chart_of_a_new_kind_is_drawn_into_files(
    outside: Path, results: dict[str, CommandResult]
):
    assert results["figures"].new_files == ("figures",)
    assert (outside / "figures" / "spans.svg").read_text().startswith("<svg")
    assert (outside / "figures" / "spans.pdf").read_bytes().startswith(b"%PDF")


def test_a_paper_and_a_command_are_added_too(results: dict[str, CommandResult]):
    assert json.loads(results["paper"].stdout)["spans"]["high"] == [1.0]
    assert "hello from outside" in results["command"].stdout


def test_a_metric_is_known_by_direction(answers: dict[str, Any]):
    """Lower is better: that follows from the metric's name alone."""
    assert answers["higher is better"]["mood"] is False


def test_an_executor_is_found_by_its_name(answers: dict[str, Any]):
    assert answers["executor"] == "PatientExecutor"


def test_an_adapter_method_trains_where_it_computes_what_peft_does(answers: dict[str, Any]):
    assert answers["adapter methods"]["double"] == ["done", 8.0]
    error, message = answers["adapter methods"]["mistaken"]
    assert error == "TuningError"
    assert message.endswith("by 4, PEFT by 2")


def test_what_cannot_be_loaded_is_told_and_costs_nothing_else(results: dict[str, CommandResult]):
    told = results["options"].stderr + results["list"].stderr
    assert "'broken' of spans-extension cannot be loaded" in told
    assert "spans" in results["list"].stdout


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
