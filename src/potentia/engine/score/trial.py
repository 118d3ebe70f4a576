"""Trials: a fast path is taken only after it gave the reference path's numbers on inputs like the real ones.

The rows are made up from tokens of the real requests: stems that branch at once, late and twice, questions side by
side, short texts beside long ones. What holds for short rows may fail for rows longer than a window of the model, so
every number of the config that may be one (a *horizon*) divides lengths into levels, and each level that the requests
reach is tried by itself. A path that fails beyond a horizon is still taken for what stays within it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

import torch

from potentia.engine.admission import admit
from potentia.engine.memory import out_of_memory
from potentia.engine.score.forest import Forest, Strand, batches, plant
from potentia.engine.score.generate import Draft
from potentia.engine.score.reference import close_enough, own_tokens, reference_logprobs
from potentia.engine.windows import horizons

if TYPE_CHECKING:
    from potentia.engine.loading import LoadedModel
    from potentia.engine.score.network import Network
    from potentia.engine.tokens import Ids

UNBOUNDED = 1 << 60
FIRST_LENGTH = 48  # of the longest row tried where the model has no horizon below it
MASK_CELLS = 1 << 24
POOL = 64
NEW_TOKENS = 5
COMPARED = 16  # strands, each computed by itself
# what a model may answer to inputs that it was not made for
REFUSALS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    NotImplementedError,
    AssertionError,
)


class Trials:
    """What was tried on one model, remembered with it in ``checked``: "agrees" or what was wrong."""

    def __init__(self, network: Network, loaded: LoadedModel) -> None:
        self.network = network
        self.checked = loaded.checked
        self.tokenizer = loaded.tokenizer
        self.max_length = max_length = loaded.max_length
        # a row of many branches may be wider than any text that the model reads
        self.horizons = [0, *horizons(network.config, max_length), max_length]

    def limit(self, path: str, longest: int, like: Sequence[Strand]) -> int:
        """Return the length up to which a path may be used, trying no further than rows of ``longest`` tokens."""
        self._sound()
        if path == "tree" and self.network.tree_obstacle is not None:
            self.checked.setdefault("tree", self.network.tree_obstacle)
            return 0
        for horizon in self.horizons:
            if longest <= horizon:
                break
            name = path if horizon == 0 else f"{path} beyond {horizon} tokens"
            if name not in self.checked:
                self.checked[name] = self._guarded(partial(self._compare, path, horizon, like))
            if self.checked[name] != "agrees":
                return horizon
        return UNBOUNDED

    def may_write(
        self,
        longest: int,
        like: Sequence[Draft],
        write: Callable[[list[Draft]], list[list[float]]],
        way: str = "writing",
    ) -> bool:
        """Say whether a loop may write texts of ``longest`` tokens, prompt and answer together."""
        self._sound()
        for horizon in self.horizons:
            if longest <= horizon:
                break
            name = way if horizon == 0 else f"{way} beyond {horizon} tokens"
            if name not in self.checked:
                self.checked[name] = self._guarded(partial(self._try_writing, horizon, like, write))
            if self.checked[name] != "agrees":
                return False
        return True

    def _sound(self) -> None:
        """Refuse what is no causal model, where it was not refused when it was loaded."""
        if "predictions" not in self.checked:
            self.network.route([-1])
            admit(self.network.model, self.tokenizer)
            self.checked["predictions"] = "agrees"

    def failures(self) -> Iterator[str]:
        """Tell what is not used, and why."""
        for name, found in self.checked.items():
            if found != "agrees":
                yield f"the {name} path is not used: {found}" if " " not in name else f"not used: {name}: {found}"

    def _next(self, horizon: int) -> int:
        return next((after for after in self.horizons if after > horizon), UNBOUNDED)

    # ---- rows -----------------------------------------------------------------------------------------------------

    def _compare(self, path: str, horizon: int, like: Sequence[Strand]) -> str:
        strands = self.made_up(path, horizon, [token for strand in like for token in strand.ids], like[0].owner)
        rows = plant(strands, horizon + max(horizon // 8, FIRST_LENGTH), share=path == "tree", most=self._next(horizon))
        budget = 1 if path == "single" else len(rows) * max(len(row) for row in rows)  # short beside long
        found: dict[int, list[float]] = {}
        for batch in batches(rows, budget, MASK_CELLS):
            found |= self._logprobs(batch)
        for strand in _telling(rows):
            wanted = reference_logprobs(self.network, strand)
            if not close_enough(found[strand.index], wanted, self.network.dtype):
                ours, theirs = sum(found[strand.index]), sum(wanted)
                return f"log-likelihood {ours:.4f} where the reference path gives {theirs:.4f}"
        return "agrees"

    def _logprobs(self, batch: list[Forest]) -> dict[int, list[float]]:
        outcome = self.network.score(batch)
        found: dict[int, list[float]] = {}
        for index, value in zip(outcome.strands.tolist(), outcome.logprobs.tolist(), strict=True):
            found.setdefault(index, []).append(value)
        return found

    def made_up(self, path: str, horizon: int, tokens: Sequence[int], owner: int = -1) -> list[Strand]:
        """Make strands for a trial: for a tree, rows both deeper and wider than the horizon."""
        draw = random.Random(horizon)
        pool = _pool(tokens, self.network.vocabulary, draw)
        wide = max(4, min(horizon + max(8, horizon // 8) if horizon else FIRST_LENGTH, self._next(horizon)))
        most = min(wide, self.max_length)

        def some(count: int) -> Ids:
            return [draw.choice(pool) for _ in range(max(1, count))]

        if path != "tree":
            lengths = sorted({3, 5, max(3, most // 2), most - 1, most})
            texts = [(some(1), some(length)) for length in lengths]
        else:
            deep, flat = some(most - 8), some(max(2, most // 6))
            nested = [*flat, *some(2)]
            texts = [(deep, some(count)) for count in (1, 2, 5)]
            texts += [(flat, some(count)) for count in (1, 3)] + [(nested, some(count)) for count in (2, 4, 4)]
            # branches of a short stem, side by side until the row is longer than the horizon
            texts += [(flat, some(4)) for _ in range(max(2, (wide - len(flat)) // 4 + 1))]
            texts += [(some(3), some(2)), (some(most // 2), some(3))]
        kept = [(stem, rest[: max(1, self.max_length + 1 - len(stem))]) for stem, rest in texts]
        return [Strand(i, stem + rest, len(rest), owner) for i, (stem, rest) in enumerate(kept)]

    # ---- writing --------------------------------------------------------------------------------------------------

    def _try_writing(
        self, horizon: int, like: Sequence[Draft], write: Callable[[list[Draft]], list[list[float]]]
    ) -> str:
        """Let prompts of several lengths be continued together, one leaving early, and each by the model itself."""
        owner = like[0].owner
        strands = self.made_up("plain", horizon, [token for draft in like for token in draft.prompt], owner)
        prompts = [strand.ids[: max(1, self.max_length - NEW_TOKENS)] for strand in strands]
        rooms = [NEW_TOKENS - 3 * (place % 2) for place in range(len(prompts))]
        drafts = [
            Draft(place, prompt, (), room, owner, 0)
            for place, (prompt, room) in enumerate(zip(prompts, rooms, strict=True))
        ]
        logprobs = write(drafts)
        for draft, found in zip(drafts, logprobs, strict=True):
            if not draft.written:
                continue
            wanted = reference_logprobs(
                self.network, Strand(0, [*draft.prompt, *draft.written], len(draft.written), owner)
            )
            if not close_enough(found[: len(wanted)], wanted, self.network.dtype):
                return f"log-likelihood {sum(found):.4f} where the reference path gives {sum(wanted):.4f}"
        if self.network.dtype in (torch.float32, torch.float64):  # others may decide a near tie otherwise
            for draft in drafts[-2:]:
                own = own_tokens(self.network, draft.prompt, draft.room, owner)
                if draft.written != own[: len(draft.written)]:
                    return "the model itself continues a text otherwise"
        return "agrees"

    def _guarded(self, trial: Callable[[], str]) -> str:
        try:
            return trial()
        except REFUSALS as error:
            if out_of_memory(error):
                raise
            return f"the model refuses it ({type(error).__name__}: {str(error).strip()[:200]})"


def _pool(tokens: Sequence[int], vocabulary: int, draw: random.Random) -> list[int]:
    """Choose tokens to make rows from: those of the requests, and others where these are few."""
    seen = list(dict.fromkeys(tokens))
    if len(seen) > POOL:
        seen = draw.sample(seen, POOL)
    return seen if len(seen) >= 8 else [*seen, *(draw.randrange(vocabulary) for _ in range(16))]


def _telling(rows: Sequence[Forest]) -> list[Strand]:
    """Choose the strands to compare: all where they are few, else the deepest, and those farthest from their stems."""
    reads = [
        (strand, row.depths[nodes[-1]], nodes[-1] - row.depths[nodes[-1]])
        for row in rows
        for strand, nodes in row.reads
    ]
    if len(reads) > COMPARED:
        part = COMPARED // 4
        depths, gaps = (sorted(reads, key=itemgetter(column)) for column in (1, 2))
        reads = [*depths[:part], *depths[-part:], *gaps[-2 * part :]]
    return list({strand.index: strand for strand, _, _ in reads}.values())
