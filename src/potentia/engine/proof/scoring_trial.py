"""Trials: a fast path is taken only after it gave the reference path's numbers on inputs like the real ones.

The reference is the model's own forward on one sequence at a time. Paths are tried on made-up rows, long beside short,
with requests of several adapters where adapters are scored, in float32 (on an upcast copy of a model of 16 bits, see
``twin``), where a wrong mask is a thousand times what rounding is. In 16 bits a path may then be three times as far
from float32's numbers as the reference is. What holds for short rows need not hold beyond: a model may have a window
that no config names. So a path is trusted up to a length: it is tried at the far end of the range that is asked for, on
rows of every range below and on short rows alone; where that fails, range by range from the shortest. Padded rows are
tried together with shared beginnings, on the same texts; layers written out by hand (``by_hand``) before the model's
own. A few rows are enough for adapters where the bare model was right, and, in its own dtype, where a model of the same
structure was.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from potentia.engine.models.admission import check_predictions
from potentia.engine.models.device_layout import out_of_memory, with_room
from potentia.engine.models.float32_copy import twin
from potentia.engine.operations import choosing, plain_operations
from potentia.engine.proof.scoring_tolerance import (
    OWN_ROUNDINGS,
    PRECISE_DTYPES,
    SMALL_ROUNDING,
    UNNOTICED,
    is_close,
    root_mean_square,
)
from potentia.engine.scoring.generate import Draft
from potentia.engine.scoring.network import (
    HAND,
    Network,
    Strand,
    batches,
    horizons,
    plant,
    telling,
    token_pool,
)
from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel
    from potentia.engine.models.tokenization import Ids

log = logging.getLogger(__name__)

UNBOUNDED = 1 << 60
RANGES = (
    64,
    256,
    1024,
    4096,
    16384,
    65536,
)  # lengths up to which a path is tried, beside those that a config names
MASK_CELLS = 1 << 24
NEW_TOKENS = 5
COMPARED = 4  # strands of long rows, and of short ones, each computed by itself, and one more of every owner
FEW = 2  # the same where structure is known
READ = 64  # last tokens of a long text that are compared: what lies before them is in them
SLOTS = 3  # adapters that requests of a trial are shared out among, beside the bare model

Found = list[tuple[Strand, list[float]]]  # what a path says of strands' scored tokens
Write = Callable[[Network, list[Draft]], list[list[float]]]
Judged = tuple[str | None, dict[str, Any]]  # what is wrong, or None, and how far it is off
Told = dict[str, Found | str]  # by path, or why it is refused
Tried = Callable[["_Stage"], Told]
TUNED, BY_HAND = " with adapters", " by hand"
AGREES, _REFUSED = "agrees", "the model refuses it ({}: {})"


@dataclass(frozen=True)
class _Stage:
    """A network to try a path on, and whose requests; ``few`` rows where structure is known."""

    network: Network
    owners: list[int]
    few: bool = False
    known: dict[tuple[int, ...], list[float]] = field(default_factory=dict)

    def reference(self, strand: Strand) -> list[float]:
        """Return what the model itself says of a strand's scored tokens, computed once."""
        key = (strand.owner, *strand.ids)
        if key not in self.known:
            self.known[key] = self.network.own_logprobs(strand)[0].tolist()
        return self.known[key]


class Trials:
    """What was tried on one model, remembered with it in ``checked``: "agrees" or what was wrong."""

    def __init__(self, network: Network, loaded: LoadedModel) -> None:
        self.network, self.loaded, self.checked = network, loaded, loaded.checked
        self.max_length = most = loaded.max_length
        ends = {*(end for end in RANGES if end < most), *horizons(network.config, most), most}
        # a row of many branches may be wider than any text that the model reads
        self.ranges = list(zip([0, *sorted(ends)], [*sorted(ends), UNBOUNDED], strict=True))

    def limit(self, path: str, longest: int, like: Sequence[Strand]) -> int:
        """Return the length up to which a path may be used, trying no further than rows of ``longest`` tokens."""
        self._sound()
        if path == "tree" and self.network.tree_obstacle is not None:
            self.checked.setdefault("tree", self.network.tree_obstacle)
            return 0
        paths = ("tree", "plain") if path == "tree" else (path,)
        owners, trial = (
            {strand.owner for strand in like},
            partial(self._score, paths, [strand.ids for strand in like]),
        )
        hand = self.network.by_hand
        if (
            hand is not None
            and hand.usable
            and self._reach(paths, longest, owners, trial, BY_HAND) == UNBOUNDED
        ):
            return UNBOUNDED
        self.network.by_hand = None
        return self._reach(paths, longest, owners, trial)

    def may_write(
        self, longest: int, like: Sequence[Draft], write: Write, way: str = "writing"
    ) -> bool:
        """Say whether a loop may write texts of ``longest`` tokens, prompt and answer together."""
        self._sound()
        trial = partial(self._write, way, write, [draft.prompt for draft in like])
        return self._reach((way,), longest, {draft.owner for draft in like}, trial) == UNBOUNDED

    def _reach(
        self,
        paths: Sequence[str],
        longest: int,
        owners: set[int],
        trial: Callable[..., Told],
        form: str = "",
    ) -> int:
        """Return the length up to which the first path is trusted, tried once at the far end if nothing is against it.

        The others are tried with it. Hand-written layers are trusted at all lengths or not at all.
        """
        asked = [(begin, end) for begin, end in self.ranges if begin < longest]
        names = {path: [_name(path + form, begin, owners) for begin, _ in asked] for path in paths}
        wanted = names[paths[0]]
        if all(self.checked.get(name, AGREES) == AGREES for name in wanted):
            self._try(
                {path: told[-1] for path, told in names.items()}, owners, partial(trial, *asked[-1])
            )
            for path, told in names.items():
                if self.checked.get(told[-1]) == AGREES:
                    for name in [*told, *self._bare(path + form, owners)]:
                        self._note(name, AGREES)
            if self.checked[wanted[-1]] == AGREES:
                return UNBOUNDED
        if form:
            return 0
        for place, (begin, end) in enumerate(asked):
            self._try(
                {path: told[place] for path, told in names.items()},
                owners,
                partial(trial, begin, end),
            )
            if self.checked[wanted[place]] != AGREES:
                return begin
        return UNBOUNDED

    def _bare(self, path: str, owners: set[int]) -> list[str]:
        """Name the ranges of a path with adapters that the bare model was right in: adapters know of no lengths."""
        if max(owners) < 0:
            return []
        right = [
            begin
            for begin, _ in self.ranges
            if self.checked.get(_name(path, begin, {-1})) == AGREES
        ]
        return [_name(path, begin, owners) for begin in right]

    def failures(self) -> Iterator[str]:
        """Tell what is not used, and why."""
        for name, told in self.checked.items():
            if told != AGREES:
                yield (
                    f"the {name} path is not used: {told}"
                    if " " not in name
                    else f"not used: {name}: {told}"
                )

    def _sound(self) -> None:
        """Refuse what is no causal model, where it was not refused when it was loaded."""
        if "predictions" not in self.checked:
            self.network.route([-1])
            check_predictions(self.network.model, self.loaded.tokenizer)
            self.checked["predictions"] = AGREES

    def _note(self, name: str, verdict: str, rounding: float = 0.0) -> None:
        if name not in self.checked:
            self.checked[name] = verdict
            self.loaded.verdicts.put({"verdict": verdict, "rounding": rounding}, *self._place(name))

    def _record(self, name: str, facts: dict[str, Any]) -> None:
        if facts:
            form = {"form": HAND} if BY_HAND in name else {}
            self.loaded.record.setdefault("scoring", {})[name.replace(BY_HAND, "")] = facts | form

    def _place(self, name: str) -> tuple[str, ...]:
        """Name what a verdict holds for: models of this structure, with adapters of this kind."""
        from potentia.engine.layers.adapter_bank import bank_on

        bank = bank_on(self.network.model) if name.endswith(TUNED) else None
        adapters = f"{bank.lora.kind} {bank.lora.targets}" if bank is not None else ""
        return self.loaded.structure, "scoring", name, adapters

    # ---- judging --------------------------------------------------------------------------------------------------

    def _try(self, names: dict[str, str], owners: set[int], trial: Tried) -> None:
        """Try paths for a range of lengths, once for the bare model and once for adapters."""
        first = next(iter(names.values()))
        if first in self.checked:
            return
        names = {path: name for path, name in names.items() if name not in self.checked}
        alike = [self.loaded.verdicts.get(*self._place(name)) for name in names.values()]
        told = [found for found in alike if found is not None and found["verdict"] == AGREES]

        def judge() -> None:
            if len(told) == len(names):
                self._judge_lightly(names, owners, trial, max(found["rounding"] for found in told))
            if first not in self.checked:
                self._judge(names, owners, trial)

        try:
            with spending("check"):
                with_room(self.network.device, judge)
        except Exception as error:  # a model may answer anything to inputs that it was not made for
            if out_of_memory(error):
                self.checked[first] = "no memory to try it"  # here and now: nothing to tell others
            else:
                self._note(first, _REFUSED.format(type(error).__name__, str(error).strip()[:200]))

    def _judge(self, names: dict[str, str], owners: set[int], trial: Tried) -> None:
        """Compare what paths say with the reference, in float32 and then in the model's own 16 bits."""
        bare = {
            self.checked.get(name.removesuffix(TUNED))
            for name in names.values()
            if max(owners) >= 0
        }
        with self._stages(owners, few=bare == {AGREES}) as (judge, own, whole):
            found = trial(judge)
            judged = {
                path: _wrong(found[path], judge, copied=own is not None)
                for path in names
                if path in found
            }
            right = [path for path, (wrong, _) in judged.items() if wrong is None]
            if own is not None and right:
                hand = own.network.by_hand
                with hand.compared() if hand is not None else nullcontext():
                    found = trial(own)
                for path in right:
                    wrong, more = _wrong_in_few_bits(found[path], judge, own, whole=whole)
                    judged[path] = wrong, judged[path][1] | more
        for path, (wrong, facts) in judged.items():
            self._record(names[path], facts)
            self._note(names[path], wrong or AGREES, facts.get("reference_off_by", 0.0))

    def _judge_lightly(
        self, names: dict[str, str], owners: set[int], trial: Tried, rounding: float
    ) -> None:
        """Compare a few rows in the model's own dtype: models of this structure are right, but weights differ.

        ``rounding`` is how far the reference of such a model was from float32.
        """
        with self._own_stage(owners, few=True) as stage:
            found = trial(stage)
            for path, name in names.items():
                if self.network.dtype in PRECISE_DTYPES:
                    wrong, facts = _wrong(found[path], stage, copied=False)
                else:
                    wrong, facts = _wrong_in_few_bits(
                        found[path], stage, stage, whole=False, rounding=rounding
                    )
                if wrong is not None:
                    log.debug("%s: %s on a few rows, so it is tried in full", name, wrong)
                    return
                self._record(name, facts | {"rows": "few: its structure is known"})
                self._note(name, AGREES, rounding)

    @contextmanager
    def _own_stage(self, owners: set[int], *, few: bool) -> Iterator[_Stage]:
        """Give the model itself, with adapters made up for a trial where adapters are asked for."""
        from potentia.engine.layers.adapter_bank import bank_on

        bank = bank_on(self.network.model) if max(owners) >= 0 else None
        if bank is None:
            yield _Stage(self.network, sorted(owners)[:SLOTS], few)
            return
        with bank.made_up_adapters(SLOTS) as count:
            yield _Stage(self.network, [-1, *range(count)], few)

    @contextmanager
    def _stages(
        self, owners: set[int], *, few: bool
    ) -> Iterator[tuple[_Stage, _Stage | None, bool]]:
        """Give the float32 stage, the model's own where that is another, and whether the first is the whole model."""
        from potentia.engine.layers.adapter_bank import AdapterBank, bank_on

        with ExitStack() as stack:
            judge = stack.enter_context(twin(self.network.model))
            own = stack.enter_context(self._own_stage(owners, few=few))
            if not judge.copied:
                yield own, None, True
                return
            bank = bank_on(self.network.model) if max(owners) >= 0 else None
            copied = None
            if bank is not None:
                copied = AdapterBank(judge.model, bank.lora, len(own.owners) - 1)
                stack.callback(copied.close)
                copied.make_up_adapters()
            upcast = replace(
                self.loaded, model=judge.model, dtype=torch.float32, checked={}, record={}
            )
            with choosing(plain_operations()):
                network = Network(upcast, copied, by_hand=self.network.by_hand is not None)
            if self.network.by_hand is not None and network.by_hand is None:
                raise ValueError("a copy in float32 has layers of another kind")
            yield _Stage(network, own.owners if bank is not None else [-1], few), own, judge.whole

    # ---- rows -----------------------------------------------------------------------------------------------------

    def _score(
        self, paths: Sequence[str], texts: Sequence[Ids], begin: int, end: int, stage: _Stage
    ) -> Told:
        """Score rows by the first path, and what is compared of them by the others too."""
        wide = self._wide(begin, end)
        rows = [(begin, wide, max(end, wide))]
        if stage.few:
            rows = [(0, min(wide, RANGES[1]), RANGES[1])]
        elif begin:  # short rows alone, as they come most often
            rows.append((0, RANGES[0], RANGES[0]))
        found: Told = {}
        made = 0
        for place, (low, width, most) in enumerate(rows):
            strands = self.made_up(paths[0], low, width, texts, stage.owners, first=made)
            made += len(strands)
            for path in (
                paths if place == 0 else paths[:1]
            ):  # short rows beside long ones were tried by all
                before = found.get(path, [])
                if isinstance(before, str):
                    continue
                try:
                    told = self._scored(path, strands, low, width, most, stage)
                except Exception as error:
                    if out_of_memory(error):
                        raise
                    found[path] = _REFUSED.format(type(error).__name__, str(error).strip()[:200])
                    continue
                found[path] = before + told
                strands = [strand for strand, _ in told]
        return found

    def _scored(
        self, path: str, strands: Sequence[Strand], begin: int, wide: int, most: int, stage: _Stage
    ) -> Found:
        """Score rows of strands, short beside long; returns what is compared of them."""
        rows = plant(strands, wide, share=path == "tree", most=most)
        if path == "tree" and begin and max(map(len, rows)) <= begin:
            raise ValueError(f"no row of the trial is longer than {begin} tokens")
        budget = 1 if path == "single" else len(rows) * max(len(row) for row in rows)
        found: dict[int, list[float]] = {}
        for batch in batches(rows, budget, MASK_CELLS):
            outcome = stage.network.score(batch)
            for index, value in zip(
                outcome.strands.tolist(), outcome.logprobs.tolist(), strict=True
            ):
                found.setdefault(index, []).append(value)
        return [
            (strand, found[strand.index])
            for strand in telling(rows, FEW if stage.few else COMPARED)
        ]

    def _wide(self, begin: int, end: int) -> int:
        """Return the length of a trial's longest row: the far end of the range, or past the longest text."""
        return begin + max(RANGES[0], begin // 4) if end == UNBOUNDED else max(4, end)

    def made_up(
        self,
        path: str,
        begin: int,
        wide: int,
        texts: Sequence[Ids],
        owners: Sequence[int],
        *,
        first: int = 0,
    ) -> list[Strand]:
        """Make strands for a trial: for a tree, rows both as deep and as wide as the range goes."""
        draw = random.Random(begin)
        pool = token_pool(texts, self.network.vocabulary, draw)
        most = min(wide, self.max_length)

        def some(count: int) -> Ids:
            return [draw.choice(pool) for _ in range(max(1, count))]

        if path != "tree":
            ends = {end for _, end in self.ranges if 3 < end < most}  # of the ranges below
            lengths = sorted({3, 5, max(3, most // 2), most - 1, most, *ends})
            groups = [
                [(some(1 + max(0, length - READ)), some(min(length, READ)))] for length in lengths
            ]
        else:
            deep, flat = some(most - 8), some(max(2, most // 6))
            nested = [*flat, *some(2)]
            groups = [
                [(deep, some(count)) for count in (1, 2, 5)],
                [(flat, some(count)) for count in (1, 3)]
                + [(nested, some(count)) for count in (2, 4, 4)],
                # branches of a short stem, side by side until the row is as long as the range goes
                [(flat, some(4)) for _ in range(max(2, wide // 3))],
                [(some(3), some(2)), (some(most // 2), some(3))],
            ]
        strands: list[Strand] = []
        for number, group in enumerate(groups):
            for stem, rest in group:
                kept = rest[: max(1, self.max_length + 1 - len(stem))]
                strands.append(
                    Strand(
                        first + len(strands), stem + kept, len(kept), owners[number % len(owners)]
                    )
                )
        return strands

    # ---- writing --------------------------------------------------------------------------------------------------

    def _write(
        self, way: str, write: Write, texts: Sequence[Ids], begin: int, end: int, stage: _Stage
    ) -> Told:
        """Let prompts of several lengths be continued together, one leaving early, and each by the model itself."""
        begin, end = (0, RANGES[0]) if stage.few else (begin, end)
        strands = self.made_up("plain", begin, self._wide(begin, end), texts, stage.owners)
        strands = strands[: 2 * FEW] if stage.few else strands
        most = max(1, self.max_length - NEW_TOKENS)
        drafts = [
            Draft(place, strand.ids[:most], (), NEW_TOKENS - 3 * (place % 2), strand.owner, 0)
            for place, strand in enumerate(strands)
        ]
        logprobs = write(stage.network, drafts)
        if stage.network.dtype in PRECISE_DTYPES:  # others may decide a near tie otherwise
            for draft in drafts[-2:]:
                own = stage.network.own_tokens(draft.prompt, draft.room, draft.owner)
                if draft.written != own[: len(draft.written)]:
                    raise ValueError("the model itself continues a text otherwise")
        counts = [len(draft.written) for draft in drafts]
        told = [
            Strand(d.index, [*d.prompt, *d.written], n, d.owner)
            for d, n in zip(drafts, counts, strict=True)
        ]
        return {
            way: [
                (one, said[: one.scored])
                for one, said in zip(told, logprobs, strict=True)
                if one.scored
            ]
        }


# ---- judging --------------------------------------------------------------------------------------------------------


def _wrong(found: Found | str, stage: _Stage, *, copied: bool) -> Judged:
    """Say what is wrong with what a path says, or None, and how far it is off; ``copied`` in float32 from 16 bits."""
    if isinstance(found, str):
        return found, {}
    worst, dtype = 0.0, stage.network.dtype
    exact = dtype in PRECISE_DTYPES
    for strand, ours in found:
        wanted = stage.reference(strand)
        gaps = [a - b for a, b in zip(ours, wanted, strict=True)]
        worst = max(worst, *map(abs, gaps))
        alike = is_close(ours, wanted, dtype) and (
            exact or root_mean_square(gaps) <= 5 * SMALL_ROUNDING
        )
        if not alike and not _rounded(
            stage.network, strand, ours, wanted, copied, SMALL_ROUNDING if exact else math.inf
        ):
            return (
                f"log-likelihood {sum(ours):.4f} where the reference path gives {sum(wanted):.4f}",
                {},
            )
    name = "off_by" if exact else "off_by_in_16_bits"
    return None, {name: float(f"{worst:.1e}"), "in": str(dtype).removeprefix("torch.")}


def _wrong_in_few_bits(
    found: Found | str, judge: _Stage, own: _Stage, *, whole: bool, rounding: float = 0.0
) -> Judged:
    """Say the same in 16 bits, beside float32's numbers where the copy is ``whole``, else beside the reference's.

    ``rounding`` is how far references of this kind are from float32's: two that round by it differ by more.
    """
    if isinstance(found, str):
        return found, {}
    gaps, own_gaps = [], []
    for strand, ours in sorted(found, key=lambda entry: entry[0].index)[
        :: 1 if own.few else 2
    ]:  # of every path alike
        reference = own.reference(strand)
        wanted = judge.reference(strand) if whole else reference
        gaps += [a - b for a, b in zip(ours, wanted, strict=True)]
        own_gaps += [a - b for a, b in zip(reference, wanted, strict=True)]
    off, least = root_mean_square(gaps), root_mean_square(own_gaps)
    facts = {"off_by_in_16_bits": float(f"{off:.1e}")} | (
        {"reference_off_by": float(f"{least:.1e}")} if whole else {}
    )
    if off <= (
        OWN_ROUNDINGS * least + SMALL_ROUNDING
        if whole
        else max(5 * SMALL_ROUNDING, math.sqrt(2) * OWN_ROUNDINGS * rounding)
    ):
        return None, facts
    return (
        f"in 16 bits log-probabilities are off by {off:.3f}, where the reference's are by {least:.3f}",
        facts,
    )


def _rounded(
    network: Network,
    strand: Strand,
    ours: Sequence[float],
    wanted: Sequence[float],
    copied: bool,
    most: float,
) -> bool:
    """Say whether a difference is the model's own rounding: what it gives of the same text in a batch of three.

    Large logits and long texts round by more than a constant allows; to a model of 16 bits, of which this is a copy, a
    thirtieth of its rounding is nothing.
    """
    again = network.own_logprobs(strand, copies=3)[0].tolist()
    off, own = (
        root_mean_square([a - b for a, b in zip(said, wanted, strict=True)])
        for said in (ours, again)
    )
    return off <= min(max(OWN_ROUNDINGS * own, UNNOTICED if copied else 0.0), most)


def _name(path: str, begin: int, owners: set[int]) -> str:
    return path + (f" beyond {begin} tokens" if begin else "") + (TUNED if max(owners) >= 0 else "")
