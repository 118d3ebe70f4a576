"""The model as the scorer sees it: rows that share beginnings, a body that turns them into hidden states, and a head.

A row is a forest in preorder. A node is a token; its ancestors are what it may look at; ``ends[j]`` is one past the
last node of j's subtree, so that node i sees node j exactly when j <= i < ends[j]. The choices of a question are
branches of one stem, single-token choices are no branches at all, a few-shot prompt is a stem for many questions,
and unrelated questions stand side by side in a row without seeing each other. The head is called only where needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from potentia.engine.split import SplitModel
from potentia.engine.tokens import Ids

if TYPE_CHECKING:
    from potentia.engine.loading import LoadedModel

OVERHANG = 4  # branches of a stem that is already in a row may exceed the row's length by a quarter


@dataclass(frozen=True, slots=True)
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


class _Planter:
    """Grow one row at a time from sequences in lexicographic order, so that neighbours share the most."""

    def __init__(self, row_tokens: int, *, share: bool, most: int | None = None) -> None:
        self.row_tokens = row_tokens
        self.most = most
        self.share = share
        self.rows: list[Forest] = []
        self.row: Forest | None = None
        self.path: list[int] = []  # nodes from the root to the tip
        self.inputs: list[int] = []  # their tokens

    def add(self, strand: Strand) -> None:
        inputs = strand.ids[:-1]
        row = self.row
        shared = common_prefix(self.inputs, inputs) if row is not None and row.owner == strand.owner else 0
        if row is None or not self._fits(row, strand.owner, len(inputs), shared):
            self._close()
            row = self.row = Forest(strand.owner)
            self.rows.append(row)
            shared = 0
        fresh = len(inputs) - shared
        self._seal(row, shared)
        if fresh:
            start = len(row.tokens)
            if start and (not self.path or self.path[-1] != start - 1):
                row.branches = True
            row.tokens.extend(inputs[shared:])
            row.depths.extend(range(shared, len(inputs)))
            row.ends.extend([0] * fresh)
            self.path.extend(range(start, start + fresh))
        self.inputs = inputs
        row.reads.append((strand, self.path[len(self.path) - strand.scored :]))

    def _fits(self, row: Forest, owner: int, length: int, shared: int) -> bool:
        if row.owner != owner:
            return False
        fresh = length - shared
        if fresh == 0:
            return True
        if not self.share:
            return shared == len(self.path) == len(row.tokens)  # a longer copy of the only sequence in the row
        limit = self.row_tokens
        if shared > fresh:
            limit = max(limit, 2 * length)
            limit += limit // OVERHANG
        if self.most is not None:
            limit = min(limit, self.most)
        return len(row.tokens) + fresh <= limit

    def _seal(self, row: Forest, keep: int) -> None:
        """End the subtrees of all nodes below the depth that the next sequence shares."""
        ends, end = row.ends, len(row.tokens)
        for node in self.path[keep:]:
            ends[node] = end
        del self.path[keep:]

    def _close(self) -> None:
        if self.row is not None:
            self._seal(self.row, 0)
        self.row = None
        self.path = []
        self.inputs = []

    def finish(self) -> list[Forest]:
        self._close()
        return self.rows


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
    cut = longest_shared if share and longest_shared is not None else None
    together = [s for s in strands if cut is None or len(s.ids) <= cut]
    apart = [s for s in strands if cut is not None and len(s.ids) > cut]
    rows: list[Forest] = []
    for group, sharing in ((together, share), (apart, False)):
        planter = _Planter(row_tokens, share=sharing, most=most)
        for strand in sorted(group, key=lambda s: (s.owner, s.ids)):
            planter.add(strand)
        rows += planter.finish()
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


def common_prefix(one: list[int], other: list[int]) -> int:
    """Count the tokens on which two sequences agree from the start, by bisection over slices."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:  # one[:low] agrees, one[:high] does not
        middle = (low + high) // 2
        if middle == low:
            break
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


# ---- the model ----

HEAD_BYTES = {"cuda": 1 << 29, "cpu": 1 << 28}  # of float32 logits at a time
CPU_CACHE_BYTES = 1 << 31
ALIGNMENT = {"cuda": 8, "cpu": 1}  # masked attention on a GPU wants the key length in multiples of 16 bytes
# words in the names of settings that may be windows
WINDOWS = ("window", "chunk", "local", "original_max", "block", "topk", "stride", "compress", "span", "back")
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


class Network:
    """Run rows through a causal LM without ever forming logits for positions that nobody reads."""

    def __init__(self, loaded: LoadedModel, router: Router | None = None) -> None:
        model = loaded.model
        if hasattr(model, "get_base_model"):  # a PEFT wrapper
            model = model.get_base_model()
        self.model = model
        split = SplitModel(model)
        self.run, self.logits, self.vocabulary = split.run, split.logits, split.vocabulary  # body, head, its width
        self.device = loaded.device
        self.dtype = loaded.dtype
        self.router = router
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
        free = torch.cuda.mem_get_info(self.device)[0] // 3 if self.device.type == "cuda" else CPU_CACHE_BYTES
        return int(free // size)

    def own_logprobs(self, strand: Strand, *, copies: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability of each scored token, and whether it is the likeliest, by the model's own forward.

        This is the reference of all faster paths: one sequence at a time.
        """
        ids = torch.tensor([strand.ids] * copies, device=self.device)
        self.route([strand.owner] * copies)
        logits = self.model(input_ids=ids[:, :-1], use_cache=False).logits[0, -strand.scored :]  # (scored, vocabulary)
        wanted = ids[0, -strand.scored :]
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))  # nothing of this is shared with other paths
        return torch.log_softmax(wide, -1).gather(1, wanted[:, None])[:, 0], logits.argmax(dim=-1) == wanted

    def own_tokens(self, prompt: Ids, room: int, owner: int) -> Ids:
        """Return what the model's own ``generate`` writes after a prompt, greedily."""
        self.route([owner])
        ids = torch.tensor([prompt], device=self.device)
        greedy = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "pad_token_id": 0}
        out = self.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=room, **greedy)
        return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]

    def score(self, rows: list[Forest]) -> Outcome:
        """Score one batch of rows, either all with branches or all without."""
        rows = sorted(rows, key=lambda row: row.owner)
        length = max(1, *(len(row) for row in rows))
        masked = any(row.branches for row in rows)
        if masked:
            step = ALIGNMENT.get(self.device.type, 1)
            length = -(-length // step) * step
        tokens = np.zeros((len(rows), length), dtype=np.int64)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = row.tokens
        inputs: dict[str, Any] = {"input_ids": self._send(tokens)}
        if masked:
            inputs |= self._tree(rows, length)
        self.route([row.owner for row in rows])
        hidden = self.run(**inputs, use_cache=False).last_hidden_state  # (rows, length, width)
        return self._read(rows, hidden.reshape(-1, hidden.shape[-1]), length)

    def _tree(self, rows: list[Forest], length: int) -> dict[str, Any]:
        ends = np.tile(np.arange(1, length + 1), (len(rows), 1))  # padding sees itself alone
        depths = np.zeros((len(rows), length), dtype=np.int64)
        for i, row in enumerate(rows):
            ends[i, : len(row)] = row.ends
            depths[i, : len(row)] = row.depths
        sent = self._send(np.stack([ends, depths]))
        return {"position_ids": sent[1], "attention_mask": self._masks(sent[0], sent[1], int(depths.max()) + 1)}

    def _masks(self, ends: torch.Tensor, depths: torch.Tensor, deepest: int) -> torch.Tensor | dict[str, torch.Tensor]:
        places = torch.arange(ends.shape[1], device=ends.device)
        sees = (places[:, None] >= places) & (places[:, None] < ends[:, None, :])  # (rows, query, key)
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
        return blank.masked_fill_(~sees, torch.finfo(self.dtype).min).unsqueeze(1)  # (rows, 1, query, key)

    def _read(self, rows: list[Forest], hidden: torch.Tensor, length: int) -> Outcome:
        """Gather log-probabilities: the head runs once per position read, however many ask for it."""
        reads = [(i * length, strand, nodes) for i, row in enumerate(rows) for strand, nodes in row.reads]
        places: list[int] = []
        targets: list[int] = []
        for _, strand, nodes in reads:
            places.extend(nodes)
            targets.extend(strand.ids[-strand.scored :])
        counts = [strand.scored for _, strand, _ in reads]
        askers = np.repeat([strand.index for _, strand, _ in reads], counts)
        spots = np.asarray(places, dtype=np.int64) + np.repeat([offset for offset, _, _ in reads], counts)
        order = np.argsort(spots, kind="stable")
        unique, group = np.unique(spots[order], return_inverse=True)
        wanted = np.asarray(targets, dtype=np.int64)[order]
        sent = self._send(np.concatenate([unique, group, wanted]))
        at, which, target = sent[: len(unique)], sent[len(unique) : len(unique) + len(group)], sent[-len(group) :]
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
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor


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
                found.update(v for v in values if isinstance(v, int) and not isinstance(v, bool) and 1 < v < longest)

    look(config.to_dict())
    return sorted(found)
