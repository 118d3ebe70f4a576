"""What ``potentia papers proxy`` can be asked."""

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
        "Candidate tasks; by default all other benchmarks."
    )
    protocol: str = "direct"
    corpora: tuple[str, ...] | None = None  # rivals; all texts to predict where absent
    correlation: str = "kendall"  # spearman, pearson, or auto: what algorithm 1 chooses
    normalise: str = "both"  # tasks, then models; feature: tasks only; none
    top: int | None = None  # t of algorithm 1, top tasks compared; 10, or half of the candidates
    sampled: tuple[int, ...] = ()  # n of algorithm 1, models in a sample; else the paper's 6, 8, 10
    rounds: tuple[int, ...] = ()  # k of algorithm 1, samples; else the paper's 25 (and 15, 35)
    keep: int | None = None  # proxies at most
    data_group: tuple[str, ...] = command_option("Small models trained on different data.", ())
    seed_group: tuple[str, ...] = command_option("Small models that differ in their seed only.", ())
    early: tuple[str, ...] = ()  # models to predict, such as early checkpoints
    min_relevance: float = 0.0  # candidates with a relevance above this count
    min_robustness: float = 1.0  # and with a variance ratio of at least this
    weigh: str = "sigmoid"  # f(R): sigmoid, log, or none
    steepness: float = 1.0  # k of the sigmoid 1/(1+exp(-kR))
    on: str = "same"  # base: candidates on base models, target on their chat versions; chat: both on these
    pairs: bool | Mapping[str, str] = False  # base → chat; True: by studies and facts
    families: bool = False  # keep a model family on one side of every split
    splits: int = 200

    def __post_init__(self) -> None:
        for option_name, (option_kind, choices) in CHOICES.items():
            value = getattr(self, option_name)
            if value not in choices:
                raise InputError(
                    f"no {option_kind} {value!r}",
                    hint=f"{option_name} is one of: {', '.join(choices)}",
                )


@dataclass(frozen=True)
class ProxyCommandOptions(ProxyOptions):
    """What the command takes besides: files."""

    pair_file: Path | None = command_option(
        "Compare base with chat models: a CSV with the columns base and instruct.", None, "--pairs"
    )
