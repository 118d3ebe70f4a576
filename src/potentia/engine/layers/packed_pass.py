"""One pass of lanes over a bucket of static sizes: forward, backward, gradients added, losses added; no value is read.

The pass touches nothing but tensors at fixed addresses, so a GPU can capture it once and replay it (``steps``); the
same lines run uncaptured on any device. The model's own layers run, with attention kept within rows and adapters
applied to stretches of the long row; or, where they are of the commonest kind, a form with forward and backward written
out by hand for frozen weights: it adds attention and a gated feed-forward block, each on a root-mean-square norm: ::

    h₂ = h + W_o · attend(rotate(W_qkv · norm(h)))        h₃ = h₂ + W_d · (silu(g) ∘ u),  (g, u) = W_gu · norm(h₂)

Queries and keys may be normed head by head before they are turned, branches normed before they are added, gates opened
by gelu, and attention may see a window, as in Qwen 3 and Gemma 3. As one unit it needs eight large products and a dozen
passes over memory, about a third of what its parts need one by one: projections of the same input are one product,
residual sums ride on norms, gradients of gates overwrite the gates. In the last layer, what comes after attention is
computed at the tokens that a loss looks at, a tenth of all where losses are of answers. Whether a model's layers are of
this kind is found by trying (see ``check``): an attribute's name proves nothing.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite
from potentia.engine.layers.lane_layers import AdaptedLinear
from potentia.engine.layers.recomputation import recomputed_activations, standard_attention
from potentia.engine.layers.row_layout import (
    AdapterGroup,
    LaneRoute,
    LossTokens,
    PackedInputs,
    PackedRun,
)
from potentia.engine.models.device_layout import find_blocks
from potentia.engine.models.split_model import SplitModel, attending, computing, configs_of
from potentia.engine.operations import Gain, operations, ready
from potentia.errors import ModelError

GROUPS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))
BEFORE, AFTER = (
    ("before attention", "before the gates"),
    ("after attention", "after the gates"),
)  # places of norms
HEADS = ("q_norm", "k_norm")


class FusedLayer:
    """One layer: its weights, side by side where they read the same input, and its adapters' places.

    Without ``joined`` the weights stay where they are, and there are no ``products``: scoring moves nothing that a
    captured pass may read.
    """

    def __init__(self, layer: Any, *, joined: bool = True) -> None:
        self.layer = layer
        attention, mlp = layer.self_attn, layer.mlp
        homes = zip(GROUPS, (attention, attention, mlp, mlp), strict=True)
        self.parts = {name: getattr(home, name) for group, home in homes for name in group}
        self.norms = _norms(layer)
        self._refuse()
        self.gains = {place: _gain(norm) for place, norm in self.norms.items()}
        self.head = int(attention.head_dim)
        self.scale = float(attention.scaling)
        own = getattr(
            attention, "config", None
        )  # some layers know of a window themselves, some ask the model
        self.window: int | None = getattr(
            attention, "sliding_window", getattr(own, "sliding_window", None)
        )
        self.gelu = _is_gelu(mlp.act_fn)
        rows = [self.parts[name].weight.shape[0] for name in GROUPS[0]]
        self.heads, self.kept = rows[0] // self.head, rows[1] // self.head
        self.products = [
            _side_by_side([self.parts[name] for name in group]) for group in GROUPS if joined
        ]
        biases = [self.parts[name].bias for name in GROUPS[0]]  # of all three, or of none
        self.bias = torch.cat([bias.detach() for bias in biases]) if biases[0] is not None else None
        self.adapters: list[AdapterGroup | None] = [None] * len(GROUPS)

    def _refuse(self) -> None:
        """Refuse layers that have more to them than is written out here, as biases of gates."""
        attention, parts = self.layer.self_attn, self.parts.values()
        written_out = (*self.norms.values(), *parts)
        more = sum(1 for _ in self.layer.parameters()) > sum(
            1 for part in written_out for _ in part.parameters()
        )
        biased = {
            name for name, part in self.parts.items() if getattr(part, "bias", None) is not None
        }
        heads = [self.norms[place].weight.shape[0] for place in HEADS if place in self.norms]
        if (
            more
            or self.altered
            or any(type(part) is not nn.Linear for part in parts)
            or biased not in ({*GROUPS[0]}, set())
            or heads not in ([], [attention.head_dim] * 2)
            or getattr(attention, "attn_logit_softcapping", None) is not None
        ):
            raise TypeError("a layer of another kind")

    @property
    def altered(self) -> bool:
        """Whether somebody else's forward or hook is in place."""
        parts = (*self.norms.values(), *self.parts.values())
        return any(map(_altered, (self.layer, self.layer.self_attn, self.layer.mlp, *parts)))

    def adapt(self, bank: AdapterBank, where: Mapping[int, AdapterSite]) -> None:
        """Note where the bank's adapters of this layer lie, given the sites of all layers' parts."""
        for number, group in enumerate(GROUPS):
            sites, column = [], 0
            for name in group:
                if id(self.parts[name]) in where:
                    sites.append((where[id(self.parts[name])], column))
                column += self.parts[name].weight.shape[0]
            self.adapters[number] = AdapterGroup(sites, bank.lora.r, bank.device) if sites else None

    def queries_keys_values(self, turned: Tensor, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """View queries and keys as heads (N, H, d), (N, K, d), and the joint product's values (N, K, d)."""
        parts = (*self._columns(turned)[:2], self._columns(qkv)[2])
        q, k, v = (part.view(part.shape[0], -1, self.head) for part in parts)
        return q, k, v

    def _columns(self, qkv: Tensor) -> tuple[Tensor, ...]:
        ends = [self.heads * self.head, (self.heads + self.kept) * self.head]
        return torch.tensor_split(qkv, ends, dim=1)

    def norm_heads(self, do: Any, qkv: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return queries and keys normed, and their factors; the product itself where they have no norms."""
        if HEADS[0] not in self.gains:
            return qkv, []
        out = qkv.new_empty(qkv.shape[0], (self.heads + self.kept) * self.head)
        parts = zip(
            HEADS, self._columns(qkv), self._columns(out), strict=False
        )  # values have no norm
        return out, [do.norm(part, self.gains[place], into)[1] for place, part, into in parts]

    def norm_heads_back(
        self, do: Any, slope: Tensor, qkv: Tensor, scales: Sequence[Tensor]
    ) -> None:
        """Replace the gradient of queries and keys by the one before their norms."""
        for place, part, raw, scale in zip(
            HEADS, self._columns(slope), self._columns(qkv), scales, strict=False
        ):
            do.norm_back(part, raw, self.gains[place], scale, None, part)

    def norm_branch(self, do: Any, place: str, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a branch normed before it is added, and its factors; itself where it has no such norm."""
        return do.norm(y, self.gains[place]) if place in self.gains else (y, None)

    def norm_branch_back(
        self, do: Any, place: str, slope: Tensor, y: Tensor, scale: Tensor | None
    ) -> Tensor:
        """Return the gradient before such a norm."""
        return slope if scale is None else do.norm_back(slope, y, self.gains[place], scale)


class FusedLayers:
    """All layers of a model, where all are of this kind."""

    def __init__(self, layers: Sequence[nn.Module], *, joined: bool = True) -> None:
        self.blocks = [FusedLayer(layer, joined=joined) for layer in layers]
        self._adapted: weakref.ref[AdapterBank] | None = None

    @classmethod
    def of(cls, model: nn.Module) -> FusedLayers | None:
        """Look for layers that have the attributes of this kind; None where some layer has not."""
        with suppress(AttributeError, TypeError, ValueError, RuntimeError, ModelError):
            return cls(find_blocks(model))
        return None

    @property
    def kept_bytes(self) -> int:
        """The bytes that a token's activations take until its gradient comes."""
        total = 0
        for block in self.blocks:
            (inner, width), item = (
                block.parts["up_proj"].weight.shape,
                block.parts["up_proj"].weight.element_size(),
            )
            heads = 2 * (block.heads + block.kept) + (block.heads + block.kept) * (
                HEADS[0] in block.gains
            )
            widths = (
                4 * width + 2 * width * (AFTER[0] in block.gains) + heads * block.head + 2 * inner
            )
            total += item * widths + 4 * (block.heads + 2)
        return total

    def adapt(self, bank: AdapterBank) -> None:
        """Note where a bank's adapters lie, once: tables sent during a pass would stall it, and spoil its capture."""
        if self._adapted is None or self._adapted() is not bank:
            where = {id(bank.model.get_submodule(site.name)): site for site in bank.sites}
            for block in self.blocks:
                block.adapt(bank, where)
            self._adapted = weakref.ref(bank)

    @contextmanager
    def active(self, run: PackedRun) -> Iterator[None]:
        """Let the layers compute in this form inside the block."""
        self.adapt(run.route.bank)
        early, last = replace(run, picked=None), self.blocks[-1]
        with computing(
            {block.layer: _Forward(block, run if block is last else early) for block in self.blocks}
        ):
            yield


class _Forward:
    """The forward of a layer, set on the instance for as long as the form is active."""

    def __init__(self, block: FusedLayer, run: PackedRun) -> None:
        self.block, self.run = block, run

    def __call__(
        self, hidden_states: Tensor, *_: Any, position_embeddings: tuple[Tensor, Tensor], **__: Any
    ) -> Tensor:
        cos, sin = (part.reshape(-1, part.shape[-1]) for part in position_embeddings)
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        out: Tensor = _Layer.apply(flat, self.run.route.bank.anchor, cos, sin, self.block, self.run)  # type: ignore[no-untyped-call]
        return out.view_as(hidden_states)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        anchor: Tensor,
        cos: Tensor,
        sin: Tensor,
        block: FusedLayer,
        run: PackedRun,
    ) -> Tensor:
        do, inputs = run.operations, run.inputs
        to_qkv, to_out, to_gates, to_down = block.products
        inner: list[Tensor | None] = [None] * len(GROUPS)

        def adapted(number: int, x: Tensor, y: Tensor) -> None:
            if (group := block.adapters[number]) is not None:
                inner[number] = do.thin(x, y, group, run.route_of(number))

        x, scale = do.norm(h, block.gains[BEFORE[0]])
        qkv = x @ to_qkv.t() if block.bias is None else torch.addmm(block.bias, x, to_qkv.t())
        adapted(0, x, qkv)
        turned, head_scales = block.norm_heads(do, qkv)
        do.rotate_(turned, block.heads + block.kept, block.head, cos, sin)
        q, k, v = block.queries_keys_values(turned, qkv)
        out, lse = do.attend(q, k, v, inputs, block.scale, block.window)
        answers, base = out.view(out.shape[0], -1), h
        if run.picked:
            answers, base = run.picked.gather(answers, base)
        y = answers @ to_out.t()
        adapted(1, answers, y)
        branch, y_scale = block.norm_branch(do, AFTER[0], y)
        h2, x2, scale2 = do.add_norm(base, branch, block.gains[BEFORE[1]])
        both = x2 @ to_gates.t()
        adapted(2, x2, both)
        act = do.gate(both, block.gelu)
        z = act @ to_down.t() if AFTER[1] in block.gains else torch.addmm(h2, act, to_down.t())
        adapted(3, act, z)
        branch, z_scale = block.norm_branch(do, AFTER[1], z)
        ctx.save_for_backward(
            h,
            scale,
            qkv,
            turned,
            out,
            lse,
            h2,
            scale2,
            both,
            cos,
            sin,
            x if inner[0] is not None else None,
            x2 if inner[2] is not None else None,
            y if y_scale is not None else None,
            y_scale,
            z if z_scale is not None else None,
            z_scale,
            *inner,
            *head_scales,
        )
        ctx.held = block, run
        result = z if z_scale is None else branch.add_(h2)
        return run.picked.spread(h, result)[0] if run.picked else result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        block, run = ctx.held
        (
            h,
            scale,
            qkv,
            turned,
            out,
            lse,
            h2,
            scale2,
            both,
            cos,
            sin,
            x,
            x2,
            y,
            y_scale,
            z,
            z_scale,
            *rest,
        ) = ctx.saved_tensors
        inner, head_scales = rest[: len(GROUPS)], rest[len(GROUPS) :]
        do, inputs = run.operations, run.inputs
        to_qkv, to_out, to_gates, to_down = block.products

        def adapted(number: int, dy: Tensor, dx: Tensor | None) -> Callable[[Tensor], None]:
            """Add the adapters' share to the input's gradient; theirs are summed once the input itself is at hand."""
            group, h = block.adapters[number], inner[number]
            if group is None:
                return lambda _: None
            dh = do.thin_back(dy, dx, group, run.route_of(number))
            return lambda x: do.thin_sums(x, dy, h, dh, group, run.route_of(number))

        dh3, answers = grads[0].contiguous(), out.view(out.shape[0], -1)
        if run.picked:
            dh3, answers = run.picked.gather(dh3, answers)
        dz = block.norm_branch_back(do, AFTER[1], dh3, z, z_scale)
        slope = dz @ to_down
        sums = adapted(3, dz, slope)
        do.gate_back_(both, slope, block.gelu, inner[3] is not None)
        sums(slope)
        dx2 = both @ to_gates
        adapted(2, both, dx2)(x2)
        dh2 = do.norm_back(dx2, h2, block.gains[BEFORE[1]], scale2, dh3)
        dy = block.norm_branch_back(do, AFTER[0], dh2, y, y_scale)
        dout = dy @ to_out
        adapted(1, dy, dout)(answers)
        if run.picked:
            dh2, dout = run.picked.spread(h, dh2, dout)
        dqkv = torch.empty_like(qkv)
        q, k, v = block.queries_keys_values(turned, qkv)
        do.attend_back(
            dout.view_as(out),
            q,
            k,
            v,
            out,
            lse,
            inputs,
            block.scale,
            block.window,
            block.queries_keys_values(dqkv, dqkv),
        )
        do.rotate_(dqkv, block.heads + block.kept, block.head, cos, sin, back=True)
        block.norm_heads_back(do, dqkv, qkv, head_scales)
        if not ctx.needs_input_grad[0]:
            adapted(0, dqkv, None)(x)
            return (None,) * 6
        dx = dqkv @ to_qkv
        adapted(0, dqkv, dx)(x)
        return do.norm_back(dx, h, block.gains[BEFORE[0]], scale, dh2), None, None, None, None, None


def _norms(layer: Any) -> dict[str, Any]:
    """Return the norms of a layer by their places: before both branches, of queries and keys, after the branches."""
    sandwiched = hasattr(layer, "pre_feedforward_layernorm")
    found = {BEFORE[0]: layer.input_layernorm}
    if sandwiched:
        found |= {
            AFTER[0]: layer.post_attention_layernorm,
            AFTER[1]: layer.post_feedforward_layernorm,
        }
    found[BEFORE[1]] = (
        layer.pre_feedforward_layernorm if sandwiched else layer.post_attention_layernorm
    )
    found |= {
        name: getattr(layer.self_attn, name) for name in HEADS if hasattr(layer.self_attn, name)
    }
    return {place: norm for place, norm in found.items() if norm is not None}


@torch.no_grad()
def _gain(module: nn.Module) -> Gain:
    """Return how a root-mean-square norm multiplies, by running its code in float32.

    Some models keep the gain less one, and multiply in float32: one more than it has no room in fewer bits.
    """
    weight, epsilon = (
        module.weight,
        float(getattr(module, "variance_epsilon", getattr(module, "eps", 0.0))),
    )
    assert isinstance(weight, Tensor)
    whole = nn.Parameter(weight.detach().float(), requires_grad=False)
    alike = copy.copy(module)
    alike.__dict__["_parameters"] = {"weight": whole}
    x = torch.randn(4, whole.shape[0], generator=torch.Generator().manual_seed(0)).to(whole.device)
    unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    own = alike(x)
    for more in (0.0, 1.0):
        if torch.allclose(own, unit * (whole + more), rtol=1e-4, atol=1e-5):
            return Gain(weight, epsilon, more)
    raise TypeError("no root-mean-square norm")


@torch.no_grad()
def _is_gelu(opens: Callable[[Tensor], Tensor]) -> bool:
    """Say whether a gate opens by gelu (its form by tanh) or by silu; refuse what is neither."""
    x = torch.linspace(-6, 6, 97)
    own = opens(x)
    if torch.allclose(own, nn.functional.silu(x), atol=1e-6):
        return False
    if torch.allclose(own, nn.functional.gelu(x, approximate="tanh"), atol=1e-6):
        return True
    raise TypeError("a gate of another kind")


def _altered(module: nn.Module) -> bool:
    own = isinstance(module.__dict__.get("forward"), AdaptedLinear | None)
    return not own or bool(module._forward_hooks) or bool(module._forward_pre_hooks)


def _side_by_side(parts: Sequence[nn.Linear]) -> Tensor:
    """Return the weights of layers as one matrix, and let the layers be views of it: nothing is kept twice."""
    if len(parts) == 1:
        return parts[0].weight.detach()
    whole = torch.cat([part.weight.detach() for part in parts])
    begin = 0
    for part in parts:
        end = begin + part.weight.shape[0]
        part.weight.data = whole[begin:end]
        begin = end
    return whole


class PackedPass:
    """A model as static passes see it; ``blocks`` is None where its own layers run."""

    def __init__(self, split: SplitModel, bank: AdapterBank, blocks: FusedLayers | None) -> None:
        self.split, self.bank, self.blocks = split, bank, blocks
        self.operations = operations(bank.device)
        self.losses = torch.zeros(
            bank.slots + 1, device=bank.device
        )  # of the step under way, by slot
        self._groups = {
            s.index: AdapterGroup([(s, 0)], bank.lora.r, bank.device)
            for s in bank.sites
            if not s.experts
        }
        self._configs = configs_of(split.model)
        self._ready = (
            False  # the operations that the first pass launches are compiled side by side before it
        )

    def __call__(self, inputs: PackedInputs, *, recompute: bool = False) -> None:
        """Add a laid-out pass's gradients to the bank's and its losses to the slots'."""
        if not self._ready:
            lora, heads = (
                self.bank.lora,
                [block.head for block in self.blocks.blocks[:1]] if self.blocks else [],
            )
            kind = f"{self.bank.work.dtype}-{heads}-{lora.r}-{lora.dropout > 0}"
            ready(self.operations, kind, lambda: self._pass(inputs, recompute=False))
            self.losses.zero_()  # what kernels leave unwritten is anything
            self._ready = True
        self._pass(inputs, recompute=recompute)

    def _pass(self, inputs: PackedInputs, *, recompute: bool) -> None:
        dropped = self.bank.lora.dropout > 0
        route = LaneRoute(
            self.bank, inputs.owners, inputs.spans, inputs.keys if dropped else None, inputs.tiles
        )
        run = PackedRun(
            self.operations,
            inputs,
            route,
            LossTokens.of(inputs, route) if self.blocks is not None else None,
        )
        with (
            standard_attention(self.bank.device),
            # in this thread, whose streams and handles are known: another would have to be woken for every pass
            torch.autograd.set_multithreading_enabled(False),
            # also where the layers' own attention is not called: the model makes no mask of tokens × tokens for it
            attending(self._configs, _within_rows(run)),
            self.blocks.active(run) if self.blocks is not None else self._stretches(run),
            recomputed_activations(
                self.split.model, recompute
            ),  # of whichever form the layers have
        ):
            hidden = self.split.hidden(
                inputs.ids.long().unsqueeze(0), inputs.places.long().unsqueeze(0)
            )
            values = self.split.backward(
                hidden, inputs.positions.long(), inputs.targets, inputs.weights
            )
            self.losses.index_add_(0, inputs.target_owners, values * inputs.weights)

    @contextmanager
    def _stretches(self, run: PackedRun) -> Iterator[None]:
        """Let adapted layers treat their input as the long row's stretches."""
        routing = self.bank.routing

        def linear(x: Tensor, site: AdapterSite, weight: Tensor, bias: Tensor | None) -> Tensor:
            flat = x.reshape(-1, x.shape[-1])
            y: Tensor = _ThinLinear.apply(
                flat, self.bank.anchor, weight, bias, self._groups[site.index], run
            )  # type: ignore[no-untyped-call]
            return y.view(*x.shape[:-1], y.shape[-1])

        routing.packed_linear = linear
        try:
            yield
        finally:
            routing.packed_linear = None


class _ThinLinear(torch.autograd.Function):
    """A linear layer's product on the long row, with its lanes' adapters."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        group: AdapterGroup,
        run: PackedRun,
    ) -> Tensor:
        y = x @ weight if bias is None else torch.addmm(bias, x, weight)
        ctx.save_for_backward(x, run.operations.thin(x, y, group, run.route))
        ctx.held = weight, group, run
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, inner = ctx.saved_tensors
        weight, group, run = ctx.held
        dy = grads[0].contiguous()
        dx = dy @ weight.t() if ctx.needs_input_grad[0] else None
        dh = run.operations.thin_back(dy, dx, group, run.route)
        run.operations.thin_sums(x, dy, inner, dh, group, run.route)
        return dx, None, None, None, None, None


class _Attention(torch.autograd.Function):
    """Attention within rows for models whose own layers run."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, run: PackedRun, scale: float, window: int | None
    ) -> Tensor:
        out, lse = run.operations.attend(q, k, v, run.inputs, scale, window)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.held = run, scale, window
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        run, scale, window = ctx.held
        into = tuple(
            torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in (q, k, v)
        )
        run.operations.attend_back(
            grads[0].contiguous(), q, k, v, out, lse, run.inputs, scale, window, into
        )
        return *into, None, None, None


def _within_rows(run: PackedRun) -> Callable[..., Tensor]:
    """Return attention within the rows of a pass, as ``attending`` takes it."""

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        q, k, v = (part.squeeze(0) for part in (q, k, v))  # (N, H, d)
        q, k, v = (part if part.stride(2) == 1 else part.contiguous() for part in (q, k, v))
        out: Tensor = _Attention.apply(q, k, v, run, scale, window)  # type: ignore[no-untyped-call]
        return out.unsqueeze(0)

    return attend
