"""Trials: a fast path is taken only after it gave the reference path's numbers on inputs like the real ones.

The reference is the model's own forward on one sequence at a time. Paths are tried on made-up rows, long beside short,
with requests of several adapters where adapters are scored, in float32 (on an upcast copy of a model of 16 bits, see
``twin``), where a wrong mask is a thousand times what rounding is. In 16 bits a path may then be three times as far
from float32's numbers as the reference is. What holds for short rows need not hold beyond: a model may have a window
that no config names. So a path is trusted up to a length: it is tried at the far end of the range that is asked for, on
rows of every range below and on short rows alone; where that fails, range by range from the shortest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from potentia.engine.admission import admit
from potentia.engine.score.forest import Forest, Strand, batches, plant
from potentia.engine.score.generate import Draft
from potentia.engine.score.network import Network, log_softmax
from potentia.engine.spread import out_of_memory
from potentia.engine.twin import twin
from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine.loading import LoadedModel
    from potentia.engine.tokens import Ids

UNBOUNDED = 1 << 60
RANGES = (64, 256, 1024, 4096, 16384, 65536)  # lengths up to which a path is tried, beside those that a config names
MASK_CELLS = 1 << 24
POOL = 64
NEW_TOKENS = 5
COMPARED = 16  # strands, each computed by itself
READ = 64  # last tokens of a long text that are compared: what lies before them is in them
SLOTS = 3  # adapters that requests of a trial are shared out among, beside the bare model
MULTIPLE, ROUNDED = 3.0, 0.02  # in 16 bits: of the reference's distance from float32, and what is rounding anyway
NOTHING = 0.002  # root mean square in float32 that a model of 16 bits does not notice
# Of each token: |difference| <= absolute + relative × |log-probability|, and the mean over tokens, in nats. The last
# two count where there is no float32 copy to judge by: quantised models, and those on several devices.
TOLERANCE = {
    torch.float64: (1e-6, 1e-8, 1e-7),
    torch.float32: (1e-3, 1e-4, 2e-4),
    torch.float16: (0.05, 0.01, 0.02),
    torch.bfloat16: (0.5, 0.05, 0.1),
}
_WINDOWS = ("window", "chunk", "local", "original_max", "block", "topk", "stride", "compress", "span", "back")

Found = list[tuple[Strand, list[float]]]  # what a path says of strands' scored tokens
Write = Callable[[Network, list[Draft]], list[list[float]]]
Scored = tuple[Forest, Found]
Trial = Callable[[int, int, "_Stage"], Found]  # of a range of lengths
AGREES = "agrees"


@dataclass(frozen=True)
class _Stage:
    """A network to try a path on, and whose requests."""

    network: Network
    owners: list[int]


class Trials:
    """What was tried on one model, remembered with it in ``checked``: "agrees" or what was wrong."""

    def __init__(self, network: Network, loaded: LoadedModel) -> None:
        self.network, self.loaded = network, loaded
        self.checked = loaded.checked
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
        tokens = [token for strand in like for token in strand.ids]
        return self._reach(path, longest, {strand.owner for strand in like}, partial(self._score, path, tokens))

    def may_write(self, longest: int, like: Sequence[Draft], write: Write, way: str = "writing") -> bool:
        """Say whether a loop may write texts of ``longest`` tokens, prompt and answer together."""
        self._sound()
        tokens = [token for draft in like for token in draft.prompt]
        trial = partial(self._write, write, tokens)
        return self._reach(way, longest, {draft.owner for draft in like}, trial) == UNBOUNDED

    def _reach(self, path: str, longest: int, owners: set[int], trial: Trial) -> int:
        """Return the length up to which a path is trusted: tried once, at the far end, where nothing is against it."""
        asked = [(begin, end) for begin, end in self.ranges if begin < longest]
        names = [_name(path, begin, owners) for begin, _ in asked]
        unspoilt = all(self.checked.get(name, AGREES) == AGREES for name in names)
        if unspoilt and self._agrees(names[-1], owners, partial(trial, *asked[-1])):
            self.checked |= dict.fromkeys(names, AGREES)
            return UNBOUNDED
        for name, (begin, end) in zip(names, asked, strict=True):
            if not self._agrees(name, owners, partial(trial, begin, end)):
                return begin
        return UNBOUNDED

    def failures(self) -> Iterator[str]:
        """Tell what is not used, and why."""
        for name, found in self.checked.items():
            if found != AGREES:
                yield f"the {name} path is not used: {found}" if " " not in name else f"not used: {name}: {found}"

    def _sound(self) -> None:
        """Refuse what is no causal model, where it was not refused when it was loaded."""
        if "predictions" not in self.checked:
            self.network.route([-1])
            admit(self.network.model, self.loaded.tokenizer)
            self.checked["predictions"] = AGREES

    # ---- judging --------------------------------------------------------------------------------------------------

    def _agrees(self, name: str, owners: set[int], trial: Callable[[_Stage], Found]) -> bool:
        """Try a path for a range of lengths, once for the bare model and once for adapters."""
        if name not in self.checked:
            try:
                with spending("check"):
                    self.checked[name] = self._judge(name, owners, trial)
            except Exception as error:  # a model may answer anything to inputs that it was not made for
                if out_of_memory(error):
                    raise
                self.checked[name] = f"the model refuses it ({type(error).__name__}: {str(error).strip()[:200]})"
        return self.checked[name] == AGREES

    def _judge(self, name: str, owners: set[int], trial: Callable[[_Stage], Found]) -> str:
        with self._stages(owners) as (judge, own, whole):
            exact: dict[tuple[int, ...], list[float]] = {}
            worst = 0.0
            for strand, ours in trial(judge):
                wanted = exact[strand.owner, *strand.ids] = reference_logprobs(judge.network, strand)
                worst = max(worst, *(abs(a - b) for a, b in zip(ours, wanted, strict=True)))
                alike = close_enough(ours, wanted, judge.network.dtype)
                if not alike and not _rounded(judge.network, strand, ours, wanted, copied=own is not None):
                    return f"log-likelihood {sum(ours):.4f} where the reference path gives {sum(wanted):.4f}"
            record = self.loaded.record.setdefault("scoring", {})
            record[name] = {"off_by": float(f"{worst:.1e}"), "in": str(judge.network.dtype).removeprefix("torch.")}
            if own is None:
                return AGREES
            # the same in 16 bits, beside float32's numbers where the copy is whole
            gaps, rounding = [], []
            for strand, ours in trial(own)[::2]:
                reference = reference_logprobs(own.network, strand)
                wanted = reference
                if whole:  # texts that are written may differ
                    known = exact.get((strand.owner, *strand.ids))
                    wanted = reference_logprobs(judge.network, strand) if known is None else known
                gaps += [a - b for a, b in zip(ours, wanted, strict=True)]
                rounding += [a - b for a, b in zip(reference, wanted, strict=True)]
            off, least = root_mean_square(gaps), root_mean_square(rounding)
            record[name] |= {"off_by_in_16_bits": float(f"{off:.1e}"), "reference_off_by": float(f"{least:.1e}")}
            if not off <= (MULTIPLE * least + ROUNDED if whole else 5 * ROUNDED):
                return f"in 16 bits log-probabilities are off by {off:.3f}, where the reference's are by {least:.3f}"
            return AGREES

    @contextmanager
    def _stages(self, owners: set[int]) -> Iterator[tuple[_Stage, _Stage | None, bool]]:
        """Give the float32 stage, the model's own where that is another, and whether the first is the whole model."""
        from potentia.engine.tune.adapters import AdapterBank, installed_on

        tuned = max(owners) >= 0
        bank = installed_on(self.network.model) if tuned else None
        whose = sorted(owners)[:SLOTS]
        if bank is not None:
            whose = [-1, *range(min(SLOTS, bank.slots))]
        with ExitStack() as stack:
            judge = stack.enter_context(twin(self.network.model))
            if bank is not None:
                stack.enter_context(bank.trying())
            if not judge.copied:
                yield _Stage(self.network, whose), None, True
                return
            copied = None
            if bank is not None:
                copied = AdapterBank(judge.model, bank.lora, min(SLOTS, bank.slots))
                copied.randomise()
                stack.callback(copied.close)
            upcast = replace(self.loaded, model=judge.model, dtype=torch.float32, checked={}, record={})
            network = Network(upcast, copied)
            yield _Stage(network, whose if bank is not None else [-1]), _Stage(self.network, whose), judge.whole

    # ---- rows -----------------------------------------------------------------------------------------------------

    def _score(self, path: str, tokens: Sequence[int], begin: int, end: int, stage: _Stage) -> Found:
        wide = self._wide(begin, end)
        strands = self.made_up(path, begin, wide, tokens, stage.owners)
        found = self._scored(path, strands, wide, max(end, wide), stage)
        if path == "tree" and begin and max(len(row) for row, _ in found) <= begin:
            raise ValueError(f"no row of the trial is longer than {begin} tokens")
        if begin:  # short rows alone, as they come most often
            short = self.made_up(path, 0, RANGES[0], tokens, stage.owners, first=len(strands))
            found += self._scored(path, short, RANGES[0], RANGES[0], stage)
        return [told for _, made in found for told in made]

    def _scored(self, path: str, strands: Sequence[Strand], wide: int, most: int, stage: _Stage) -> list[Scored]:
        """Score rows of strands, short beside long; returns what is compared of each."""
        rows = plant(strands, wide, share=path == "tree", most=most)
        budget = 1 if path == "single" else len(rows) * max(len(row) for row in rows)
        found: dict[int, list[float]] = {}
        for batch in batches(rows, budget, MASK_CELLS):
            outcome = stage.network.score(batch)
            for index, value in zip(outcome.strands.tolist(), outcome.logprobs.tolist(), strict=True):
                found.setdefault(index, []).append(value)
        few = COMPARED if wide <= RANGES[1] else COMPARED // 2
        chosen = {strand.index for strand in _telling(rows, few)}
        return [(row, [(s, found[s.index]) for s, _ in row.reads if s.index in chosen]) for row in rows]

    def _wide(self, begin: int, end: int) -> int:
        """Return the length of a trial's longest row: the far end of the range, or past the longest text."""
        return begin + max(RANGES[0], begin // 4) if end == UNBOUNDED else max(4, end)

    def made_up(
        self, path: str, begin: int, wide: int, tokens: Sequence[int], owners: Sequence[int], *, first: int = 0
    ) -> list[Strand]:
        """Make strands for a trial: for a tree, rows both as deep and as wide as the range goes."""
        draw = random.Random(begin)
        pool = _pool(tokens, self.network.vocabulary, draw)
        most = min(wide, self.max_length)

        def some(count: int) -> Ids:
            return [draw.choice(pool) for _ in range(max(1, count))]

        if path != "tree":
            ends = {end for _, end in self.ranges if 3 < end < most}  # of the ranges below
            lengths = sorted({3, 5, max(3, most // 2), most - 1, most, *ends})
            groups = [[(some(1 + max(0, length - READ)), some(min(length, READ)))] for length in lengths]
        else:
            deep, flat = some(most - 8), some(max(2, most // 6))
            nested = [*flat, *some(2)]
            groups = [
                [(deep, some(count)) for count in (1, 2, 5)],
                [(flat, some(count)) for count in (1, 3)] + [(nested, some(count)) for count in (2, 4, 4)],
                # branches of a short stem, side by side until the row is as long as the range goes
                [(flat, some(4)) for _ in range(max(2, wide // 3))],
                [(some(3), some(2)), (some(most // 2), some(3))],
            ]
        strands: list[Strand] = []
        for number, group in enumerate(groups):
            for stem, rest in group:
                kept = rest[: max(1, self.max_length + 1 - len(stem))]
                strands.append(Strand(first + len(strands), stem + kept, len(kept), owners[number % len(owners)]))
        return strands

    # ---- writing --------------------------------------------------------------------------------------------------

    def _write(self, write: Write, tokens: Sequence[int], begin: int, end: int, stage: _Stage) -> Found:
        """Let prompts of several lengths be continued together, one leaving early, and each by the model itself."""
        strands = self.made_up("plain", begin, self._wide(begin, end), tokens, stage.owners)
        drafts = [
            Draft(place, strand.ids[: max(1, self.max_length - NEW_TOKENS)], (), NEW_TOKENS - 3 * (place % 2), owner, 0)
            for place, strand in enumerate(strands)
            for owner in [strand.owner]
        ]
        logprobs = write(stage.network, drafts)
        if stage.network.dtype in (torch.float32, torch.float64):  # others may decide a near tie otherwise
            for draft in drafts[-2:]:
                own = own_tokens(stage.network, draft.prompt, draft.room, draft.owner)
                if draft.written != own[: len(draft.written)]:
                    raise ValueError("the model itself continues a text otherwise")
        return [
            (
                Strand(draft.index, [*draft.prompt, *draft.written], len(draft.written), draft.owner),
                said[: len(draft.written)],
            )
            for draft, said in zip(drafts, logprobs, strict=True)
            if draft.written
        ]


# ---- the reference --------------------------------------------------------------------------------------------------


def reference_likelihood(network: Network, strand: Strand) -> tuple[float, bool]:
    """Return the log-likelihood of a strand's scored tokens and whether each was the most likely one."""
    logprobs, hits = _reference(network, strand)
    return float(logprobs.double().sum()), bool(hits.all())


def reference_logprobs(network: Network, strand: Strand) -> list[float]:
    """Return the log-probability of each of a strand's scored tokens."""
    return _reference(network, strand)[0].tolist()


def _reference(network: Network, strand: Strand, *, copies: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor([strand.ids] * copies, device=network.device)
    network.route([strand.owner] * copies)
    logits = network.model(input_ids=ids[:, :-1], use_cache=False).logits[0, -strand.scored :]  # (scored, vocabulary)
    wanted = ids[0, -strand.scored :]
    return log_softmax(logits).gather(1, wanted[:, None])[:, 0], logits.argmax(dim=-1) == wanted


def own_tokens(network: Network, prompt: Ids, room: int, owner: int) -> Ids:
    """Return what the model's own ``generate`` writes after a prompt, greedily."""
    network.route([owner])
    ids = torch.tensor([prompt], device=network.device)
    out = network.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=room,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def close_enough(fast: Sequence[float], slow: Sequence[float], dtype: torch.dtype) -> bool:
    """Say whether the log-probabilities of some tokens differ by rounding alone."""
    absolute, relative, mean = TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16])
    gaps = [abs(one - other) for one, other in zip(fast, slow, strict=True)]
    largest = max(1.0, math.log2(len(gaps) / 8))  # of many roundings the largest is larger
    within = all(gap <= largest * (absolute + relative * abs(value)) for gap, value in zip(gaps, slow, strict=True))
    return within and sum(gaps) <= len(gaps) * mean + relative * sum(map(abs, slow))


def _rounded(network: Network, strand: Strand, ours: Sequence[float], wanted: Sequence[float], *, copied: bool) -> bool:
    """Say whether a difference is the model's own rounding: what it gives of the same text in a batch of three.

    Large logits and long texts round by more than a constant allows. In a model of 16 bits, of which this is a copy, a
    thirtieth of their rounding is nothing (two right paths were refused beyond 1,024 tokens: 0.006 off in a
    log-likelihood of 53,102, where the same sizes of passes had rounded alike).
    """
    again = _reference(network, strand, copies=3)[0].tolist()
    off, own = (root_mean_square([a - b for a, b in zip(said, wanted, strict=True)]) for said in (ours, again))
    return off <= min(max(MULTIPLE * own, NOTHING if copied else 0.0), ROUNDED)


def root_mean_square(gaps: Sequence[float]) -> float:
    """Return the size of differences; infinite where one is not a number."""
    total = sum(gap * gap for gap in gaps) / max(1, len(gaps))
    return total**0.5 if total == total else float("inf")


def _name(path: str, begin: int, owners: set[int]) -> str:
    return path + (f" beyond {begin} tokens" if begin else "") + (" with adapters" if max(owners) >= 0 else "")


def horizons(config: Any, longest: int) -> list[int]:
    """Find the numbers of a config that may be a window shorter than ``longest``."""
    found: set[int] = set()

    def look(entries: dict[Any, Any]) -> None:
        for name, value in entries.items():
            if isinstance(value, dict):
                look(value)
            elif any(word in str(name) for word in _WINDOWS):
                values = value if isinstance(value, list | tuple) else [value]
                found.update(v for v in values if isinstance(v, int) and not isinstance(v, bool) and 1 < v < longest)

    look(config.to_dict())
    return sorted(found)


def _pool(tokens: Sequence[int], vocabulary: int, draw: random.Random) -> list[int]:
    """Choose tokens to make rows from: those of the requests, and others where these are few."""
    seen = list(dict.fromkeys(tokens))
    if len(seen) > POOL:
        seen = draw.sample(seen, POOL)
    return seen if len(seen) >= 8 else [*seen, *(draw.randrange(vocabulary) for _ in range(16))]


def _telling(rows: Sequence[Forest], few: int) -> list[Strand]:
    """Choose the strands to compare: all where they are few, else the deepest, and those farthest from their stems."""
    reads = [
        (strand, row.depths[nodes[-1]], nodes[-1] - row.depths[nodes[-1]])
        for row in rows
        for strand, nodes in row.reads
    ]
    if len(reads) > few:
        part = few // 4
        depths, gaps = (sorted(reads, key=itemgetter(column)) for column in (1, 2))
        reads = [*depths[:part], *depths[-part:], *gaps[-2 * part :]]
    return list({strand.index: strand for strand, _, _ in reads}.values())
