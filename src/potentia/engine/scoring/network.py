"""The model as the scorer sees it: rows that share beginnings, a body that turns them into hidden states, and a head.

A row is a forest in preorder. A node is a token; its ancestors are what it may look at; ``ends[j]`` is one past the
last node of j's subtree, so that node i sees node j exactly when j <= i < ends[j]. The choices of a question are
branches of one stem, single-token choices are no branches at all, a few-shot prompt is a stem for many questions,
and unrelated questions stand side by side in a row without seeing each other. The head is called only where needed.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from potentia.engine.models.device_layout import free_memory, pinned
from potentia.engine.models.split_model import SplitModel
from potentia.engine.models.tokenization import Ids, common_prefix

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel

OVERHANG = 4  # branches of a stem that is already in a row may exceed the row's length by a quarter


@dataclass(slots=True)
class Strand:
    """One sequence to score: its last ``scored`` tokens are predicted, and the last of all is never fed in."""

    index: int
    ids: list[int]
    scored: int
    owner: int = -1


@dataclass(slots=True)
class Forest:
    """Tokens in preorder, their depths (positions), the ends of their subtrees, and who reads a prediction where."""

    owner: int
    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    reads: list[tuple[Strand, list[int]]] = field(default_factory=list)
    branches: bool = False

    def __len__(self) -> int:
        return len(self.tokens)


def plant(
    strands: Sequence[Strand],
    row_tokens: int,
    *,
    share: bool,
    longest_shared: int | None = None,
    most: int | None = None,
) -> list[Forest]:
    """Pack sequences into rows of about ``row_tokens`` tokens.

    Without ``share``, and for sequences longer than ``longest_shared``, a row holds a single sequence (and its
    duplicates), so that it needs no mask of its own. Rows that are shared hold ``most`` tokens at most. A row never
    mixes owners.
    """
    cut = longest_shared if share and longest_shared is not None else sys.maxsize
    room = sys.maxsize if most is None else most
    rows = _grown([s for s in strands if len(s.ids) <= cut], row_tokens if share else 0, room)
    return rows + _grown([s for s in strands if len(s.ids) > cut], 0, room)


def _grown(strands: list[Strand], row_tokens: int, most: int) -> list[Forest]:
    """Grow one row at a time from sequences in lexicographic order, so that neighbours share the most; 0: nothing."""
    rows: list[Forest] = []
    row = Forest(-2)  # nobody's
    path: list[int] = []  # nodes from the root to the tip
    before: list[int] = []  # their tokens
    for strand in sorted(strands, key=attrgetter("owner", "ids")):
        inputs = strand.ids[:-1]
        mine = row.owner == strand.owner
        shared = common_prefix(before, inputs) if mine else 0
        length, held = len(inputs), len(row.tokens)
        fresh = length - shared
        if mine and fresh and not row_tokens:
            mine = shared == len(path) == held  # a longer copy of the only sequence in the row
        elif mine and fresh:
            limit = row_tokens
            if shared > fresh:
                limit = max(limit, 2 * length)
                limit += limit // OVERHANG
            mine = held + fresh <= min(limit, most)
        for node in path[shared:] if mine else path:  # their subtrees end here
            row.ends[node] = held
        if not mine:
            row, path, shared, held, fresh = Forest(strand.owner), [], 0, 0, length
            rows.append(row)
        del path[shared:]
        if fresh:
            row.branches |= held > 0 and (not path or path[-1] != held - 1)
            row.tokens += inputs[shared:]
            row.depths += range(shared, length)
            row.ends += [0] * fresh
            path += range(held, held + fresh)
        before = inputs
        row.reads.append((strand, path[len(path) - strand.scored :]))
    for node in path:
        row.ends[node] = len(row.tokens)
    return rows


def batches(rows: Sequence[Forest], budget: int, mask_cells: int) -> Iterator[list[Forest]]:
    """Group rows of similar length so that rows × longest stays within ``budget`` tokens; longest first.

    ``mask_cells`` bounds rows × longest² of batches that need a mask; they never mix with rows that need none.
    """
    for masked in (True, False):
        queue = sorted((row for row in rows if row.branches is masked), key=len, reverse=True)
        start = 0
        while start < len(queue):
            longest = max(len(queue[start]), 1)
            count = max(1, budget // longest)
            if masked:
                count = max(1, min(count, mask_cells // longest**2))
            yield queue[start : start + count]
            start += count


# ---- the model ----

HEAD_BYTES = {"cuda": 1 << 29, "cpu": 1 << 28}  # of float32 logits at a time
CPU_CACHE_BYTES = 1 << 31
ALIGNMENT = {
    "cuda": 8,
    "cpu": 1,
}  # masked attention on a GPU wants the key length in multiples of 16 bytes
STRETCH = 16  # tokens that share an adapter in hand-written layers
HAND, OWN = "hand-written layers", "the model's own layers"
# words in the names of settings that may be windows
WINDOWS = (
    "window",
    "chunk",
    "local",
    "original_max",
    "block",
    "topk",
    "stride",
    "compress",
    "span",
    "back",
)
TREE_LAYERS = frozenset({"full_attention", "sliding_attention"})


class Router(Protocol):
    """Says, right before a forward pass, which adapter each row of the batch is to be computed with."""

    def route(self, row_owners: torch.Tensor | None) -> None:
        """Take the owner (lane index, int64 on the model's device) of each row; None when there are no owners."""


@dataclass(slots=True)
class Outcome:
    """Results of one batch, still on the device: for each read, the log-probability and whether it was the argmax."""

    strands: npt.NDArray[np.int64]  # (reads,) index of the strand that asked
    logprobs: torch.Tensor  # (reads,)
    hits: torch.Tensor  # (reads,)


class Sent:
    """Tensors as they are now, on their way to the host, which need not wait for the device."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if tensors[0].device.type != "cuda":
            self._tensors = [tensor.clone() for tensor in tensors]
            return
        pinned = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors
        ]
        self._tensors = [
            into.copy_(one, non_blocking=True) for into, one in zip(pinned, tensors, strict=True)
        ]
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrived.record()

    def read(self) -> list[npt.NDArray[Any]]:
        """Wait until they are there, and return them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [tensor.numpy() for tensor in self._tensors]


class Network:
    """Run rows through a causal LM without ever forming logits for positions that nobody reads."""

    def __init__(
        self, loaded: LoadedModel, router: Router | None = None, *, by_hand: bool = False
    ) -> None:
        from potentia.engine.layers.scoring_layers import HandWritten

        model = loaded.model
        if hasattr(model, "get_base_model"):  # a PEFT wrapper
            model = model.get_base_model()
        self.model = model
        split = SplitModel(model)
        self.run, self.logits, self.vocabulary = (
            split.run,
            split.logits,
            split.vocabulary,
        )  # body, head, its width
        self.device = loaded.device
        self.dtype = loaded.dtype
        self.router = router
        self.by_hand = HandWritten.of(model) if by_hand else None
        config = getattr(model.config, "text_config", None) or model.config
        self.config = config
        self.tree_obstacle = _tree_obstacle(split.body, config)
        self._layer_types = frozenset(getattr(config, "layer_types", None) or ())
        self._window = getattr(config, "sliding_window", None)
        if getattr(config, "use_sliding_window", True) is False:
            self._window = None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch the model to evaluation without gradients, and back to what it was, with no adapter on."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            if self.router is not None:
                self.router.route(None)
            if training:
                self.model.train()

    def route(self, owners: Sequence[int]) -> None:
        """Tell the router whose rows come next."""
        if self.router is not None:
            known = any(owner >= 0 for owner in owners)
            self.router.route(torch.tensor(list(owners), device=self.device) if known else None)

    def cache_room(self) -> int:
        """How many tokens' keys and values may be kept: a third of the free memory of a GPU, 2 GiB on a CPU."""
        config = self.config
        heads = size_of(config, "num_attention_heads", 1)
        width = size_of(config, "head_dim", size_of(config, "hidden_size", 1024) // heads)
        kept = size_of(config, "num_key_value_heads", heads)
        layers = size_of(config, "num_hidden_layers", 1)
        size = 2 * layers * kept * width * self.dtype.itemsize
        free = free_memory(self.device) // 3 if self.device.type == "cuda" else CPU_CACHE_BYTES
        return int(free // size)

    def own_logprobs(self, strand: Strand, *, copies: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability of each scored token, and whether it is the likeliest, by the model's own forward.

        This is the reference of all faster paths: one sequence at a time.
        """
        from potentia.engine.layers.recomputation import standard_attention

        ids = torch.tensor([strand.ids] * copies, device=self.device)
        self.route([strand.owner] * copies)
        with standard_attention(self.device):  # every length is a new shape
            logits = self.model(input_ids=ids[:, :-1], use_cache=False).logits[
                0, -strand.scored :
            ]  # (scored, V)
        wanted = ids[0, -strand.scored :]
        wide = logits.to(
            torch.promote_types(logits.dtype, torch.float32)
        )  # nothing of this is shared with other paths
        return torch.log_softmax(wide, -1).gather(1, wanted[:, None])[:, 0], logits.argmax(
            dim=-1
        ) == wanted

    def own_tokens(self, prompt: Ids, room: int, owner: int) -> Ids:
        """Return what the model's own ``generate`` writes after a prompt, greedily."""
        self.route([owner])
        ids = torch.tensor([prompt], device=self.device)
        greedy = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "pad_token_id": 0}
        out = self.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=room, **greedy
        )
        return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]

    def score(self, rows: list[Forest]) -> Outcome:
        """Score one batch of rows, either all with branches or all without."""
        rows = sorted(rows, key=lambda row: row.owner)
        length = max(1, *(len(row) for row in rows))
        masked = any(row.branches for row in rows)
        step = (
            STRETCH
            if self.by_hand is not None
            else ALIGNMENT.get(self.device.type, 1)
            if masked
            else 1
        )
        length = -(-length // step) * step
        tokens = np.zeros((len(rows), length), dtype=np.int64)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = row.tokens
        inputs: dict[str, Any] = {"input_ids": self._send(tokens)}
        if masked:
            inputs |= self._tree(rows, length)
        self.route([row.owner for row in rows])
        with self.by_hand.active(length) if self.by_hand is not None else nullcontext():
            hidden = self.run(**inputs, use_cache=False).last_hidden_state  # (rows, length, width)
        return self._read(rows, hidden.reshape(-1, hidden.shape[-1]), length)

    def _tree(self, rows: list[Forest], length: int) -> dict[str, Any]:
        ends = np.tile(np.arange(1, length + 1), (len(rows), 1))  # padding sees itself alone
        depths = np.zeros((len(rows), length), dtype=np.int64)
        for i, row in enumerate(rows):
            ends[i, : len(row)] = row.ends
            depths[i, : len(row)] = row.depths
        sent = self._send(np.stack([ends, depths]))
        return {
            "position_ids": sent[1],
            "attention_mask": self._masks(sent[0], sent[1], int(depths.max()) + 1),
        }

    def _masks(
        self, ends: torch.Tensor, depths: torch.Tensor, deepest: int
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        places = torch.arange(ends.shape[1], device=ends.device)
        sees = (places[:, None] >= places) & (
            places[:, None] < ends[:, None, :]
        )  # (rows, query, key)
        full = self._additive(sees)
        if self._window is None or deepest <= self._window:
            near = full
        else:
            near = self._additive(sees & (depths[:, :, None] - depths[:, None, :] < self._window))
        if "sliding_attention" in self._layer_types:
            return {"full_attention": full, "sliding_attention": near}
        return full if self._layer_types else near

    def _additive(self, sees: torch.Tensor) -> torch.Tensor:
        blank = torch.zeros(sees.shape, dtype=self.dtype, device=sees.device)
        return blank.masked_fill_(~sees, torch.finfo(self.dtype).min).unsqueeze(
            1
        )  # (rows, 1, query, key)

    def _read(self, rows: list[Forest], hidden: torch.Tensor, length: int) -> Outcome:
        """Gather log-probabilities: the head runs once per position read, however many ask for it."""
        reads = [
            (i * length, strand, nodes) for i, row in enumerate(rows) for strand, nodes in row.reads
        ]
        places: list[int] = []
        targets: list[int] = []
        for _, strand, nodes in reads:
            places.extend(nodes)
            targets.extend(strand.ids[-strand.scored :])
        counts = [strand.scored for _, strand, _ in reads]
        askers = np.repeat([strand.index for _, strand, _ in reads], counts)
        spots = np.asarray(places, dtype=np.int64) + np.repeat(
            [offset for offset, _, _ in reads], counts
        )
        order = np.argsort(spots, kind="stable")
        unique, group = np.unique(spots[order], return_inverse=True)
        wanted = np.asarray(targets, dtype=np.int64)[order]
        sent = self._send(np.concatenate([unique, group, wanted]))
        at, which, target = (
            sent[: len(unique)],
            sent[len(unique) : len(unique) + len(group)],
            sent[-len(group) :],
        )
        step = max(1, HEAD_BYTES.get(self.device.type, 1 << 28) // (4 * self.vocabulary))
        logprobs: list[torch.Tensor] = []
        hits: list[torch.Tensor] = []
        for start in range(0, len(unique), step):
            logits = self.logits(hidden[at[start : start + step]])  # (positions, vocabulary)
            first, last = np.searchsorted(group, [start, start + step])
            local, goal = which[first:last] - start, target[first:last]
            logprobs.append(log_softmax(logits)[local, goal])
            hits.append(logits.argmax(dim=-1)[local] == goal)
        return Outcome(askers.astype(np.int64)[order], torch.cat(logprobs), torch.cat(hits))

    def _send(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        on_gpu = self.device.type == "cuda"
        return (
            pinned(array).to(self.device, non_blocking=True) if on_gpu else torch.from_numpy(array)
        )


def size_of(config: Any, name: str, otherwise: int) -> int:
    """Read a size from a config; the largest where it varies over layers."""
    try:
        value = getattr(config, name, None)
    except Exception:  # transformers refuses to name one where layers differ
        value = [getattr(layer, name, None) for layer in config.per_layer_config]
    if isinstance(value, list | tuple):
        value = max((entry for entry in value if isinstance(entry, int)), default=None)
    return value if isinstance(value, int) and value > 0 else otherwise


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities in at least float32, by the operation lm-eval uses, so that its rounding is shared."""
    return torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _tree_obstacle(body: Any, config: Any) -> str | None:
    """Say why this model cannot take a mask and positions of our own, or None."""
    kinds = frozenset(getattr(config, "layer_types", None) or ())
    if kinds - TREE_LAYERS:
        return f"it has layers of kind {', '.join(sorted(kinds - TREE_LAYERS))}"
    accepted = inspect.signature(body.forward).parameters
    if "position_ids" not in accepted or "attention_mask" not in accepted:
        return "its forward pass takes no position ids"
    if getattr(config, "alibi", False):
        return "its attention depends on distances in the row (ALiBi)"
    return None


def horizons(config: Any, longest: int) -> list[int]:
    """Find the numbers of a config that may be a window shorter than ``longest``."""
    found: set[int] = set()

    def look(entries: dict[Any, Any]) -> None:
        for name, value in entries.items():
            if isinstance(value, dict):
                look(value)
            elif any(word in str(name) for word in WINDOWS):
                values = value if isinstance(value, list | tuple) else [value]
                found.update(
                    v
                    for v in values
                    if isinstance(v, int) and not isinstance(v, bool) and 1 < v < longest
                )

    look(config.to_dict())
    return sorted(found)


# ---- rows of trials ----

POOL = 64  # tokens that they are made of


def token_pool(texts: Sequence[Ids], vocabulary: int, draw: random.Random) -> list[int]:
    """Choose tokens to make rows from: those of the requests, and others where these are few."""
    seen = list(dict.fromkeys(chain.from_iterable(texts)))
    if len(seen) > POOL:
        seen = draw.sample(seen, POOL)
    return seen if len(seen) >= 8 else [*seen, *(draw.randrange(vocabulary) for _ in range(16))]


def telling(rows: Sequence[Forest], few: int) -> list[Strand]:
    """Choose the strands to compare: the deepest, the one farthest from its stem, others between, and all owners."""
    reads = [
        (strand, row.depths[nodes[-1]], nodes[-1] - row.depths[nodes[-1]])
        for row in rows
        for strand, nodes in row.reads
    ]
    depths, gaps = (sorted(reads, key=itemgetter(column)) for column in (1, 2))
    chosen = [depths[-1], gaps[-1], depths[0], gaps[len(gaps) // 2]][:few]
    chosen += {strand.owner: (strand, depth, gap) for strand, depth, gap in gaps}.values()
    return list({strand.index: strand for strand, _, _ in chosen}.values())
