"""The check of fast scoring routes: one is used only after it gave the reference's numbers on realistic inputs.

A route is a way through the model: requests that share their beginnings (``TREE``), rows side by side (``PADDED``), or
loops that write texts. The reference is the model's own forward on one sequence at a time.

**Lengths.** Routes are tried on made-up rows, long beside short, with requests of several adapters where adapters are
scored (``route_trial``). What holds for short rows need not hold for longer ones, since a model may have a window that
no config names. So a route is trusted up to a length. It is tried at the far end of the lengths that are needed, on
rows of every shorter range and on short rows alone; where that fails, range by range from the shortest. ``PADDED`` is
tried together with ``TREE`` on the same rows, fused layers (``scoring_layers``) before the model's own.

**Steps.** Each route climbs the ``ladder`` of proof in each such case. A few rows are enough for adapters where the
bare model was right, and for a model where another one of the same structure was right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from potentia.engine.layers.adapter_bank import bank_on
from potentia.engine.layers.draft import Draft
from potentia.engine.layers.network import Network, find_windows
from potentia.engine.layers.prefix_tree import ScoredSequence
from potentia.engine.models.admission import check_predictions
from potentia.engine.models.device_layout import retry_with_freed_memory
from potentia.engine.proof.ladder import climb_ladder
from potentia.engine.proof.refusal import Refusal, RefusalCause
from potentia.engine.proof.route_comparison import (
    compare_in_16_bits,
    compare_in_one_dtype,
    compare_with_float32,
)
from potentia.engine.proof.route_trial import (
    RANGE_ENDS,
    UNBOUNDED,
    LengthRange,
    Route,
    TrialNetwork,
    TrialNetworks,
    TrialResult,
    TrialTexts,
    Write,
    open_model_itself,
    open_trial_networks,
    score_trial_rows,
    write_trial_texts,
)
from potentia.engine.proof.tolerance import is_full_precision
from potentia.timing import spending
from potentia.values.engine_records import RouteRecord
from potentia.values.scoring_route import ScoringLayers, ScoringRoute, WritingRoute

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel

Trial = Callable[[TrialNetwork], TrialResult]
LengthTrial = Callable[[LengthRange, TrialNetwork], TrialResult]

_WORDS_OF_ROUTES: dict[Route, str] = {
    ScoringRoute.TREE: "scoring by shared beginnings",
    ScoringRoute.PADDED: "scoring in batches",
    ScoringRoute.SINGLE: "scoring row by row",
    WritingRoute.LOOP: "writing in batches",
    WritingRoute.SEATS: "writing in seats",
}


@dataclass(frozen=True)
class RouteCase:
    """A case in which a route is checked by itself: a range of lengths, with or without adapters and fused layers."""

    route: Route
    beyond: int = 0  # the rows of the range are longer than so many tokens
    adapters: bool = False
    fused: bool = False

    def key(self) -> tuple[str, ...]:
        """The parts of the key under which the proof of this case is shared."""
        return self.route.name, str(self.beyond), str(self.adapters), str(self.fused)

    def make_record(self) -> RouteRecord:
        """Make the record of this case, without distances yet."""
        return RouteRecord(
            route=self.route.value,
            beyond=self.beyond,
            adapters=self.adapters,
            layers=ScoringLayers.FUSED if self.fused else ScoringLayers.OWN,
        )

    def describe_refusal(self, refusal: Refusal) -> str:
        """Return a sentence saying that the route is not used in this case, and why."""
        subject = _WORDS_OF_ROUTES[self.route]
        if self.fused:
            subject += " with hand-written layers"
        condition = ""
        if self.adapters:
            condition += " with adapters"
        if self.beyond:
            condition += f" beyond {self.beyond} tokens"
        return f"{subject} is not used{condition}: {refusal.reason}"


class RouteProof(NamedTuple):
    """What the proof cache knows of a case: models of the same structure share it."""

    agrees: bool
    rounding: float  # how far the reference in 16 bits was from float32


@dataclass(frozen=True)
class TriedRoutes:
    """Routes that are tried together on the same rows: the first one decides, the others save trials of their own."""

    routes: tuple[Route, ...]
    owners: frozenset[int]  # of the real requests
    fused: bool
    trial: LengthTrial

    @property
    def with_adapters(self) -> bool:
        """Whether some requests belong to adapters."""
        return max(self.owners) >= 0

    def list_cases(self, length_range: LengthRange) -> list[RouteCase]:
        """List the cases of the routes in a range of lengths, the first route's first."""
        return [
            RouteCase(route, length_range.begin, self.with_adapters, self.fused)
            for route in self.routes
        ]


class ScoringCheck:
    """Checks the routes of one model, each case once; results are kept with the model and shared with those like it."""

    def __init__(self, network: Network, loaded: LoadedModel) -> None:
        self.network = network
        self.loaded = loaded
        self.routes = loaded.checks.routes
        self.max_length = loaded.max_length
        windows = find_windows(network.config, self.max_length)
        fixed_ends = [end for end in RANGE_ENDS if end < self.max_length]
        ends = sorted({*fixed_ends, *windows, self.max_length})
        # the last range has no end: a row of many branches may be longer than any text that the model reads
        bounds = [0, *ends, UNBOUNDED]
        self.ranges = [LengthRange(begin, end) for begin, end in pairwise(bounds)]

    def settle_route(
        self, route: ScoringRoute, longest: int, sequences: Sequence[ScoredSequence]
    ) -> int:
        """Return how long the rows may be that a route scores, checking it for rows of up to ``longest`` tokens.

        Fused layers are used at all lengths or not at all: where they are not right up to ``longest``, the network
        loses them for good, and the route is checked with the model's own layers. ``sequences`` are the real requests.
        """
        self._check_predictions()
        obstacle = self.network.tree_obstacle
        if route == ScoringRoute.TREE and obstacle is not None:
            self.routes.setdefault(RouteCase(ScoringRoute.TREE), Refusal(obstacle))
            return 0
        routes: tuple[Route, ...] = (route,)
        if route == ScoringRoute.TREE:
            # what a tree does not take is scored by padded rows next: trying both at once saves a trial
            routes = (ScoringRoute.TREE, ScoringRoute.PADDED)
        trial_texts = self._make_trial_texts([sequence.ids for sequence in sequences])
        tried = TriedRoutes(
            routes,
            owners=frozenset(sequence.owner for sequence in sequences),
            fused=True,
            trial=partial(score_trial_rows, routes, trial_texts),
        )
        fused_layers = self.network.fused_layers
        may_be_fused = fused_layers is not None and fused_layers.is_unaltered
        if may_be_fused and self._agree_in_all_ranges(tried, longest):
            return UNBOUNDED
        self.network.fused_layers = None
        return self._find_trusted_length(replace(tried, fused=False), longest)

    def can_write(
        self, longest: int, drafts: Sequence[Draft], write: Write, route: WritingRoute
    ) -> bool:
        """Whether a route may write texts of up to ``longest`` tokens, prompt included; checks it if need be."""
        self._check_predictions()
        trial_texts = self._make_trial_texts([draft.prompt for draft in drafts])
        tried = TriedRoutes(
            (route,),
            owners=frozenset(draft.owner for draft in drafts),
            fused=False,
            trial=partial(write_trial_texts, route, write, trial_texts),
        )
        return self._find_trusted_length(tried, longest) == UNBOUNDED

    def describe_refusals(self) -> Iterator[str]:
        """Yield a sentence for every case in which a route is not used."""
        for route_case, refusal in self.routes.items():
            if refusal is not None:
                yield route_case.describe_refusal(refusal)

    def _check_predictions(self) -> None:
        """Refuse a model that is not causal, unless that was checked when it was loaded."""
        if not self.loaded.checks.predictions:
            self.network.route([-1])
            check_predictions(self.network.model, self.loaded.tokenizer)
            self.loaded.checks.predictions = True

    def _make_trial_texts(self, request_ids: Sequence[list[int]]) -> TrialTexts:
        return TrialTexts(request_ids, self.ranges, self.max_length)

    # ---- lengths --------------------------------------------------------------------------------------------------

    def _find_trusted_length(self, tried: TriedRoutes, longest: int) -> int:
        """Return the length up to which the first of some routes is right."""
        if self._agree_in_all_ranges(tried, longest):
            return UNBOUNDED
        for length_range in self._list_ranges(longest):
            cases = tried.list_cases(length_range)
            self._check_cases(cases, tried, length_range)
            if not self._agrees(cases[0]):
                return length_range.begin
        return UNBOUNDED

    def _agree_in_all_ranges(self, tried: TriedRoutes, longest: int) -> bool:
        """Whether the first of some routes is right for rows of up to ``longest`` tokens.

        One trial at the far end of the lengths proves all shorter ranges at once. It is left out if the route was
        refused in one of these before.
        """
        ranges = self._list_ranges(longest)
        for length_range in ranges:
            if self.routes.get(tried.list_cases(length_range)[0]) is not None:
                return False
        farthest_cases = tried.list_cases(ranges[-1])
        self._check_cases(farthest_cases, tried, ranges[-1])
        for farthest_case in farthest_cases:
            if self._agrees(farthest_case):
                for length_range in self._list_proved_ranges(farthest_case, ranges):
                    self._remember(replace(farthest_case, beyond=length_range.begin), None)
        return self._agrees(farthest_cases[0])

    def _list_ranges(self, longest: int) -> list[LengthRange]:
        return [length_range for length_range in self.ranges if length_range.begin < longest]

    def _list_proved_ranges(
        self, proved_case: RouteCase, ranges: Sequence[LengthRange]
    ) -> list[LengthRange]:
        """List the ranges in which a route is right that is right in the farthest of ``ranges``.

        With adapters these are also the ranges in which the bare model was right: adapters do not depend on the length.
        """
        proved_ranges = list(ranges)
        if proved_case.adapters:
            for length_range in self.ranges:
                bare_case = replace(proved_case, beyond=length_range.begin, adapters=False)
                if self._agrees(bare_case):
                    proved_ranges.append(length_range)
        return proved_ranges

    # ---- results --------------------------------------------------------------------------------------------------

    def _agrees(self, route_case: RouteCase) -> bool:
        """Whether a case was checked and agreed with the reference."""
        return route_case in self.routes and self.routes[route_case] is None

    def _remember(
        self, route_case: RouteCase, refusal: Refusal | None, rounding: float = 0.0
    ) -> None:
        """Remember the result of a case, for this model and for models of the same structure.

        ``rounding`` is how far the reference in 16 bits was from float32.
        """
        if route_case not in self.routes:
            self.routes[route_case] = refusal
            proof = RouteProof(refusal is None, rounding)
            self.loaded.proof_cache.put(proof._asdict(), *self._cache_key(route_case))

    def _read_proof(self, route_case: RouteCase) -> RouteProof | None:
        """Return what is known of a case from models of the same structure, or None."""
        known = self.loaded.proof_cache.get(*self._cache_key(route_case))
        return None if known is None else RouteProof(**known)

    def _cache_key(self, route_case: RouteCase) -> tuple[str, ...]:
        """Return what a proof holds for: models of this structure, with adapters of this kind."""
        adapter_kind = ""
        if route_case.adapters:
            adapter_bank = bank_on(self.network.model)
            if adapter_bank is not None:
                adapter_kind = f"{adapter_bank.lora.kind} {adapter_bank.lora.targets}"
        return self.loaded.structure, "scoring", *route_case.key(), adapter_kind

    # ---- checking -------------------------------------------------------------------------------------------------

    def _check_cases(
        self, cases: Sequence[RouteCase], tried: TriedRoutes, length_range: LengthRange
    ) -> None:
        """Check routes in one case each, unless the first was checked before; an error refuses the first."""
        if cases[0] in self.routes:
            return
        new_cases = [case for case in cases if case not in self.routes]

        def check() -> None:
            trials = _RouteTrials(
                self.network,
                self.loaded,
                tried.owners,
                partial(tried.trial, length_range),
                are_bare_ones_right=tried.with_adapters
                and all(self._agrees(replace(case, adapters=False)) for case in new_cases),
            )
            with trials:
                for route_case in new_cases:
                    if route_case not in self.routes:
                        self._check_case(route_case, trials)

        # when memory runs out `check` is called again: cases that it has settled stay settled
        try:
            with spending("check"):
                retry_with_freed_memory(self.network.device, check)
        except Exception as error:  # a model may raise anything on inputs that it was not made for
            refusal = Refusal.from_error(error)
            if refusal.cause is RefusalCause.NO_MEMORY:
                self.routes[cases[0]] = refusal  # not shared: other processes may have the memory
            else:
                self._remember(cases[0], refusal)

    def _check_case(self, route_case: RouteCase, trials: _RouteTrials) -> None:
        """Let a route climb the ladder of proof in one case; record and remember the result."""
        proof = self._read_proof(route_case)
        path = _RoutePath(route_case, trials, proof)
        refusal = climb_ladder(path, was_proved=proof is not None and proof.agrees)
        if path.record != route_case.make_record():
            self.loaded.record = self.loaded.record.with_route(path.record)
        self._remember(route_case, refusal, path.rounding)


class _RouteTrials:
    """The trials of routes on the networks of one model, each made when it is needed, with the same rows.

    ``are_bare_ones_right`` says that adapters are scored, and that the routes were right for the bare model.
    """

    def __init__(
        self,
        network: Network,
        loaded: LoadedModel,
        owners: frozenset[int],
        trial: Trial,
        *,
        are_bare_ones_right: bool,
    ) -> None:
        self.network = network
        self.loaded = loaded
        self.owners = owners
        self.trial = trial
        self.are_bare_ones_right = are_bare_ones_right
        self._stack = ExitStack()

    def __enter__(self) -> _RouteTrials:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def few_rows_network(self) -> TrialNetwork:
        """The model itself, for a trial of a few rows."""
        model_itself = open_model_itself(self.network, self.owners, few_rows=True)
        return self._stack.enter_context(model_itself)

    @cached_property
    def few_rows_results(self) -> TrialResult:
        """What the routes computed of a few rows."""
        return self.trial(self.few_rows_network)

    @cached_property
    def networks(self) -> TrialNetworks:
        """The networks of a full check; few rows are enough for adapters where the bare model was right."""
        networks = open_trial_networks(
            self.network, self.loaded, self.owners, few_rows=self.are_bare_ones_right
        )
        return self._stack.enter_context(networks)

    @cached_property
    def float32_results(self) -> TrialResult:
        """What the routes computed in float32."""
        return self.trial(self.networks.float32)

    @cached_property
    def half_results(self) -> TrialResult:
        """What the routes computed on the model itself in 16 bits; kernels are compared with plain operations."""
        assert self.networks.half is not None
        fused_layers = self.networks.half.network.fused_layers
        with fused_layers.compared() if fused_layers is not None else nullcontext():
            return self.trial(self.networks.half)


class _RoutePath:
    """A scoring route in one case on the ladder of proof, with what results record of it."""

    def __init__(
        self, route_case: RouteCase, trials: _RouteTrials, proof: RouteProof | None
    ) -> None:
        self.case = route_case
        self.trials = trials
        self.proof = proof
        self.record = route_case.make_record()

    def __str__(self) -> str:
        return str(self.case)

    @property
    def is_in_16_bits(self) -> bool:
        """Whether the model is in 16 bits and has a float32 copy."""
        return self.trials.networks.half is not None

    @property
    def rounding(self) -> float:
        """How far the reference in 16 bits is from float32: of this model, or of one like it; 0 where unknown."""
        if self.record.reference_off_by is not None:
            return self.record.reference_off_by
        return 0.0 if self.proof is None else self.proof.rounding

    def compare_few_rows(self) -> Refusal | None:
        """Compare on a few rows, in the model's own dtype."""
        measured = self.trials.few_rows_results[self.case.route]
        network = self.trials.few_rows_network
        if is_full_precision(network.network.dtype):
            comparison = compare_in_one_dtype(measured, network, self.record, is_float32_copy=False)
        else:
            comparison = compare_in_16_bits(measured, network, self.record, rounding=self.rounding)
        if comparison.refusal is None:
            self.record = replace(comparison.record, few_rows=True)
        return comparison.refusal

    def compare_in_float32(self, draw_number: int) -> Refusal | None:
        """Compare in float32, or in the model's own precision where it has no float32 copy."""
        measured = self.trials.float32_results[self.case.route]
        comparison = compare_in_one_dtype(
            measured, self.trials.networks.float32, self.record, is_float32_copy=self.is_in_16_bits
        )
        self.record = comparison.record
        return comparison.refusal

    def compare_in_16_bits(self, draw_number: int) -> Refusal | None:
        """Compare the model itself, in 16 bits."""
        networks = self.trials.networks
        assert networks.half is not None
        measured = self.trials.half_results[self.case.route]
        if networks.has_all_blocks:
            comparison = compare_with_float32(
                measured, networks.float32, networks.half, self.record
            )
        else:
            comparison = compare_in_16_bits(measured, networks.half, self.record, rounding=0.0)
        self.record = comparison.record
        return comparison.refusal
