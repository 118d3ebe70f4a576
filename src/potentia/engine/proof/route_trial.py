"""Trials of scoring routes on one network: a model, or its float32 copy.

A trial scores made-up sequences (``trial_rows``), or writes texts, by a route and by the reference: the model's own
forward on one sequence at a time. Routes that are tried together share the sequences, so that the reference is computed
once. A sequence's *owner* is the slot of the adapter that it is scored with, or −1 for the bare model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from potentia.engine.layers.adapter_bank import AdapterBank, bank_on
from potentia.engine.layers.draft import Draft
from potentia.engine.layers.network import Network
from potentia.engine.layers.prefix_tree import ScoredSequence, group_rows, pack_sequences
from potentia.engine.models.device_layout import is_out_of_memory
from potentia.engine.models.float32_copy import open_trial_model
from potentia.engine.operations import choosing, plain_operations
from potentia.engine.proof.constants import TRIAL_SLOTS
from potentia.engine.proof.refusal import Refusal
from potentia.engine.proof.tolerance import is_full_precision
from potentia.engine.proof.trial_rows import TrialLengths, TrialRowMaker, choose_compared_sequences
from potentia.values.engine_records import EngineRecord
from potentia.values.scoring_route import ScoringRoute, WritingRoute

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel
    from potentia.engine.models.tokenization import Ids

UNBOUNDED = 1 << 60  # tokens: a length without limit
# tokens at which ranges of lengths end, beside those that a config names
RANGE_ENDS = (64, 256, 1024, 4096, 16384, 65536)
SHORT_RANGE = RANGE_ENDS[0]
FEW_ROWS_RANGE = RANGE_ENDS[1]
MASK_CELLS = 1 << 24  # of the attention masks of one batch of trial rows
NEW_TOKENS = 5  # that a trial writes after each prompt
COMPARED = 4  # sequences of long rows that are compared, as many of short ones, and one more of every owner
COMPARED_OF_FEW = 2  # the same where few rows are enough

Route = ScoringRoute | WritingRoute
# sequences with the log-probabilities that a route gave their scored tokens
MeasuredSequences = list[tuple[ScoredSequence, list[float]]]
TrialResult = dict[Route, MeasuredSequences | Refusal]
# writes drafts on, and returns the log-probabilities of the tokens that it wrote
Write = Callable[[Network, list[Draft]], list[list[float]]]


class LengthRange(NamedTuple):
    """A range of lengths of rows: more than ``begin`` tokens, up to ``end``."""

    begin: int
    end: int

    @property
    def longest_row(self) -> int:
        """The length of a trial's longest row: the end of the range, or a little past ``begin`` where it has no end."""
        if self.end == UNBOUNDED:
            return self.begin + max(SHORT_RANGE, self.begin // 4)
        return max(4, self.end)


class RowSizes(NamedTuple):
    """How sequences of a trial are packed into rows."""

    beyond: int  # tokens that the longest row has to exceed
    row_tokens: int  # that a row is filled up to
    max_tokens: int  # that no row exceeds


# ---- networks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialNetwork:
    """A network that routes are tried on: the model itself or its float32 copy, with adapters made up for the trial."""

    network: Network
    owners: list[int]  # of the trial's sequences
    few_rows: bool = False  # whether few rows are enough
    reference_cache: dict[tuple[int, ...], list[float]] = field(default_factory=dict)

    def reference_logprobs(self, sequence: ScoredSequence) -> list[float]:
        """Return the log-probabilities of a sequence's scored tokens by the model's own forward, computed once."""
        key = (sequence.owner, sequence.scored, *sequence.ids)
        if key not in self.reference_cache:
            logprobs, _ = self.network.reference_logprobs(sequence)
            self.reference_cache[key] = logprobs.tolist()
        return self.reference_cache[key]


@dataclass(frozen=True)
class TrialNetworks:
    """The networks that a full check tries routes on."""

    float32: TrialNetwork  # the float32 copy, or the model itself where it is precise already
    half: TrialNetwork | None  # the model itself where it is in 16 bits
    has_all_blocks: bool  # of the copy


@contextmanager
def open_model_itself(
    network: Network, owners: frozenset[int], *, few_rows: bool
) -> Iterator[TrialNetwork]:
    """Give the model itself for a trial; where adapters are scored, made-up ones stand in their slots meanwhile."""
    adapter_bank = None
    if max(owners) >= 0:
        adapter_bank = bank_on(network.model)
    if adapter_bank is None:
        yield TrialNetwork(network, sorted(owners)[:TRIAL_SLOTS], few_rows)
        return
    with adapter_bank.made_up_adapters(TRIAL_SLOTS) as count:
        yield TrialNetwork(network, [-1, *range(count)], few_rows)


@contextmanager
def open_trial_networks(
    network: Network, loaded: LoadedModel, owners: frozenset[int], *, few_rows: bool
) -> Iterator[TrialNetworks]:
    """Give the networks of a full check: a float32 copy beside the model itself, or the model alone."""
    with ExitStack() as stack:
        trial_model = stack.enter_context(open_trial_model(network.model))
        model_itself = stack.enter_context(open_model_itself(network, owners, few_rows=few_rows))
        if not trial_model.is_float32_copy:
            yield TrialNetworks(float32=model_itself, half=None, has_all_blocks=True)
            return
        adapter_bank = None
        if max(owners) >= 0:
            adapter_bank = bank_on(network.model)
        copied_bank = None
        copied_owners = [-1]
        if adapter_bank is not None:
            slots = len(model_itself.owners) - 1
            copied_bank = AdapterBank(trial_model.model, adapter_bank.lora, slots)
            stack.callback(copied_bank.close)
            copied_bank.make_up_adapters()
            copied_owners = model_itself.owners
        fused = network.fused_layers is not None
        with choosing(plain_operations()):
            loaded_copy = _replace_model(loaded, trial_model.model)
            copied_network = Network(loaded_copy, copied_bank, fused=fused)
        if fused and copied_network.fused_layers is None:
            raise ValueError("a copy in float32 has layers of another kind")
        float32 = TrialNetwork(copied_network, copied_owners, few_rows)
        yield TrialNetworks(float32, half=model_itself, has_all_blocks=trial_model.has_all_blocks)


def _replace_model(loaded: LoadedModel, float32_model: torch.nn.Module) -> LoadedModel:
    """Return a loaded model with its float32 copy in its place, and nothing checked yet."""
    return replace(
        loaded,
        model=float32_model,
        dtype=torch.float32,
        checks=type(loaded.checks)(),
        record=EngineRecord(),
    )


# ---- trials ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialTexts:
    """What trial sequences are made from: the tokens of real requests, and the ranges of lengths of a model."""

    request_ids: Sequence[Ids]
    ranges: Sequence[LengthRange]
    max_length: int  # tokens that the model reads

    def make_row_maker(self, seed: int, longest: int, vocabulary: int) -> TrialRowMaker:
        """Return what makes trial sequences of up to ``longest`` tokens."""
        lengths = TrialLengths(
            seed=seed,
            longest=longest,
            range_ends=tuple(length_range.end for length_range in self.ranges),
            max_length=self.max_length,
        )
        return TrialRowMaker(lengths, self.request_ids, vocabulary)


def score_trial_rows(
    routes: Sequence[Route],
    trial_texts: TrialTexts,
    length_range: LengthRange,
    trial_network: TrialNetwork,
) -> TrialResult:
    """Score trial rows by the first route, and the sequences compared of them by the other routes too.

    Rows of the range's length stand beside short ones. Short rows alone, which come most often, are a second trial, of
    the first route only.
    """
    results: TrialResult = {}
    sequence_count = 0
    for number, row_sizes in enumerate(_list_row_sizes(length_range, trial_network)):
        maker = trial_texts.make_row_maker(
            row_sizes.beyond, row_sizes.row_tokens, trial_network.network.vocabulary
        )
        if routes[0] == ScoringRoute.TREE:
            sequences = maker.make_branching_sequences(trial_network.owners, sequence_count)
        else:
            sequences = maker.make_plain_sequences(trial_network.owners, sequence_count)
        sequence_count += len(sequences)
        tried_routes = routes if number == 0 else routes[:1]
        for route in tried_routes:
            measured_before = results.get(route, [])
            if isinstance(measured_before, Refusal):
                continue
            try:
                measured = _measure_route(route, sequences, row_sizes, trial_network)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                results[route] = Refusal.from_error(error)
                continue
            results[route] = measured_before + measured
            sequences = [sequence for sequence, _ in measured]
    return results


def _list_row_sizes(length_range: LengthRange, trial_network: TrialNetwork) -> list[RowSizes]:
    """List the sizes of the rows of a trial: of the range, and of short rows alone."""
    longest_row = length_range.longest_row
    if trial_network.few_rows:
        row_tokens = min(longest_row, FEW_ROWS_RANGE)
        return [RowSizes(beyond=0, row_tokens=row_tokens, max_tokens=FEW_ROWS_RANGE)]
    row_sizes = RowSizes(
        beyond=length_range.begin,
        row_tokens=longest_row,
        max_tokens=max(length_range.end, longest_row),
    )
    if not length_range.begin:
        return [row_sizes]
    return [row_sizes, RowSizes(beyond=0, row_tokens=SHORT_RANGE, max_tokens=SHORT_RANGE)]


def _measure_route(
    route: Route,
    sequences: Sequence[ScoredSequence],
    row_sizes: RowSizes,
    trial_network: TrialNetwork,
) -> MeasuredSequences:
    """Score sequences, packed into rows, by a route; return those to compare, with their log-probabilities."""
    shares_beginnings = route == ScoringRoute.TREE
    rows = pack_sequences(
        sequences,
        row_sizes.row_tokens,
        share=shares_beginnings,
        max_tokens=row_sizes.max_tokens,
    )
    longest = max(len(row) for row in rows)
    if shares_beginnings and row_sizes.beyond and longest <= row_sizes.beyond:
        raise ValueError(f"no row of the trial is longer than {row_sizes.beyond} tokens")
    batch_tokens = len(rows) * longest
    if route == ScoringRoute.SINGLE:
        batch_tokens = 1
    logprobs: dict[int, list[float]] = {}
    for batch in group_rows(rows, batch_tokens, MASK_CELLS):
        results = trial_network.network.score_rows(batch)
        indices = results.requests.tolist()
        for index, value in zip(indices, results.logprobs.tolist(), strict=True):
            logprobs.setdefault(index, []).append(value)
    count = COMPARED_OF_FEW if trial_network.few_rows else COMPARED
    compared = choose_compared_sequences(rows, count)
    return [(sequence, logprobs[sequence.index]) for sequence in compared]


def write_trial_texts(
    route: Route,
    write: Write,
    trial_texts: TrialTexts,
    length_range: LengthRange,
    trial_network: TrialNetwork,
) -> TrialResult:
    """Write on after prompts of several lengths together; every second text ends early.

    Return the log-probabilities of what was written. In full precision the last two texts must also be those that the
    model itself writes; elsewhere near ties may be decided differently.
    """
    if trial_network.few_rows:
        length_range = LengthRange(0, SHORT_RANGE)
    network = trial_network.network
    maker = trial_texts.make_row_maker(
        length_range.begin, length_range.longest_row, network.vocabulary
    )
    sequences = maker.make_plain_sequences(trial_network.owners)
    if trial_network.few_rows:
        sequences = sequences[: 2 * COMPARED_OF_FEW]
    longest_prompt = max(1, trial_texts.max_length - NEW_TOKENS)
    drafts: list[Draft] = []
    for number, sequence in enumerate(sequences):
        draft = Draft(
            index=number,
            prompt=sequence.ids[:longest_prompt],
            stop=(),
            max_new_tokens=NEW_TOKENS - 3 * (number % 2),
            owner=sequence.owner,
            lookback=0,
        )
        drafts.append(draft)
    logprobs = write(network, drafts)
    if is_full_precision(network.dtype):
        _compare_texts(drafts[-2:], network)
    measured: MeasuredSequences = []
    for draft, draft_logprobs in zip(drafts, logprobs, strict=True):
        count = len(draft.written)
        if count:
            token_ids = [*draft.prompt, *draft.written]
            sequence = ScoredSequence(draft.index, token_ids, scored=count, owner=draft.owner)
            measured.append((sequence, draft_logprobs[:count]))
    return {route: measured}


def _compare_texts(drafts: Sequence[Draft], network: Network) -> None:
    """Raise an error where a text is not the one that the model itself writes."""
    for draft in drafts:
        reference_tokens = network.reference_tokens(draft.prompt, draft.max_new_tokens, draft.owner)
        if draft.written != reference_tokens[: len(draft.written)]:
            raise ValueError("the model itself continues a text differently")
