"""Proxy tasks as an extension: the command, the report section and the printed numbers."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from potentia.analysis.registration import (
    AnalysisCommand,
    AnalysisOutput,
    PaperReproduction,
    ReportSection,
    ReproductionRequest,
    SectionContent,
    SectionRequest,
)
from potentia.papers.proxy_tasks.options import ProxyCommandOptions, ProxyOptions
from potentia.values.findings import Finding

if TYPE_CHECKING:
    from potentia.evidence import Evidence


def analyze_proxies(evidence: Evidence, options: ProxyCommandOptions) -> AnalysisOutput:
    """Choose proxy tasks for a target, weigh them, predict, and test the prediction against perplexity's.

    Examples:
      potentia papers proxy scores.csv --target gsm8k --protocol train_before_test

      potentia papers proxy potentia.db --target gsm8k --candidates arc_easy boolq

      potentia papers proxy potentia.db --target t_eval --pairs pairs.csv
    """
    from potentia.papers.proxy_tasks.analysis import find_proxies

    result = find_proxies(evidence, _analysis_options(evidence, options))
    return AnalysisOutput(result.findings_by_name(), remarks=result.problems)


def _analysis_options(evidence: Evidence, options: ProxyCommandOptions) -> ProxyOptions:
    """Return the options with the file of pairs read, and with the protocol that the evidence is ranked by."""
    from potentia.analysis.checkpoints import read_pairs

    values: dict[str, Any] = {
        field.name: getattr(options, field.name) for field in fields(ProxyOptions)
    }
    if options.pair_file is not None:
        values["pairs"] = read_pairs(options.pair_file)
    if evidence.main is not None:
        values["protocol"] = evidence.main
    return ProxyOptions(**values)


PROXY_ANALYSIS = AnalysisCommand(
    analyze_proxies, ProxyCommandOptions, reads_tasks=False, group="papers"
)


def find_proxy_content(request: SectionRequest) -> SectionContent | None:
    """Choose proxies where the report was asked for a task to predict."""
    from potentia.papers.proxy_tasks.analysis import find_proxies

    options = request.options.get("proxies")
    if options is None:
        return None
    result = find_proxies(request.evidence, options)
    return SectionContent(shown=[result], named=result.findings_by_name())


PROXY_SECTION = ReportSection(
    "Proxies", find_proxy_content, heading="Proxy tasks", after="ablation"
)


def reproduce_paper(request: ReproductionRequest) -> Finding:
    """Print the paper's variances and ratios beside ours."""
    from potentia.papers.proxy_tasks.reproduction import reproduce_proxy

    return reproduce_proxy()


PROXY_REPRODUCTION = PaperReproduction(reproduce_paper)
