"""One tiny model scored by Potentia and by lm-eval's HFLM: multiple choice, whole texts, greedy text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from architectures.tiny import CORPUS
from potentia.engine import LoadedModel
from potentia.engine.models.checks import ModelChecks
from potentia.engine.scoring import Scorer
from potentia.values.requests import Continuation, Document, Generation
from potentia.values.scoring_route import WritingRoute

LONGEST = 400  # a model without a limit of its own is given one
LIMIT = 96
VOCABULARY = " ".join(CORPUS[:3]).split()
NEW_TOKENS = 12

Pair = tuple[str, str]


@dataclass(frozen=True)
class Scoring:
    """Which ways were taken, the largest differences of a log-likelihood, and how many texts were the same."""

    paths: str
    choice: float
    rolling: float
    writing: str
    written: int
    asked: int


def limited(loaded: LoadedModel) -> LoadedModel:
    """Give a model that reads texts of any length a length that tests can exceed."""
    return replace(loaded, max_length=LIMIT) if loaded.max_length > LONGEST else loaded


def compare(loaded: LoadedModel) -> Scoring:
    """Score the same requests with both; HFLM takes them one at a time, so that nothing is padded."""
    loaded = limited(loaded)
    harness = HFLM(
        pretrained=loaded.model,
        backend="causal",
        tokenizer=loaded.tokenizer,
        batch_size=1,
        max_length=loaded.max_length,
        device="cpu",
    )
    harness._rank = 1  # only rank 0 draws bars
    pairs = questions(loaded)
    their_logprobs = {
        pair: value
        for pair, (value, _) in zip(
            pairs,
            harness.loglikelihood(_instances("loglikelihood", pairs), disable_tqdm=True),
            strict=True,
        )
    }
    paths: set[str] = set()
    worst = 0.0
    for order in orders(pairs):
        fresh = replace(loaded, checks=ModelChecks())
        scorer = Scorer(fresh)
        for call in order:
            likelihoods = scorer.loglikelihood([Continuation(*pair) for pair in call])
            worst = max(
                worst,
                *(
                    _off(ours_one.logprob, their_logprobs[pair])
                    for ours_one, pair in zip(likelihoods, call, strict=True)
                ),
            )
        paths |= set(scorer.notes.rows_by_route)
    scorer = Scorer(replace(loaded, checks=ModelChecks()))
    documents = texts(loaded)
    rolled = scorer.rolling([Document(text) for text in documents])
    windows = harness.loglikelihood_rolling(
        _instances("loglikelihood_rolling", [(t,) for t in documents]), disable_tqdm=True
    )
    rolling = max(
        _off(ours_one.logprob, theirs_one)
        for ours_one, theirs_one in zip(rolled, windows, strict=True)
    )
    same, contexts_asked = 0, 0
    for stop in ((), ("e", "\n")):
        contexts = prompts(loaded)
        ours = scorer.generate([Generation(context, stop, NEW_TOKENS) for context in contexts])
        settings = {"until": list(stop), "max_gen_toks": NEW_TOKENS, "do_sample": False}
        theirs = harness.generate_until(
            _instances("generate_until", [(context, dict(settings)) for context in contexts]),
            disable_tqdm=True,
        )
        same += sum(
            ours_one == theirs_one for ours_one, theirs_one in zip(ours, theirs, strict=True)
        )
        contexts_asked += len(contexts)
    writing = "fast" if scorer.notes.writing == (WritingRoute.LOOP,) else "own"
    return Scoring("+".join(sorted(paths)), worst, rolling, writing, same, contexts_asked)


def _off(ours: float, theirs: float) -> float:
    """Return how far a log-likelihood is off, beyond the last bit of HFLM's, which is a float32 (0.001 of 10,000)."""
    return max(0.0, abs(ours - theirs) - 2.0**-23 * abs(theirs))


def questions(loaded: LoadedModel) -> list[Pair]:
    """Make questions of every length: choices of one and of several tokens, contexts that differ, some too long."""
    draw = random.Random(1)
    pairs: list[Pair] = []
    for tokens in (
        5,
        8,
        20,
        30,
        loaded.max_length // 2,
        loaded.max_length - 12,
        loaded.max_length + 20,
    ):
        context = f"Question: {_phrase(draw, tokens, loaded)}?\nAnswer:"
        pairs += [(context, " " + _phrase(draw, size, loaded)) for size in (2, 3, 5)]
        pairs += [(context, letter) for letter in (" A", " B")]
    for _ in range(3):
        stem, end = _phrase(draw, 12, loaded), " so she always got the easier cases."
        pairs += [(f"{stem} {name}", end) for name in ("Sarah", "Maria")]
    return list(
        dict.fromkeys(
            [*pairs, ("", "Oxygen is what they give back."), ("trailing space ", "plants")]
        )
    )


def orders(pairs: Sequence[Pair]) -> list[list[list[Pair]]]:
    """Arrange the pairs into calls: as they are, the other way round, shuffled, and first what branches nowhere."""
    shuffled = random.Random(2).sample(list(pairs), len(pairs))
    apart = [
        pair for n, pair in enumerate(pairs) if pair[0] not in {earlier[0] for earlier in pairs[:n]}
    ]
    return [[list(pairs)], [list(pairs)[::-1]], [shuffled], [apart, list(pairs)]]


def texts(loaded: LoadedModel) -> list[str]:
    """Make documents: short, about a window long, and of several windows."""
    draw = random.Random(3)
    return [
        _phrase(draw, tokens, loaded)
        for tokens in (4, 30, loaded.max_length - 2, 5 * loaded.max_length // 2)
    ]


def prompts(loaded: LoadedModel) -> list[str]:
    """Make beginnings of texts of several lengths, one too long."""
    draw = random.Random(4)
    return [_phrase(draw, tokens, loaded) for tokens in (2, 9, 9, 24, 40, loaded.max_length + 9)]


def _phrase(draw: random.Random, tokens: int, loaded: LoadedModel) -> str:
    """Draw words until they make about so many tokens."""
    chosen: list[str] = []
    while len(loaded.tokenizer.encode(" ".join(chosen), add_special_tokens=False)) < tokens:
        chosen.append(draw.choice(VOCABULARY))
    return " ".join(chosen)


def _instances(kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Instance]:
    return [
        Instance(kind, {}, instance_arguments, number, (f"task{number}", number, 1))
        for number, instance_arguments in enumerate(arguments)
    ]
