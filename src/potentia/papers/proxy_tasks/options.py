"""What ``potentia analyze proxy`` can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from potentia.analysis.registration import command_option
from potentia.errors import InputError

CHOICES: dict[str, tuple[str, tuple[str, ...]]] = {  # of an option: what it is, and what it may be
    "correlation": ("correlation", ("kendall", "spearman", "pearson", "auto")),
    "normalise": ("normalisation", ("both", "feature", "none")),
    "weigh": ("transformation", ("sigmoid", "log", "none")),
    "on": ("kind of model", ("same", "base", "chat")),
}


@dataclass(frozen=True)
class ProxyOptions:
    """Which task to predict, from what, and how proxies are chosen and weighed."""

    target: str = command_option("The task to predict.", ...)
    candidates: tuple[str, ...] | None = command_option(
        "Candidate tasks; else all other benchmarks."
    )
    protocol: str = "direct"
    corpora: tuple[str, ...] | None = None  # rivals; all texts to predict where absent
    correlation: str = command_option(
        "kendall, spearman, pearson, or auto: what algorithm 1 chooses.", "kendall"
    )
    normalise: str = command_option(
        "both (tasks, then models), feature (tasks only), or none.", "both"
    )
    top: int | None = command_option(
        "t of algorithm 1, top tasks compared; 10, or half of the candidates.", minimum=1
    )
    sampled: tuple[int, ...] = command_option(
        "n of algorithm 1, models in a sample; else the paper's 6, 8, 10.", (), minimum=3
    )
    rounds: tuple[int, ...] = command_option(
        "k of algorithm 1, samples; else the paper's 25 (and 15, 35).", (), minimum=2
    )
    keep: int | None = None  # proxies at most
    data_group: tuple[str, ...] = command_option("Small models trained on different data.", ())
    seed_group: tuple[str, ...] = command_option("Small models that differ in their seed only.", ())
    early: tuple[str, ...] = command_option("Models to predict, such as early checkpoints.", ())
    min_relevance: float = command_option("Keep candidates with a relevance above this.", 0.0)
    min_robustness: float = command_option(
        "Keep candidates with a variance ratio of at least this.", 1.0
    )
    weigh: str = command_option("f(R): sigmoid, log, or none.", "sigmoid")
    steepness: float = command_option("k of the sigmoid 1/(1+exp(-kR)).", 1.0, minimum=0.0)
    on: str = command_option(
        "base: candidates on base models, target on their chat versions; chat: both on these; same.",
        "same",
    )
    pairs: bool | Mapping[str, str] = command_option(  # base → chat; True: by studies and facts
        "Compare choosing and scoring on base and chat models.", False, "--pairs/--no-pairs"
    )
    families: bool = command_option(
        "Keep a model family on one side of every split.", False, "--families/--no-families"
    )
    splits: int = 200

    def __post_init__(self) -> None:
        for name, (kind, choices) in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise InputError(
                    f"no {kind} {value!r}", hint=f"--{name} is one of: {', '.join(choices)}"
                )


@dataclass(frozen=True)
class ProxyCommandOptions(ProxyOptions):
    """What the command takes besides: files."""

    truth: Path | None = command_option(
        "Scores of the early models later on, in the same names: a store or table."
    )
    pair_file: Path | None = command_option(
        "CSV with the columns base and instruct; else by studies and facts."
    )
