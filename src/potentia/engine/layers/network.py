"""The model as the scorer sees it: a body that turns rows of tokens into hidden states, and a head that predicts.

A row is a prefix tree of sequences to score (see ``prefix_tree``). :meth:`Network.score_rows` runs a batch of rows
through the body, and the head at the positions alone whose prediction is read. Before each pass a :class:`Router` is
told whose adapter every row uses: a row's *owner* is the slot of its adapter in the bank, or −1 for none.
"""

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
from potentia.engine.layers.row_layout import STRETCH
from potentia.engine.layers.scoring_layers import FusedScoringLayers
from potentia.engine.models.device_layout import free_memory, pinned
from potentia.engine.models.split_model import SplitModel
from potentia.engine.models.tokenization import Ids

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel

HEAD_BYTES = {"cuda": 1 << 29, "cpu": 1 << 28}  # of float32 logits at a time
DEFAULT_HEAD_BYTES = 1 << 28  # the same on other devices
CPU_CACHE_BYTES = 1 << 31  # of keys and values
# tokens: masked attention on a GPU wants the key length in multiples of 16 bytes
MASK_ALIGNMENT = {"cuda": 8, "cpu": 1}
# words in the names of config settings that may hold the length of an attention window
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
# kinds of layers that take a mask of our own
TREE_LAYERS = frozenset({"full_attention", "sliding_attention"})


class Router(Protocol):
    """Whoever gives each row of a batch its adapter: the adapter bank."""

    def route(self, row_owners: torch.Tensor | None) -> None:
        """Use these owners (rows,), int64, in the next forward pass; None: no row has an adapter."""


@dataclass(slots=True)
class ReadResults:
    """The predictions that were read from one batch, still on the device."""

    requests: npt.NDArray[np.int64]  # (reads,) the index of the request that reads the prediction
    logprobs: torch.Tensor  # (reads,) the log-probability of the scored token
    greedy_hits: torch.Tensor  # (reads,) whether the scored token is the likeliest


class SentTensors:
    """A copy of tensors as they are now, on its way to the host, which need not wait for the device until it reads."""

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
        """Wait until the copies have arrived, and return them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [tensor.numpy() for tensor in self._tensors]


class Network:
    """A causal language model that scores rows without computing logits for positions that nobody reads.

    ``fused`` asks for our own fused layers where the model's are of the kind that they compute.
    """

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
        """Evaluate without gradients inside the block; after it the model has its earlier mode, and no adapter."""
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
        """Tell the router the owners of the next pass's rows; if all are −1, that no row has an adapter."""
        if self.router is None:
            return
        if any(owner >= 0 for owner in owners):
            self.router.route(torch.tensor(list(owners), device=self.device))
        else:
            self.router.route(None)

    def count_cacheable_tokens(self) -> int:
        """Return how many tokens' keys and values fit the cache: a third of a GPU's free memory, 2 GiB on a CPU."""
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

        This is the reference of all faster paths: one sequence at a time. ``copies`` of the sequence make the batch, of
        which the first is read: more than one shows how much the model's numbers depend on the batch's size.
        """
        token_ids = torch.tensor([sequence.ids] * copies, device=self.device)
        self.route([sequence.owner] * copies)
        with standard_attention(self.device):  # every length is a new shape
            output = self.model(input_ids=token_ids[:, :-1], use_cache=False)
        logits = output.logits[0, -sequence.scored :]  # (scored, vocabulary)
        targets = token_ids[0, -sequence.scored :]
        # written out here, so that no mistake of another path can be in the reference too
        precise_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logprobs = torch.log_softmax(precise_logits, -1).gather(1, targets[:, None])[:, 0]
        return logprobs, logits.argmax(dim=-1) == targets

    def reference_tokens(self, prompt: Ids, room: int, owner: int) -> Ids:
        """Return up to ``room`` tokens that the model's own ``generate`` writes after a prompt, greedily."""
        self.route([owner])
        token_ids = torch.tensor([prompt], device=self.device)
        output = self.model.generate(
            input_ids=token_ids,
            attention_mask=torch.ones_like(token_ids),
            max_new_tokens=room,
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            pad_token_id=0,
        )
        return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]

    def score_rows(self, rows: list[PrefixTreeRow]) -> ReadResults:
        """Score one batch of rows, which either all need a mask or all need none."""
        rows = sorted(rows, key=lambda row: row.owner)
        needs_mask = any(row.needs_mask for row in rows)
        longest = max(1, *(len(row) for row in rows))
        length = self._pad_length(longest, needs_mask=needs_mask)
        tokens = np.zeros((len(rows), length), dtype=np.int64)
        for row_index, row in enumerate(rows):
            tokens[row_index, : len(row)] = row.tokens
        inputs: dict[str, Any] = {"input_ids": self._send(tokens)}
        if needs_mask:
            inputs |= self._tree_inputs(rows, length)
        self.route([row.owner for row in rows])
        with self._fused_layers_active(length):
            output = self.run_body(**inputs, use_cache=False)
        hidden = output.last_hidden_state  # (rows, length, width)
        return self._read(rows, hidden.reshape(-1, hidden.shape[-1]), length)

    def _fused_layers_active(self, length: int) -> AbstractContextManager[None]:
        """Let rows of ``length`` tokens go through fused layers inside the block, if the model has them."""
        if self.fused_layers is None:
            return nullcontext()
        return self.fused_layers.active(length)

    def _pad_length(self, longest: int, *, needs_mask: bool) -> int:
        """Return the length that rows are padded to: the next multiple of what the layers or attention take."""
        multiple = 1
        if self.fused_layers is not None:
            multiple = STRETCH  # so that no stretch of tokens belongs to two rows
        elif needs_mask:
            multiple = MASK_ALIGNMENT.get(self.device.type, 1)
        return -(-longest // multiple) * multiple

    def _tree_inputs(self, rows: list[PrefixTreeRow], length: int) -> dict[str, Any]:
        """Return the position ids and attention masks of rows that need a mask, padded to ``length`` tokens."""
        # a padding token's subtree ends with itself, so that no other token sees it
        subtree_ends = np.tile(np.arange(1, length + 1), (len(rows), 1))
        depths = np.zeros((len(rows), length), dtype=np.int64)
        for row_index, row in enumerate(rows):
            subtree_ends[row_index, : len(row)] = row.subtree_ends
            depths[row_index, : len(row)] = row.depths
        longest_sequence = int(depths.max()) + 1
        sent_ends, sent_depths = self._send(np.stack([subtree_ends, depths]))
        return {
            "position_ids": sent_depths,
            "attention_mask": self._tree_masks(sent_ends, sent_depths, longest_sequence),
        }

    def _tree_masks(
        self, subtree_ends: torch.Tensor, depths: torch.Tensor, longest_sequence: int
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the mask by which a token attends to itself and its ancestors, for each kind of layer that is named.

        Layers with a window see the nearest ancestors alone; that makes no difference to sequences within the window.
        """
        nodes = torch.arange(subtree_ends.shape[1], device=subtree_ends.device)
        is_not_before = nodes[:, None] >= nodes
        sees = is_not_before & (nodes[:, None] < subtree_ends[:, None, :])  # (rows, query, key)
        full_mask = self._additive_mask(sees)
        window_mask = full_mask
        if self._window is not None and longest_sequence > self._window:
            distances = depths[:, :, None] - depths[:, None, :]
            window_mask = self._additive_mask(sees & (distances < self._window))
        if "sliding_attention" in self._layer_types:
            return {"full_attention": full_mask, "sliding_attention": window_mask}
        if self._layer_types:
            return full_mask
        return window_mask

    def _additive_mask(self, sees: torch.Tensor) -> torch.Tensor:
        """Return the mask (rows, 1, query, key) that is added to scores: 0 where a query sees a key."""
        blank = torch.zeros(sees.shape, dtype=self.dtype, device=sees.device)
        mask = blank.masked_fill_(~sees, torch.finfo(self.dtype).min)
        return mask.unsqueeze(1)

    def _read(self, rows: list[PrefixTreeRow], hidden: torch.Tensor, length: int) -> ReadResults:
        """Return what is read from hidden states (rows · length, width).

        The head runs once at each position that is read, however many sequences read there.
        """
        nodes: list[int] = []
        row_starts: list[int] = []
        targets: list[int] = []
        read_counts: list[int] = []
        indices: list[int] = []
        for row_index, row in enumerate(rows):
            for sequence, read_nodes in row.reads:
                nodes.extend(read_nodes)
                targets.extend(sequence.ids[-sequence.scored :])
                row_starts.append(row_index * length)
                read_counts.append(sequence.scored)
                indices.append(sequence.index)
        requests = np.repeat(indices, read_counts).astype(np.int64)
        positions = np.asarray(nodes, dtype=np.int64) + np.repeat(row_starts, read_counts)
        order = np.argsort(positions, kind="stable")
        # head_rows: for each read, the index of its position among the unique ones
        unique_positions, head_rows = np.unique(positions[order], return_inverse=True)
        ordered_targets = np.asarray(targets, dtype=np.int64)[order]
        sent_tensors = self._send(np.concatenate([unique_positions, head_rows, ordered_targets]))
        sent_sizes = [len(unique_positions), len(head_rows), len(head_rows)]
        sent_positions, sent_head_rows, sent_targets = torch.split(sent_tensors, sent_sizes)
        logit_bytes = 4 * self.vocabulary
        head_bytes = HEAD_BYTES.get(self.device.type, DEFAULT_HEAD_BYTES)
        positions_per_step = max(1, head_bytes // logit_bytes)
        logprobs: list[torch.Tensor] = []
        greedy_hits: list[torch.Tensor] = []
        for start in range(0, len(unique_positions), positions_per_step):
            step_positions = sent_positions[start : start + positions_per_step]
            logits = self.compute_logits(hidden[step_positions])  # (positions, vocabulary)
            first_read, end_read = np.searchsorted(head_rows, [start, start + positions_per_step])
            logit_rows = sent_head_rows[first_read:end_read] - start
            step_targets = sent_targets[first_read:end_read]
            logprobs.append(log_softmax(logits)[logit_rows, step_targets])
            greedy_hits.append(logits.argmax(dim=-1)[logit_rows] == step_targets)
        return ReadResults(
            requests=requests[order],
            logprobs=torch.cat(logprobs),
            greedy_hits=torch.cat(greedy_hits),
        )

    def _send(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        """Send an array to the device, without waiting for it."""
        if self.device.type == "cuda":
            return pinned(array).to(self.device, non_blocking=True)
        return torch.from_numpy(array)


def read_size(config: Any, setting_name: str, default: int) -> int:
    """Return a size from a config, the largest if layers differ; ``default`` if the config does not have it."""
    try:
        value = getattr(config, setting_name, None)
    except Exception:  # transformers raises where layers differ in the setting
        value = [getattr(layer, setting_name, None) for layer in config.per_layer_config]
    if isinstance(value, list | tuple):
        value = max((entry for entry in value if isinstance(entry, int)), default=None)
    if isinstance(value, int) and value > 0:
        return value
    return default


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities in float32 at least, by the operation that lm-eval uses, so that both round alike."""
    return torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _find_tree_obstacle(body: Any, config: Any) -> str | None:
    """Return why this model cannot take a mask and positions of our own; None if it can."""
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
    """Return the numbers of a config that may be the length of a window shorter than ``longest``, sorted."""
    windows: set[int] = set()

    def search(entries: dict[Any, Any]) -> None:
        for setting_name, value in entries.items():
            if isinstance(value, dict):
                search(value)
            elif any(word in str(setting_name) for word in WINDOW_WORDS):
                values = value if isinstance(value, list | tuple) else [value]
                windows.update(number for number in values if _is_window(number, longest))

    search(config.to_dict())
    return sorted(windows)


def _is_window(value: Any, longest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 < value < longest
