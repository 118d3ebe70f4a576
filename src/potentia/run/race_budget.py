"""How long a selection takes on this machine, and what of it a budget holds.

Before anything has run, a candidate's pace follows from the machine's matrix products. Then every round measures it:
seconds per token scored, per token trained, and what loading and checks take. Other work on the machine is in these
figures, so a loaded machine is just a slow one.

What a budget cannot hold goes in this order, for all candidates alike: folds down to three, learning rates down to one,
half of the passes over the training examples, three quarters of them, the other folds, the early round of two
candidates, more passes, training examples. Three folds at half the length come before one at full length: an accuracy
of 0.7 on a fifth of 200 rows is known to ± 0.14, on three fifths to ± 0.08, and shorter is shorter for all.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from potentia.run.cost import (
    SCORING_FLOPS,
    estimate_tokens,
    find_parameters,
    find_train_factor,
)
from potentia.run.encoders import count_encoder_examples

if TYPE_CHECKING:
    from potentia.study import ModelSpec, Tuning
    from potentia.tasks import Task

MIN_TRAIN_EXAMPLES = 32  # of the first round
FEW_CANDIDATES = 2  # all of whom reach the end
TRIAL_EPOCHS = 2  # of the fine-tuning that measures the pace
LEAST_FOLDS = 3  # that are tested before a fine-tuning is made shorter
SHARES_WITH_FOLDS = (1.0, 0.5, 0.25)  # of the fine-tuning, as long as several folds are tested
SHORTEST_SHARES = (0.1, 0.05)  # that the smallest budgets leave
LEAST_UPDATES = 10
MATRIX_PRODUCTS = 60  # that the speed of the machine is measured by
COMPUTE_SHARE = 0.35  # of the machine's matrix products that fine-tuning reaches
LOAD_SECONDS = 4.0  # of a model whose loading was not measured
UPDATE_SECONDS = 0.01  # that an update costs however small the model is
FIRST_PASS_SECONDS = 1.0  # beyond its arithmetic, of a model's first fine-tuning
# Tokens whose forward passes take as long as the checks of scoring, and of fine-tuning.
SCORING_CHECK_TOKENS = 4_000.0
TRAINING_CHECK_TOKENS = 4_000.0
SLOWER_TRAINING = 2.0  # times that a token takes longer to learn from than to score
STARTING_WORK = ("load", "check", "compile")  # kinds of work that a model's first round does


@dataclass(frozen=True)
class RacePlan:
    """The folds of the last round, the training examples of each round, and everyone's fine-tuning."""

    folds: tuple[str, ...]
    sizes: tuple[int, ...]
    tuning: Tuning
    has_encoders: bool = False  # whether encoders are fine-tuned on the folds of the last round


@dataclass(frozen=True)
class FoldTokens:
    """The tokens of one fold: of a training example, of all validation and of all test examples."""

    train_example: float
    validation: float
    test: float

    @classmethod
    def count(cls, task: Task) -> FoldTokens:
        """Estimate the tokens of a task's splits."""
        return cls(
            train_example=estimate_tokens(task, "train") / max(len(task.documents("train")), 1),
            validation=estimate_tokens(task, "validation"),
            test=estimate_tokens(task, "test"),
        )

    def count_scored(self, tuning: Tuning, train_examples: int) -> float:
        """Return the tokens that one fine-tuned candidate is scored on: validation after every epoch, and the test."""
        epochs, _ = tuning.plan_epochs(train_examples)
        return self.validation * (epochs * tuning.expected_lanes + 1) + self.test

    def count_trained(self, tuning: Tuning, train_examples: int) -> float:
        """Return the tokens that one candidate learns from, over all passes and learning rates."""
        epochs, passes_per_epoch = tuning.plan_epochs(train_examples)
        tokens_per_pass = self.train_example * train_examples
        return tokens_per_pass * epochs * passes_per_epoch * tuning.expected_lanes


@dataclass(frozen=True)
class CandidatePace:
    """The seconds that one candidate takes here."""

    score_token: float
    train_token: float
    load: float = LOAD_SECONDS  # in every round
    scoring_check: float = 0.0  # once, if still to come
    training_check: float = 0.0
    is_scoring_measured: bool = False
    is_training_measured: bool = False

    @classmethod
    def from_flops(cls, parameters: float, flops_per_second: float) -> CandidatePace:
        """Return the pace that the machine's matrix products suggest."""
        score_token = SCORING_FLOPS * parameters / flops_per_second
        return cls(
            score_token=score_token,
            train_token=SLOWER_TRAINING * score_token,
            scoring_check=SCORING_CHECK_TOKENS * score_token,
            training_check=TRAINING_CHECK_TOKENS * score_token,
        )

    def estimate_training(self, tokens: float, updates: float) -> float:
        """Return the seconds of so many updates on so many tokens: each costs something however small the model is."""
        return max(self.train_token * tokens, UPDATE_SECONDS * updates)

    def learn(
        self, seconds_by_kind: Mapping[str, float], scored_tokens: float, trained_tokens: float
    ) -> CandidatePace:
        """Return the pace by what a round took; without training in it, training slows down as scoring did."""
        train_seconds = seconds_by_kind.get("train", 0.0)
        starting_seconds = sum(seconds_by_kind.get(work_kind, 0.0) for work_kind in STARTING_WORK)
        score_seconds = sum(seconds_by_kind.values()) - train_seconds - starting_seconds
        score_token = score_seconds / max(scored_tokens, 1.0)
        measured = replace(
            self,
            score_token=score_token,
            load=seconds_by_kind.get("load", 0.0),
            scoring_check=0.0,
            is_scoring_measured=True,
        )
        if trained_tokens:
            first_pass = 0.0 if self.is_training_measured else FIRST_PASS_SECONDS
            arithmetic_seconds = max(train_seconds - first_pass, 0.0)
            return replace(
                measured,
                train_token=arithmetic_seconds / trained_tokens,
                training_check=0.0,
                is_training_measured=True,
            )
        if self.is_training_measured:
            return measured
        if not math.isfinite(self.score_token):  # the size was unknown: scoring tells the pace
            return replace(
                measured,
                train_token=SLOWER_TRAINING * score_token,
                training_check=TRAINING_CHECK_TOKENS * score_token,
            )
        # Scoring shares beginnings, which training does not: it is never taken for faster than expected.
        check_slowdown = seconds_by_kind.get("check", 0.0) / max(self.scoring_check, 1e-9)
        slowdown = max(1.0, score_token / max(self.score_token, 1e-12), check_slowdown)
        return replace(
            measured,
            train_token=slowdown * self.train_token,
            training_check=slowdown * self.training_check,
        )


@dataclass
class RaceClock:
    """Estimates the seconds of a selection's parts, by the paces measured so far."""

    tokens: FoldTokens
    paces: dict[str, CandidatePace] = field(default_factory=dict)  # by model
    expected_paces: dict[str, CandidatePace] = field(
        default_factory=dict
    )  # before any was measured
    encoder_token: float = 0.0  # seconds a trained token of all encoders together, as expected

    @classmethod
    def start(
        cls,
        rows: Sequence[ModelSpec],
        task: Task,
        flops_per_second: float,
        encoders: Sequence[ModelSpec] = (),
    ) -> RaceClock:
        """Return the clock of these candidates before anything was measured of them."""
        paces = {}
        for row in rows:
            paces[row.name] = CandidatePace.from_flops(find_parameters(row), flops_per_second)
        encoder_token = 0.0
        for row in encoders:
            encoder_flops = SCORING_FLOPS * find_train_factor("full") * find_parameters(row)
            encoder_token += encoder_flops / flops_per_second
        return cls(FoldTokens.count(task), paces, dict(paces), encoder_token)

    def recount_tokens(self, task: Task) -> None:
        """Count the tokens anew, of a task that has fewer examples now."""
        self.tokens = FoldTokens.count(task)

    def learn_scoring(
        self, model_name: str, seconds_by_kind: Mapping[str, float], folds: int
    ) -> None:
        """Take in what the scores of a candidate before fine-tuning took."""
        scored_tokens = self.tokens.test * folds
        self.paces[model_name] = self.paces[model_name].learn(seconds_by_kind, scored_tokens, 0.0)

    def learn_tuning(
        self,
        model_name: str,
        seconds_by_kind: Mapping[str, float],
        tuning: Tuning,
        train_examples: int,
        folds: int,
    ) -> None:
        """Take in what the fine-tuning of a candidate took."""
        scored_tokens = folds * self.tokens.count_scored(tuning, train_examples)
        trained_tokens = folds * self.tokens.count_trained(tuning, train_examples)
        self.paces[model_name] = self.paces[model_name].learn(
            seconds_by_kind, scored_tokens, trained_tokens
        )

    def estimate_encoders(self, train_examples: int, folds: int, rates: int | None = None) -> float:
        """Return the seconds of fine-tuning all encoders: as much slower than expected as the others were."""
        if not self.encoder_token:
            return 0.0
        slowdowns = []
        for model, pace in self.paces.items():
            expected = self.expected_paces.get(model)
            if pace.is_training_measured and expected is not None:
                slowdowns.append(pace.train_token / max(expected.train_token, 1e-12))
        slowdown = statistics.median(slowdowns) if slowdowns else 1.0
        tokens = self.tokens.train_example * count_encoder_examples(train_examples, rates)
        return slowdown * folds * self.encoder_token * tokens

    def find_scoring_speed(self, model_name: str, test_examples: int) -> float:
        """Return the examples a second that a candidate scores, without loading and checks; NaN if not measured."""
        pace = self.paces.get(model_name)
        if pace is None or not pace.is_scoring_measured:
            return math.nan
        return test_examples / max(pace.score_token * self.tokens.test, 1e-9)

    def estimate_direct(self, folds: int) -> float:
        """Return the seconds of all candidates' scores before fine-tuning."""
        seconds = 0.0
        for pace in self.paces.values():
            seconds += pace.load + pace.scoring_check
            seconds += folds * pace.score_token * self.tokens.test
        return seconds

    def estimate_plan(self, race_plan: RacePlan) -> float:
        """Return the seconds of all rounds: early ones on one fold, the last on all folds, with fewer candidates."""
        candidates = max(len(self.paces), 1)  # none where all are encoders
        share = expect_finalists(candidates) / candidates
        seconds = sum(pace.training_check for pace in self.paces.values())
        for size in race_plan.sizes[:-1]:
            seconds += self.estimate_fold(race_plan.tuning, size)
        last_fold = self.estimate_fold(race_plan.tuning, race_plan.sizes[-1])
        if race_plan.has_encoders:
            seconds += self.estimate_encoders(race_plan.sizes[-1], len(race_plan.folds))
        return seconds + share * len(race_plan.folds) * last_fold

    def estimate_fold(self, tuning: Tuning, train_examples: int) -> float:
        """Return the seconds of fine-tuning all candidates on so many examples of one fold."""
        updates = tuning.expected_lanes * tuning.count_updates(train_examples)
        trained_tokens = self.tokens.count_trained(tuning, train_examples)
        scored_tokens = self.tokens.count_scored(tuning, train_examples)
        seconds = 0.0
        for pace in self.paces.values():
            train_seconds = pace.estimate_training(trained_tokens, updates)
            seconds += pace.load + train_seconds + pace.score_token * scored_tokens
        return seconds

    def estimate_refit(self, model_name: str, tuning: Tuning, train_examples: int) -> float:
        """Return the seconds of one more fine-tuning of a candidate on so many examples.

        It is made at the middle learning rate alone.
        """
        pace = self.paces[model_name]
        one_rate = keep_one_rate(tuning)
        trained_tokens = self.tokens.count_trained(one_rate, train_examples)
        updates = one_rate.count_updates(train_examples)
        return pace.load + pace.estimate_training(trained_tokens, updates)


def expect_finalists(candidates: int) -> int:
    """Return how many candidates reach the end as a rule: the better half, and one or two beside it."""
    return candidates if candidates <= FEW_CANDIDATES else min(candidates, candidates // 2 + 1)


def keep_one_rate(tuning: Tuning) -> Tuning:
    """Return the fine-tuning with the middle of its learning rates alone."""
    rates = sorted(tuning.learning_rates)
    middle_rate = rates[len(rates) // 2]
    return tuning.model_copy(update={"learning_rates": (middle_rate,), "rate_bounds": None})


def shorten_tuning(tuning: Tuning, share: float) -> Tuning:
    """Return the fine-tuning with a share of its passes."""
    return tuning.model_copy(
        update={
            "epochs": max(1, round(tuning.epochs * share)),
            "least_updates": min(
                tuning.least_updates, max(LEAST_UPDATES, round(tuning.least_updates * share))
            ),
        }
    )


def plan_trial(race_plan: RacePlan) -> RacePlan:
    """Return the smallest fine-tuning there is, which measures the pace of a larger one."""
    tuning = keep_one_rate(race_plan.tuning).model_copy(
        update={"epochs": min(race_plan.tuning.epochs, TRIAL_EPOCHS), "least_updates": 0}
    )
    round_size = min(
        MIN_TRAIN_EXAMPLES, race_plan.sizes[-1]
    )  # the last round has the most examples
    return RacePlan(race_plan.folds[:1], (round_size,), tuning)


def list_smaller_plans(race_plan: RacePlan, candidates: int) -> Iterator[RacePlan]:
    """Go through what a plan is cut down to, the best first; encoders are left out where nothing else is enough."""
    yield from _list_shorter_plans(race_plan, candidates)
    if race_plan.has_encoders:
        without_encoders = replace(race_plan, has_encoders=False)
        yield without_encoders
        yield from _list_shorter_plans(without_encoders, candidates)


def _list_shorter_plans(race_plan: RacePlan, candidates: int) -> Iterator[RacePlan]:
    """Go through plans with fewer folds, learning rates, passes and examples."""
    most_folds = len(race_plan.folds)
    least_folds = min(LEAST_FOLDS, most_folds)
    for fold_count in range(most_folds - 1, least_folds - 1, -1):
        yield replace(race_plan, folds=race_plan.folds[:fold_count])
    with_one_rate = replace(race_plan, tuning=keep_one_rate(race_plan.tuning))
    shorter = with_one_rate
    for share in SHARES_WITH_FOLDS:
        shorter = replace(with_one_rate, tuning=shorten_tuning(with_one_rate.tuning, share))
        for fold_count in range(most_folds, least_folds - 1, -1):
            yield replace(shorter, folds=race_plan.folds[:fold_count])
    smaller = shorter
    for fold_count in range(least_folds - 1, 0, -1):
        smaller = replace(shorter, folds=race_plan.folds[:fold_count])
        yield smaller
    if candidates <= FEW_CANDIDATES:  # nobody is dropped: the early round is for the curve alone
        smaller = replace(smaller, sizes=race_plan.sizes[-1:])
        yield smaller
    for share in SHORTEST_SHARES:
        tuning = shorten_tuning(with_one_rate.tuning, share)
        smaller = replace(smaller, tuning=tuning)
        yield smaller
    # Without more passes over fewer examples, each of which would be validated.
    one_pass = smaller.tuning.model_copy(update={"least_updates": 0})
    examples = race_plan.sizes[-1]
    while examples > MIN_TRAIN_EXAMPLES:
        examples = max(MIN_TRAIN_EXAMPLES, examples // 2)
        yield replace(smaller, sizes=(examples,), tuning=one_pass)


def has_more_updates(race_plan: RacePlan, trial: RacePlan) -> bool:
    """Whether the last round of a plan fine-tunes longer than a trial did, or tests more folds."""
    updates = race_plan.tuning.count_updates(race_plan.sizes[-1])
    trial_updates = trial.tuning.count_updates(trial.sizes[-1])
    return updates > trial_updates or len(race_plan.folds) > len(trial.folds)


def describe_limits(race_plan: RacePlan, limited: RacePlan) -> str:
    """Say what a smaller plan has of a plan."""
    limits = []
    if limited.folds != race_plan.folds:
        limits.append(f"{len(limited.folds)} of {len(race_plan.folds)} folds")
    if len(limited.tuning.learning_rates) < len(race_plan.tuning.learning_rates):
        limits.append("one learning rate instead of a search")
    if len(limited.sizes) < len(race_plan.sizes):
        limits.append("no outlook on more training examples")
    if limited.sizes[-1] < race_plan.sizes[-1]:
        limits.append(f"{limited.sizes[-1]} of {race_plan.sizes[-1]} training examples")
    if race_plan.has_encoders and not limited.has_encoders:
        limits.append("no encoders")
    updates = limited.tuning.count_updates(limited.sizes[-1])
    planned_updates = race_plan.tuning.count_updates(limited.sizes[-1])
    if updates < planned_updates:
        limits.append(f"{updates} of {planned_updates} training steps")
    return ", ".join(limits) or "less"


def measure_flops_per_second(device: str) -> float:
    """Return the floating-point operations a second that fine-tuning reaches here, by a few matrix products."""
    import torch

    from potentia.engine import pick_device

    torch_device = pick_device(device)
    is_cpu = torch_device.type == "cpu"
    matrix_size = 512 if is_cpu else 4096
    dtype = torch.float32 if is_cpu else torch.bfloat16
    matrix = torch.ones((matrix_size, matrix_size), dtype=dtype, device=torch_device)
    seconds = []
    for _ in range(MATRIX_PRODUCTS):
        began = time.perf_counter()
        product = matrix @ matrix
        float(product[0, 0])  # waits for the device
        seconds.append(time.perf_counter() - began)
    # the mean of all but the first few, which warm up: other work on the machine counts
    usual_seconds = statistics.fmean(seconds[MATRIX_PRODUCTS // 4 :])
    return COMPUTE_SHARE * 2 * matrix_size**3 / usual_seconds


def is_known(seconds: float) -> bool:
    """Whether an estimate is a number: the size of a model may be unknown."""
    return math.isfinite(seconds)
