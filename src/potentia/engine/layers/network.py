"""The model as the scorer sees it: a body that makes hidden states of rows, and a head that is called where needed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from potentia.engine.layers.prefix_tree import PrefixTreeRow, ScoredSequence
from potentia.engine.layers.recomputation import standard_attention
from potentia.engine.layers.scoring_layers import FusedScoringLayers
from potentia.engine.models.device_layout import free_memory, pinned
from potentia.engine.models.split_model import SplitModel
from potentia.engine.models.tokenization import Ids

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel

HEAD_BYTES = {"cuda": 1 << 29, "cpu": 1 << 28}  # of float32 logits at a time
DEFAULT_HEAD_BYTES = 1 << 28
CPU_CACHE_BYTES = 1 << 31
# masked attention on a GPU wants the key length in multiples of 16 bytes
ALIGNMENT = {"cuda": 8, "cpu": 1}
STRETCH = 16  # tokens that share an adapter in fused layers
# words in the names of settings that may be windows
WINDOW_WORDS = (
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
class ReadResults:
    """Results of one batch, still on the device: for each read, the log-probability and whether it was the argmax."""

    sequences: npt.NDArray[np.int64]  # (reads,) index of the request that asked
    logprobs: torch.Tensor  # (reads,)
    hits: torch.Tensor  # (reads,)


class SentTensors:
    """Tensors as they are now, on their way to the host, which need not wait for the device."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._tensors: list[torch.Tensor] = []
        if tensors[0].device.type != "cuda":
            self._tensors = [tensor.clone() for tensor in tensors]
            return
        for tensor in tensors:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensors.append(buffer.copy_(tensor, non_blocking=True))
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
        self, loaded: LoadedModel, router: Router | None = None, *, fused: bool = False
    ) -> None:
        model = loaded.model
        if hasattr(model, "get_base_model"):  # a PEFT wrapper
            model = model.get_base_model()
        self.model = model
        split = SplitModel(model)
        self.run_body = split.run
        self.compute_logits = split.logits
        self.vocabulary = split.vocabulary
        self.device = loaded.device
        self.dtype = loaded.dtype
        self.router = router
        self.fused_layers = FusedScoringLayers.find(model) if fused else None
        self.config = getattr(model.config, "text_config", None) or model.config
        self.tree_obstacle = _find_tree_obstacle(split.body, self.config)
        self._layer_types = frozenset(getattr(self.config, "layer_types", None) or ())
        self._window = getattr(self.config, "sliding_window", None)
        if getattr(self.config, "use_sliding_window", True) is False:
            self._window = None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch the model to evaluation without gradients, and back to what it was, with no adapter on."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            if self.router is not None:
                self.router.route(None)
            if was_training:
                self.model.train()

    def route(self, owners: Sequence[int]) -> None:
        """Tell the router whose rows come next."""
        if self.router is None:
            return
        if any(owner >= 0 for owner in owners):
            self.router.route(torch.tensor(list(owners), device=self.device))
        else:
            self.router.route(None)

    def count_cacheable_tokens(self) -> int:
        """How many tokens' keys and values may be kept: a third of the free memory of a GPU, 2 GiB on a CPU."""
        heads = read_size(self.config, "num_attention_heads", 1)
        hidden_size = read_size(self.config, "hidden_size", 1024)
        head_width = read_size(self.config, "head_dim", hidden_size // heads)
        key_value_heads = read_size(self.config, "num_key_value_heads", heads)
        layers = read_size(self.config, "num_hidden_layers", 1)
        token_bytes = 2 * layers * key_value_heads * head_width * self.dtype.itemsize
        free_bytes = CPU_CACHE_BYTES
        if self.device.type == "cuda":
            free_bytes = free_memory(self.device) // 3
        return int(free_bytes // token_bytes)

    def reference_logprobs(
        self, sequence: ScoredSequence, *, copies: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability of each scored token, and whether it is the likeliest, by the model's own forward.

        This is the reference of all faster paths: one sequence at a time.
        """
        ids = torch.tensor([sequence.ids] * copies, device=self.device)
        self.route([sequence.owner] * copies)
        with standard_attention(self.device):  # every length is a new shape
            output = self.model(input_ids=ids[:, :-1], use_cache=False)
        logits = output.logits[0, -sequence.scored :]  # (scored, vocabulary)
        targets = ids[0, -sequence.scored :]
        # nothing of this is shared with other paths
        precise_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logprobs = torch.log_softmax(precise_logits, -1).gather(1, targets[:, None])[:, 0]
        return logprobs, logits.argmax(dim=-1) == targets

    def reference_tokens(self, prompt: Ids, room: int, owner: int) -> Ids:
        """Return what the model's own ``generate`` writes after a prompt, greedily."""
        self.route([owner])
        ids = torch.tensor([prompt], device=self.device)
        output = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=room,
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            pad_token_id=0,
        )
        return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]

    def score_rows(self, rows: list[PrefixTreeRow]) -> ReadResults:
        """Score one batch of rows, either all with branches or all without."""
        rows = sorted(rows, key=lambda row: row.owner)
        masked = any(row.has_branches for row in rows)
        longest = max(1, *(len(row) for row in rows))
        length = self._padded_length(longest, masked=masked)
        tokens = np.zeros((len(rows), length), dtype=np.int64)
        for number, row in enumerate(rows):
            tokens[number, : len(row)] = row.tokens
        inputs: dict[str, Any] = {"input_ids": self._send(tokens)}
        if masked:
            inputs |= self._tree_inputs(rows, length)
        self.route([row.owner for row in rows])
        with self._computing_rows(length):
            output = self.run_body(**inputs, use_cache=False)
        hidden = output.last_hidden_state  # (rows, length, width)
        return self._read(rows, hidden.reshape(-1, hidden.shape[-1]), length)

    def _computing_rows(self, length: int) -> AbstractContextManager[None]:
        """Let rows of so many tokens go through fused layers inside the block, where there are any."""
        if self.fused_layers is None:
            return nullcontext()
        return self.fused_layers.active(length)

    def _padded_length(self, longest: int, *, masked: bool) -> int:
        """Return the length that rows are padded to: what layers or attention want multiples of."""
        step = 1
        if self.fused_layers is not None:
            step = STRETCH
        elif masked:
            step = ALIGNMENT.get(self.device.type, 1)
        return -(-longest // step) * step

    def _tree_inputs(self, rows: list[PrefixTreeRow], length: int) -> dict[str, Any]:
        """Return positions and masks of rows with branches."""
        ends = np.tile(np.arange(1, length + 1), (len(rows), 1))  # padding sees itself alone
        depths = np.zeros((len(rows), length), dtype=np.int64)
        for number, row in enumerate(rows):
            ends[number, : len(row)] = row.ends
            depths[number, : len(row)] = row.depths
        sent = self._send(np.stack([ends, depths]))
        return {
            "position_ids": sent[1],
            "attention_mask": self._tree_masks(sent[0], sent[1], int(depths.max()) + 1),
        }

    def _tree_masks(
        self, ends: torch.Tensor, depths: torch.Tensor, deepest: int
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the mask of rows with branches, for each kind of layer where a model has two."""
        nodes = torch.arange(ends.shape[1], device=ends.device)
        is_later = nodes[:, None] >= nodes
        sees = is_later & (nodes[:, None] < ends[:, None, :])  # (rows, query, key)
        full_mask = self._additive_mask(sees)
        window_mask = full_mask
        if self._window is not None and deepest > self._window:
            distances = depths[:, :, None] - depths[:, None, :]
            window_mask = self._additive_mask(sees & (distances < self._window))
        if "sliding_attention" in self._layer_types:
            return {"full_attention": full_mask, "sliding_attention": window_mask}
        if self._layer_types:
            return full_mask
        return window_mask

    def _additive_mask(self, sees: torch.Tensor) -> torch.Tensor:
        blank = torch.zeros(sees.shape, dtype=self.dtype, device=sees.device)
        mask = blank.masked_fill_(~sees, torch.finfo(self.dtype).min)
        return mask.unsqueeze(1)  # (rows, 1, query, key)

    def _read(self, rows: list[PrefixTreeRow], hidden: torch.Tensor, length: int) -> ReadResults:
        """Gather log-probabilities: the head runs once per position read, however many ask for it."""
        nodes: list[int] = []
        offsets: list[int] = []
        targets: list[int] = []
        counts: list[int] = []
        indices: list[int] = []
        for number, row in enumerate(rows):
            for sequence, read_nodes in row.reads:
                nodes.extend(read_nodes)
                targets.extend(sequence.ids[-sequence.scored :])
                offsets.append(number * length)
                counts.append(sequence.scored)
                indices.append(sequence.index)
        asking = np.repeat(indices, counts).astype(np.int64)
        positions = np.asarray(nodes, dtype=np.int64) + np.repeat(offsets, counts)
        order = np.argsort(positions, kind="stable")
        unique_positions, group = np.unique(positions[order], return_inverse=True)
        ordered_targets = np.asarray(targets, dtype=np.int64)[order]
        sent = self._send(np.concatenate([unique_positions, group, ordered_targets]))
        sent_sizes = [len(unique_positions), len(group), len(group)]
        sent_positions, sent_groups, sent_targets = torch.split(sent, sent_sizes)
        logit_bytes = 4 * self.vocabulary
        step = max(1, HEAD_BYTES.get(self.device.type, DEFAULT_HEAD_BYTES) // logit_bytes)
        logprobs: list[torch.Tensor] = []
        hits: list[torch.Tensor] = []
        for start in range(0, len(unique_positions), step):
            at = sent_positions[start : start + step]
            logits = self.compute_logits(hidden[at])  # (positions, vocabulary)
            first, last = np.searchsorted(group, [start, start + step])
            local = sent_groups[first:last] - start
            target = sent_targets[first:last]
            logprobs.append(log_softmax(logits)[local, target])
            hits.append(logits.argmax(dim=-1)[local] == target)
        return ReadResults(asking[order], torch.cat(logprobs), torch.cat(hits))

    def _send(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        if self.device.type == "cuda":
            return pinned(array).to(self.device, non_blocking=True)
        return torch.from_numpy(array)


def read_size(config: Any, name: str, otherwise: int) -> int:
    """Read a size from a config; the largest where it varies over layers."""
    try:
        value = getattr(config, name, None)
    except Exception:  # transformers refuses to name one where layers differ
        value = [getattr(layer, name, None) for layer in config.per_layer_config]
    if isinstance(value, list | tuple):
        value = max((entry for entry in value if isinstance(entry, int)), default=None)
    if isinstance(value, int) and value > 0:
        return value
    return otherwise


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities in at least float32, by the operation lm-eval uses, so that its rounding is shared."""
    return torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _find_tree_obstacle(body: Any, config: Any) -> str | None:
    """Say why this model cannot take a mask and positions of our own, or None."""
    layer_types = frozenset(getattr(config, "layer_types", None) or ())
    if layer_types - TREE_LAYERS:
        return f"it has layers of kind {', '.join(sorted(layer_types - TREE_LAYERS))}"
    accepted = inspect.signature(body.forward).parameters
    if "position_ids" not in accepted or "attention_mask" not in accepted:
        return "its forward pass takes no position ids"
    if getattr(config, "alibi", False):
        return "its attention depends on distances in the row (ALiBi)"
    return None


def find_windows(config: Any, longest: int) -> list[int]:
    """Find the numbers of a config that may be a window shorter than ``longest``."""
    windows: set[int] = set()

    def search(entries: dict[Any, Any]) -> None:
        for name, value in entries.items():
            if isinstance(value, dict):
                search(value)
            elif any(word in str(name) for word in WINDOW_WORDS):
                values = value if isinstance(value, list | tuple) else [value]
                windows.update(number for number in values if _is_window(number, longest))

    search(config.to_dict())
    return sorted(windows)


def _is_window(value: Any, longest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 < value < longest
