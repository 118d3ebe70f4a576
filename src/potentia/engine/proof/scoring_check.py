"""A fast scoring route is taken only after it gave the reference's numbers on inputs like the real ones.

The reference is the model's own forward on one sequence at a time. Routes are tried on made-up rows, long beside short,
with requests of several adapters where adapters are scored, in float32 (on an upcast copy of a model of 16 bits, see
``float32_copy``), where a wrong mask is a thousand times what rounding is. In 16 bits a route may then be three times
as far from float32's numbers as the reference is. What holds for short rows need not hold beyond: a model may have a
window that no config names. So a route is trusted up to a length: it is tried at the far end of the range that is asked
for, on rows of every range below and on short rows alone; where that fails, range by range from the shortest. Padded
rows are tried together with shared beginnings, on the same texts; fused layers (``scoring_layers``) before the model's
own. A few rows are enough for adapters where the bare model was right, and, in its own dtype, where a model of the same
structure was.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from potentia.engine.layers.adapter_bank import AdapterBank, bank_on
from potentia.engine.layers.draft import Draft
from potentia.engine.layers.network import Network, find_windows
from potentia.engine.layers.prefix_tree import ScoredSequence, group_rows, pack_sequences
from potentia.engine.models.admission import check_predictions
from potentia.engine.models.device_layout import out_of_memory, with_room
from potentia.engine.models.float32_copy import open_float32_copy
from potentia.engine.operations import choosing, plain_operations
from potentia.engine.proof.refusal import Refusal
from potentia.engine.proof.scoring_tolerance import (
    OWN_ROUNDINGS,
    PRECISE_DTYPES,
    SMALL_ROUNDING,
    UNNOTICED,
    is_close,
    root_mean_square,
)
from potentia.engine.proof.trial_rows import TrialLengths, TrialRowMaker, choose_compared
from potentia.timing import spending
from potentia.values.scoring_route import ScoringLayers, ScoringRoute, WritingRoute

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel
    from potentia.engine.models.tokenization import Ids

log = logging.getLogger(__name__)

UNBOUNDED = 1 << 60
# lengths up to which a route is tried, beside those that a config names
RANGE_ENDS = (64, 256, 1024, 4096, 16384, 65536)
SHORT_RANGE = RANGE_ENDS[0]
FEW_ROWS_RANGE = RANGE_ENDS[1]
MASK_CELLS = 1 << 24
NEW_TOKENS = 5  # that a text of a trial is continued by
COMPARED = 4  # sequences of long rows, and of short ones, and one more of every owner
COMPARED_OF_FEW = 2  # the same where structure is known
SLOTS = 3  # adapters that requests of a trial are shared out among, beside the bare model
NO_MEMORY = Refusal("no memory to try it")
FEW_ROWS_NOTE = "few: its structure is known"

Route = ScoringRoute | WritingRoute
Measured = list[tuple[ScoredSequence, list[float]]]  # log-probabilities of sequences' scored tokens
TrialResult = dict[Route, Measured | Refusal]
Trial = Callable[["Stage"], TrialResult]
Write = Callable[[Network, list[Draft]], list[list[float]]]
Facts = dict[str, float | str]  # how far a route is off, for the record

_ROUTE_WORDS: dict[Route, str] = {
    WritingRoute.LOOP: "writing",
    WritingRoute.SEATS: "writing in seats",
}


@dataclass(frozen=True)
class RouteCase:
    """What a check holds for: a route, rows longer than so many tokens, with adapters or without, fused or not."""

    route: Route
    beyond: int = 0
    adapters: bool = False
    fused: bool = False

    def __str__(self) -> str:
        words = _ROUTE_WORDS.get(self.route, self.route.value)
        if self.fused:
            words += " by hand"
        if self.beyond:
            words += f" beyond {self.beyond} tokens"
        if self.adapters:
            words += " with adapters"
        return words

    @property
    def record_name(self) -> str:
        """The name of the case in a result's record, which says elsewhere whether layers are fused."""
        return str(replace(self, fused=False))

    def describe_refusal(self, refusal: Refusal) -> str:
        """Say that the route is not used in this case, and why."""
        if " " in str(self):
            return f"not used: {self}: {refusal.reason}"
        return f"the {self} path is not used: {refusal.reason}"


class LengthRange(NamedTuple):
    """Rows longer than ``begin`` tokens, up to ``end``."""

    begin: int
    end: int

    @property
    def longest_row(self) -> int:
        """The length of a trial's longest row: the far end of the range, or past the longest text."""
        if self.end == UNBOUNDED:
            return self.begin + max(SHORT_RANGE, self.begin // 4)
        return max(4, self.end)


LengthTrial = Callable[[LengthRange, "Stage"], TrialResult]


@dataclass(frozen=True)
class RouteComparison:
    """What comparing a route with the reference gave: why it is refused, or None, and how far it is off."""

    refusal: Refusal | None
    facts: Facts

    @property
    def reference_rounding(self) -> float:
        """How far the reference itself is from float32, where that was measured."""
        return float(self.facts.get("reference_off_by", 0.0))


@dataclass(frozen=True)
class Stage:
    """A network to try a route on, and whose requests; ``few`` rows where structure is known."""

    network: Network
    owners: list[int]
    brief: bool = False
    reference_cache: dict[tuple[int, ...], list[float]] = field(default_factory=dict)

    def reference(self, sequence: ScoredSequence) -> list[float]:
        """Return what the model itself says of a sequence's scored tokens, computed once."""
        key = (sequence.owner, *sequence.ids)
        if key not in self.reference_cache:
            logprobs, _ = self.network.reference_logprobs(sequence)
            self.reference_cache[key] = logprobs.tolist()
        return self.reference_cache[key]


@dataclass(frozen=True)
class StagePair:
    """The float32 stage, and the model's own where that is another; whether the copy has all blocks."""

    precise: Stage
    model_stage: Stage | None
    has_all_blocks: bool


class ScoringCheck:
    """Check routes of one model; what was found is remembered with the model, and with models built alike."""

    def __init__(self, network: Network, loaded: LoadedModel) -> None:
        self.network = network
        self.loaded = loaded
        self.routes = loaded.checks.routes
        self.max_length = loaded.max_length
        windows = find_windows(network.config, self.max_length)
        fixed_ends = [end for end in RANGE_ENDS if end < self.max_length]
        ends = sorted({*fixed_ends, *windows, self.max_length})
        # a row of many branches may be wider than any text that the model reads
        bounds = [0, *ends, UNBOUNDED]
        self.ranges = [LengthRange(begin, end) for begin, end in pairwise(bounds)]

    def usable_length(
        self, route: ScoringRoute, longest: int, sequences: Sequence[ScoredSequence]
    ) -> int:
        """Return the length up to which a route may be used, trying no further than rows of ``longest`` tokens."""
        self._check_predictions()
        obstacle = self.network.tree_obstacle
        if route == ScoringRoute.TREE and obstacle is not None:
            self.routes.setdefault(RouteCase(ScoringRoute.TREE), Refusal(obstacle))
            return 0
        routes: tuple[Route, ...] = (route,)
        if route == ScoringRoute.TREE:
            routes = (ScoringRoute.TREE, ScoringRoute.PADDED)
        owners = {sequence.owner for sequence in sequences}
        texts = [sequence.ids for sequence in sequences]
        trial = partial(self._score_trial_rows, routes, texts)
        fused_layers = self.network.fused_layers
        if fused_layers is not None and fused_layers.is_unaltered:
            length = self._find_usable_length(routes, longest, owners, trial, fused=True)
            if length == UNBOUNDED:
                return UNBOUNDED
        self.network.fused_layers = None
        return self._find_usable_length(routes, longest, owners, trial, fused=False)

    def can_write(
        self, longest: int, drafts: Sequence[Draft], write: Write, route: WritingRoute
    ) -> bool:
        """Say whether a loop may write texts of ``longest`` tokens, prompt and answer together."""
        self._check_predictions()
        prompts = [draft.prompt for draft in drafts]
        owners = {draft.owner for draft in drafts}
        trial = partial(self._write_trial_texts, route, write, prompts)
        length = self._find_usable_length((route,), longest, owners, trial, fused=False)
        return length == UNBOUNDED

    def describe_refusals(self) -> Iterator[str]:
        """Say what is not used, and why."""
        for case, refusal in self.routes.items():
            if refusal is not None:
                yield case.describe_refusal(refusal)

    def _check_predictions(self) -> None:
        """Refuse what is no causal model, where it was not refused when it was loaded."""
        if not self.loaded.checks.predictions:
            self.network.route([-1])
            check_predictions(self.network.model, self.loaded.tokenizer)
            self.loaded.checks.predictions = True

    def _find_usable_length(
        self,
        routes: Sequence[Route],
        longest: int,
        owners: set[int],
        trial: LengthTrial,
        *,
        fused: bool,
    ) -> int:
        """Return the length up to which the first route is trusted, tried once at the far end if nothing is against it.

        The others are tried with it. Fused layers are trusted at all lengths or not at all.
        """
        ranges = [length_range for length_range in self.ranges if length_range.begin < longest]
        adapters = max(owners) >= 0
        cases: dict[Route, list[RouteCase]] = {}
        for route in routes:
            cases[route] = [
                RouteCase(route, length_range.begin, adapters, fused) for length_range in ranges
            ]
        first_cases = cases[routes[0]]
        if not any(self._is_refused(case) for case in first_cases):
            farthest = {route: route_cases[-1] for route, route_cases in cases.items()}
            self._check(farthest, owners, partial(trial, ranges[-1]))
            for route_cases in cases.values():
                if self._agrees(route_cases[-1]):
                    for case in [*route_cases, *self._cases_of_bare_model(route_cases[-1])]:
                        self._remember(case, None)
            if self._agrees(first_cases[-1]):
                return UNBOUNDED
        if fused:
            return 0
        for number, length_range in enumerate(ranges):
            cases_of_range = {route: route_cases[number] for route, route_cases in cases.items()}
            self._check(cases_of_range, owners, partial(trial, length_range))
            if not self._agrees(first_cases[number]):
                return length_range.begin
        return UNBOUNDED

    def _cases_of_bare_model(self, case: RouteCase) -> list[RouteCase]:
        """Return the ranges of a route with adapters in which the bare model was right: adapters know of no lengths."""
        if not case.adapters:
            return []
        ranged_cases = [replace(case, beyond=length_range.begin) for length_range in self.ranges]
        return [
            ranged_case
            for ranged_case in ranged_cases
            if self._agrees(replace(ranged_case, adapters=False))
        ]

    def _agrees(self, case: RouteCase) -> bool:
        return case in self.routes and self.routes[case] is None

    def _is_refused(self, case: RouteCase) -> bool:
        return self.routes.get(case) is not None

    def _remember(self, case: RouteCase, refusal: Refusal | None, rounding: float = 0.0) -> None:
        """Remember what was found of a case, for this model and for models built alike."""
        if case not in self.routes:
            self.routes[case] = refusal
            proof = {"agrees": refusal is None, "rounding": rounding}
            self.loaded.proof_cache.put(proof, *self._cache_key(case))

    def _record(self, case: RouteCase, facts: Facts) -> None:
        """Add how far a route is off to what results record of the model."""
        if not facts:
            return
        if case.fused:
            facts = {**facts, "form": ScoringLayers.FUSED.value}
        self.loaded.record.setdefault("scoring", {})[case.record_name] = facts

    def _cache_key(self, case: RouteCase) -> tuple[str, ...]:
        """Name what a proof holds for: models of this structure, with adapters of this kind."""
        adapter_kind = ""
        if case.adapters:
            bank = bank_on(self.network.model)
            if bank is not None:
                adapter_kind = f"{bank.lora.kind} {bank.lora.targets}"
        return self.loaded.structure, "scoring", str(case), adapter_kind

    # ---- comparing ------------------------------------------------------------------------------------------------

    def _check(self, cases: dict[Route, RouteCase], owners: set[int], trial: Trial) -> None:
        """Try routes for a range of lengths, once for the bare model and once for adapters."""
        first_case = next(iter(cases.values()))
        if first_case in self.routes:
            return
        new_cases = {route: case for route, case in cases.items() if case not in self.routes}
        roundings: list[float] = []  # of models built alike, where routes agree
        for case in new_cases.values():
            proof = self.loaded.proof_cache.get(*self._cache_key(case))
            if proof is not None and proof["agrees"]:
                roundings.append(float(proof["rounding"]))

        def compare() -> None:
            if len(roundings) == len(new_cases):
                self._check_few_rows(new_cases, owners, trial, max(roundings))
            if first_case not in self.routes:
                self._check_fully(new_cases, owners, trial)

        try:
            with spending("check"):
                with_room(self.network.device, compare)
        except Exception as error:  # a model may answer anything to inputs that it was not made for
            if out_of_memory(error):
                self.routes[first_case] = NO_MEMORY  # here and now: nothing to tell others
            else:
                self._remember(first_case, _refusal_from(error))

    def _check_fully(self, cases: dict[Route, RouteCase], owners: set[int], trial: Trial) -> None:
        """Compare what routes say with the reference, in float32 and then in the model's own 16 bits."""
        bare_cases = [replace(case, adapters=False) for case in cases.values()]
        brief = max(owners) >= 0 and all(self._agrees(case) for case in bare_cases)
        with self._open_stages(owners, brief=brief) as stages:
            precise, model_stage = stages.precise, stages.model_stage
            results = trial(precise)
            comparisons: dict[Route, RouteComparison] = {}
            for route in cases:
                if route in results:
                    comparisons[route] = _compare(
                        results[route], precise, copied=model_stage is not None
                    )
            agreeing = [route for route, result in comparisons.items() if result.refusal is None]
            if model_stage is not None and agreeing:
                fused_layers = model_stage.network.fused_layers
                with fused_layers.compared() if fused_layers is not None else nullcontext():
                    results = trial(model_stage)
                for route in agreeing:
                    if stages.has_all_blocks:
                        comparison = _compare_with_float32(results[route], precise, model_stage)
                    else:
                        comparison = _compare_in_16_bits(results[route], model_stage, rounding=0.0)
                    facts = comparisons[route].facts | comparison.facts
                    comparisons[route] = replace(comparison, facts=facts)
        for route, comparison in comparisons.items():
            self._record(cases[route], comparison.facts)
            self._remember(cases[route], comparison.refusal, comparison.reference_rounding)

    def _check_few_rows(
        self, cases: dict[Route, RouteCase], owners: set[int], trial: Trial, rounding: float
    ) -> None:
        """Compare a few rows in the model's own dtype: models of this structure are right, but weights differ.

        ``rounding`` is how far the reference of such a model was from float32.
        """
        with self._open_own_stage(owners, brief=True) as stage:
            results = trial(stage)
            for route, case in cases.items():
                if self.network.dtype in PRECISE_DTYPES:
                    comparison = _compare(results[route], stage, copied=False)
                else:
                    comparison = _compare_in_16_bits(results[route], stage, rounding=rounding)
                if comparison.refusal is not None:
                    reason = comparison.refusal.reason
                    log.debug("%s: %s on a few rows, so it is tried in full", case, reason)
                    return
                self._record(case, {**comparison.facts, "rows": FEW_ROWS_NOTE})
                self._remember(case, None, rounding)

    @contextmanager
    def _open_own_stage(self, owners: set[int], *, brief: bool) -> Iterator[Stage]:
        """Give the model itself, with adapters made up for a trial where adapters are asked for."""
        bank = None
        if max(owners) >= 0:
            bank = bank_on(self.network.model)
        if bank is None:
            yield Stage(self.network, sorted(owners)[:SLOTS], brief)
            return
        with bank.made_up_adapters(SLOTS) as count:
            yield Stage(self.network, [-1, *range(count)], brief)

    @contextmanager
    def _open_stages(self, owners: set[int], *, brief: bool) -> Iterator[StagePair]:
        """Give the float32 stage, and the model's own where that is another."""
        with ExitStack() as stack:
            float32_copy = stack.enter_context(open_float32_copy(self.network.model))
            model_stage = stack.enter_context(self._open_own_stage(owners, brief=brief))
            if not float32_copy.copied:
                yield StagePair(precise=model_stage, model_stage=None, has_all_blocks=True)
                return
            bank = None
            if max(owners) >= 0:
                bank = bank_on(self.network.model)
            copied_bank = None
            copied_owners = [-1]
            if bank is not None:
                copied_bank = AdapterBank(
                    float32_copy.model, bank.lora, len(model_stage.owners) - 1
                )
                stack.callback(copied_bank.close)
                copied_bank.make_up_adapters()
                copied_owners = model_stage.owners
            fused = self.network.fused_layers is not None
            with choosing(plain_operations()):
                network = Network(self._upcast(float32_copy.model), copied_bank, fused=fused)
            if fused and network.fused_layers is None:
                raise ValueError("a copy in float32 has layers of another kind")
            precise = Stage(network, copied_owners, brief)
            yield StagePair(precise, model_stage, has_all_blocks=float32_copy.whole)

    def _upcast(self, model: torch.nn.Module) -> LoadedModel:
        """Return the loaded model with a float32 copy in its place."""
        return replace(
            self.loaded,
            model=model,
            dtype=torch.float32,
            checks=type(self.loaded.checks)(),
            record={},
        )

    # ---- rows -----------------------------------------------------------------------------------------------------

    def _score_trial_rows(
        self, routes: Sequence[Route], texts: Sequence[Ids], length_range: LengthRange, stage: Stage
    ) -> TrialResult:
        """Score rows by the first route, and what is compared of them by the others too."""
        longest_row = length_range.longest_row
        trials = [(length_range.begin, longest_row, max(length_range.end, longest_row))]
        if stage.brief:
            trials = [(0, min(longest_row, FEW_ROWS_RANGE), FEW_ROWS_RANGE)]
        elif length_range.begin:  # short rows alone, as they come most often
            trials.append((0, SHORT_RANGE, SHORT_RANGE))
        results: TrialResult = {}
        row_count = 0
        for number, (begin, longest, max_tokens) in enumerate(trials):
            maker = self._row_maker(begin, longest, texts)
            if routes[0] == ScoringRoute.TREE:
                sequences = maker.make_branching_sequences(stage.owners, first_index=row_count)
            else:
                sequences = maker.make_plain_sequences(stage.owners, first_index=row_count)
            row_count += len(sequences)
            # short rows beside long ones were tried by all
            tried_routes = routes if number == 0 else routes[:1]
            for route in tried_routes:
                before = results.get(route, [])
                if isinstance(before, Refusal):
                    continue
                try:
                    measured = self._measure(route, sequences, begin, longest, max_tokens, stage)
                except Exception as error:
                    if out_of_memory(error):
                        raise
                    results[route] = _refusal_from(error)
                    continue
                results[route] = before + measured
                sequences = [sequence for sequence, _ in measured]
        return results

    def _measure(
        self,
        route: Route,
        sequences: Sequence[ScoredSequence],
        begin: int,
        row_tokens: int,
        max_tokens: int,
        stage: Stage,
    ) -> Measured:
        """Score rows of sequences, short beside long; returns what is compared of them."""
        shared = route == ScoringRoute.TREE
        rows = pack_sequences(sequences, row_tokens, share=shared, max_tokens=max_tokens)
        longest = max(len(row) for row in rows)
        if shared and begin and longest <= begin:
            raise ValueError(f"no row of the trial is longer than {begin} tokens")
        budget = len(rows) * longest
        if route == ScoringRoute.SINGLE:
            budget = 1
        logprobs: dict[int, list[float]] = {}
        for batch in group_rows(rows, budget, MASK_CELLS):
            results = stage.network.score_rows(batch)
            indices = results.sequences.tolist()
            for index, value in zip(indices, results.logprobs.tolist(), strict=True):
                logprobs.setdefault(index, []).append(value)
        count = COMPARED_OF_FEW if stage.brief else COMPARED
        compared = choose_compared(rows, count)
        return [(sequence, logprobs[sequence.index]) for sequence in compared]

    def _row_maker(self, begin: int, longest: int, texts: Sequence[Ids]) -> TrialRowMaker:
        range_ends = tuple(length_range.end for length_range in self.ranges)
        lengths = TrialLengths(begin, longest, range_ends, self.max_length)
        return TrialRowMaker(lengths, texts, self.network.vocabulary)

    def _write_trial_texts(
        self,
        route: Route,
        write: Write,
        texts: Sequence[Ids],
        length_range: LengthRange,
        stage: Stage,
    ) -> TrialResult:
        """Let prompts of several lengths be continued together, one leaving early, and each by the model itself."""
        if stage.brief:
            length_range = LengthRange(0, SHORT_RANGE)
        maker = self._row_maker(length_range.begin, length_range.longest_row, texts)
        sequences = maker.make_plain_sequences(stage.owners)
        if stage.brief:
            sequences = sequences[: 2 * COMPARED_OF_FEW]
        longest_prompt = max(1, self.max_length - NEW_TOKENS)
        drafts: list[Draft] = []
        for number, sequence in enumerate(sequences):
            draft = Draft(
                index=number,
                prompt=sequence.ids[:longest_prompt],
                stop=(),
                room=NEW_TOKENS - 3 * (number % 2),
                owner=sequence.owner,
                lookback=0,
            )
            drafts.append(draft)
        logprobs = write(stage.network, drafts)
        if stage.network.dtype in PRECISE_DTYPES:  # others may decide a near tie otherwise
            for draft in drafts[-2:]:
                own_tokens = stage.network.reference_tokens(draft.prompt, draft.room, draft.owner)
                if draft.written != own_tokens[: len(draft.written)]:
                    raise ValueError("the model itself continues a text otherwise")
        measured: Measured = []
        for draft, draft_logprobs in zip(drafts, logprobs, strict=True):
            count = len(draft.written)
            if count:
                ids = [*draft.prompt, *draft.written]
                sequence = ScoredSequence(draft.index, ids, scored=count, owner=draft.owner)
                measured.append((sequence, draft_logprobs[:count]))
        return {route: measured}


# ---- comparing ------------------------------------------------------------------------------------------------------


def _differences(values: Sequence[float], references: Sequence[float]) -> list[float]:
    return [value - reference for value, reference in zip(values, references, strict=True)]


def _compare(measured: Measured | Refusal, stage: Stage, *, copied: bool) -> RouteComparison:
    """Compare what a route says with the reference; ``copied``: in float32, of a model of 16 bits."""
    if isinstance(measured, Refusal):
        return RouteComparison(measured, {})
    dtype = stage.network.dtype
    precise = dtype in PRECISE_DTYPES
    largest_rounding = SMALL_ROUNDING if precise else math.inf
    largest = 0.0
    for sequence, logprobs in measured:
        expected = stage.reference(sequence)
        differences = _differences(logprobs, expected)
        largest = max(largest, *map(abs, differences))
        close = is_close(logprobs, expected, dtype)
        if close and not precise:
            close = root_mean_square(differences) <= 5 * SMALL_ROUNDING
        if close:
            continue
        own_rounding = _measure_own_rounding(stage.network, sequence, expected)
        allowed = OWN_ROUNDINGS * own_rounding
        if copied:
            allowed = max(allowed, UNNOTICED)
        if not root_mean_square(differences) <= min(allowed, largest_rounding):
            reason = (
                f"log-likelihood {sum(logprobs):.4f} where the reference path gives "
                f"{sum(expected):.4f}"
            )
            return RouteComparison(Refusal(reason), {})
    name = "off_by" if precise else "off_by_in_16_bits"
    facts: Facts = {name: _rounded(largest), "in": str(dtype).removeprefix("torch.")}
    return RouteComparison(None, facts)


def _measure_own_rounding(
    network: Network, sequence: ScoredSequence, expected: Sequence[float]
) -> float:
    """Return how far the model's own numbers move when the same text stands in a batch of three.

    Large logits and long texts round by more than a constant allows; to a model of 16 bits, of which this is a copy, a
    thirtieth of its rounding is nothing.
    """
    logprobs, _ = network.reference_logprobs(sequence, copies=3)
    return root_mean_square(_differences(logprobs.tolist(), expected))


def _chosen_in_16_bits(measured: Measured, *, brief: bool) -> Measured:
    """Return the sequences that are compared in 16 bits: every second one, of every route alike."""
    in_order = sorted(measured, key=lambda entry: entry[0].index)
    return in_order if brief else in_order[::2]


def _compare_with_float32(
    measured: Measured | Refusal, precise: Stage, model_stage: Stage
) -> RouteComparison:
    """Compare a route of 16 bits with float32's numbers, beside how far the reference of 16 bits is from them."""
    if isinstance(measured, Refusal):
        return RouteComparison(measured, {})
    differences: list[float] = []
    reference_differences: list[float] = []
    for sequence, logprobs in _chosen_in_16_bits(measured, brief=model_stage.brief):
        expected = precise.reference(sequence)
        differences += _differences(logprobs, expected)
        reference_differences += _differences(model_stage.reference(sequence), expected)
    off_by = root_mean_square(differences)
    reference_off_by = root_mean_square(reference_differences)
    facts: Facts = {
        "off_by_in_16_bits": _rounded(off_by),
        "reference_off_by": _rounded(reference_off_by),
    }
    if off_by <= OWN_ROUNDINGS * reference_off_by + SMALL_ROUNDING:
        return RouteComparison(None, facts)
    return RouteComparison(_refusal_in_16_bits(off_by, reference_off_by), facts)


def _compare_in_16_bits(
    measured: Measured | Refusal, model_stage: Stage, *, rounding: float
) -> RouteComparison:
    """Compare a route of 16 bits with the reference of 16 bits.

    ``rounding`` is how far references of this kind are from float32's: two that round by it differ by more.
    """
    if isinstance(measured, Refusal):
        return RouteComparison(measured, {})
    differences: list[float] = []
    for sequence, logprobs in _chosen_in_16_bits(measured, brief=model_stage.brief):
        differences += _differences(logprobs, model_stage.reference(sequence))
    off_by = root_mean_square(differences)
    facts: Facts = {"off_by_in_16_bits": _rounded(off_by)}
    if off_by <= max(5 * SMALL_ROUNDING, math.sqrt(2) * OWN_ROUNDINGS * rounding):
        return RouteComparison(None, facts)
    return RouteComparison(_refusal_in_16_bits(off_by, 0.0), facts)


def _refusal_in_16_bits(off_by: float, reference_off_by: float) -> Refusal:
    return Refusal(
        f"in 16 bits log-probabilities are off by {off_by:.3f}, "
        f"where the reference's are by {reference_off_by:.3f}"
    )


def _refusal_from(error: Exception) -> Refusal:
    message = str(error).strip()[:200]
    return Refusal(f"the model refuses it ({type(error).__name__}: {message})")


def _rounded(value: float) -> float:
    """Return a number with two digits, for the record."""
    return float(f"{value:.1e}")
