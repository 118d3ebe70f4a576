"""The score of guessing: r of equation 1, for the benchmarks whose number of options is fixed and known."""

from __future__ import annotations

from collections.abc import Mapping

from potentia.errors import InputError

# Options per question; 0 where the answer is written freely.
OPTIONS: Mapping[str, int] = {
    "anli": 3, "anli_r1": 3, "anli_r2": 3, "anli_r3": 3, "arc_challenge": 4, "arc_easy": 4, "boolq": 2, "cb": 3,
    "cola": 2, "commonsense_qa": 5, "copa": 2, "gpqa": 4, "gsm8k": 0, "headqa_en": 4, "hellaswag": 4, "logiqa": 4,
    "math": 0, "mathqa": 5, "medmcqa": 4, "medqa_4options": 4, "minerva_math": 0, "mmlu": 4, "mmlu_pro": 10, "mnli": 3,
    "mrpc": 2, "nq_open": 0, "openbookqa": 4, "piqa": 2, "pubmedqa": 3, "qnli": 2, "qqp": 2, "race": 4, "rte": 2,
    "sciq": 4, "social_iqa": 3, "sst2": 2, "triviaqa": 0, "wic": 2, "winogrande": 2, "wsc": 2,
}  # fmt: skip


def chance(task: str, *, higher_is_better: bool = True) -> float:
    """Return the score of a uniform guess: 1/k for accuracy over k options, 1 − 1/k for the Brier score.

    A prompt form (``mmlu:cloze``) or metric behind the name changes nothing, except that ``choice:4`` has four options.
    """
    base, _, form = task.partition(":")
    for name in (base, base.rsplit("_cloze", 1)[0], base.split(" ")[0]):
        if name in OPTIONS:
            reduced = form.split(":")[1:2]
            options = int(reduced[0]) if reduced and reduced[0].isdigit() else OPTIONS[name]
            share = 1 / options if options else 0.0
            return share if higher_is_better else 1 - share
    raise InputError(
        f"the score of guessing on {task} is not known here", hint="give it with --chance, such as --chance 0.25"
    )
