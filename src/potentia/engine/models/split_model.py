"""A causal model in two parts: the body, which makes hidden states, and the tail, which turns some of them into logits.

Only target positions need logits, and [rows, tokens, vocabulary] is the largest tensor of a training step. So the
body runs first; then the tail runs on the target positions alone, a few thousand at a time, and each piece is
differentiated on the spot: its logits never outlive it. The tail is the model's own forward with the body's answer
put in its place, so whatever an architecture does to its logits (soft caps, scales, biases) is kept without naming
any architecture.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from potentia.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_PIECE_BYTES = {"cuda": 1 << 30, "cpu": 1 << 22}  # of logits at a time
_OTHER_PIECE_BYTES = 1 << 26  # on other devices
LEAST_PIECE = 64  # targets
_ATTENTION = "potentia"  # what transformers knows our attention by
# what was found out by running models, once a model: the name of its body, its routers, and the like
_FINDINGS: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()
Answer = TypeVar("Answer")


class SplitModel:
    """Body and tail of one causal language model."""

    def __init__(self, model: nn.Module) -> None:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        self.model = model
        self.body = find_body(model)
        self._output_type: Callable[..., object] = BaseModelOutputWithPastAndCrossAttentions
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])  # type: ignore[operator]

    def hidden(self, token_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Run the body on right-padded rows: hidden states (R, T, d). Causality makes a padding mask needless."""
        if position_ids is None:
            output = self.run(input_ids=token_ids, use_cache=False)
        else:
            output = self.run(input_ids=token_ids, use_cache=False, position_ids=position_ids)
        return output.last_hidden_state  # type: ignore[no-any-return]

    def run(self, **inputs: object) -> Any:
        """Return everything that the body answers; its type is what the tail expects."""
        output = self.body(**inputs)
        self._output_type = type(output)
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Run the tail alone: logits (N, V) of hidden states (N, d)."""

        def give_hidden_states(*_inputs: object, **_options: object) -> object:
            return self._output_type(last_hidden_state=hidden.unsqueeze(0))

        token_ids = torch.zeros(1, hidden.shape[0], dtype=torch.long, device=hidden.device)
        with computing({self.body: give_hidden_states}):
            output = self.model(input_ids=token_ids, use_cache=False)
        return output.logits.squeeze(0)  # type: ignore[no-any-return]

    def losses(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-entropies (N,) at hidden states (N, d), and the gradient (N, d) of their weighted sum.

        The tail's own weights, where they ask for gradients, get theirs added as well.
        """
        if hidden.shape[0] == 0:  # nothing to predict
            return hidden.new_zeros(0, dtype=torch.float32), torch.zeros_like(hidden)
        from potentia.engine.operations import operations

        piece_bytes = _PIECE_BYTES.get(hidden.device.type, _OTHER_PIECE_BYTES)
        target_bytes = self.vocabulary * hidden.element_size()
        piece_length = max(LEAST_PIECE, piece_bytes // target_bytes)
        compute_loss = operations(hidden.device).loss
        target_ids = targets.to(torch.int32)
        losses = []
        gradients = []
        for begin in range(0, hidden.shape[0], piece_length):
            piece = slice(begin, begin + piece_length)
            with torch.enable_grad():
                states = hidden[piece].detach().requires_grad_()
                logits = self.logits(states)
            piece_losses, logit_gradient = compute_loss(
                logits.detach(), target_ids[piece], weights[piece]
            )
            torch.autograd.backward(logits, logit_gradient)
            assert states.grad is not None
            losses.append(piece_losses)
            gradients.append(states.grad)
        return torch.cat(losses), torch.cat(gradients)

    def backward(
        self, hidden: Tensor, prediction_indices: Tensor, targets: Tensor, weights: Tensor
    ) -> Tensor:
        """Go back from the losses of targets, and return these losses.

        ``prediction_indices`` are those of the hidden states that predict the targets, over all rows end to end.
        """
        states = hidden.detach().reshape(-1, hidden.shape[-1])
        target_states = states.index_select(0, prediction_indices)
        losses, target_gradients = self.losses(target_states, targets, weights)
        gradient = torch.zeros_like(states).index_copy_(0, prediction_indices, target_gradients)
        torch.autograd.backward(hidden, gradient.view_as(hidden))
        return losses


@contextmanager
def computing(forwards: Mapping[nn.Module, Callable[..., object]]) -> Iterator[None]:
    """Let modules compute by these forwards, set on the instances, inside the block."""
    earlier_forwards = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module, earlier_forward in earlier_forwards.items():
            module.__dict__.pop("forward", None)
            if earlier_forward is not None:
                module.forward = earlier_forward


@contextmanager
def requiring_gradients(model: nn.Module, requires_grad: bool) -> Iterator[None]:
    """Let all weights of a model ask for gradients, or none, inside the block."""
    earlier_flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.requires_grad_(requires_grad)
        yield
    finally:
        for parameter, earlier_flag in earlier_flags:
            parameter.requires_grad_(earlier_flag)


def configs_of(model: nn.Module) -> list[PreTrainedConfig]:
    """Return the configs that a model's modules read, each once."""
    configs_by_id: dict[int, PreTrainedConfig] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None:
            configs_by_id[id(config)] = config
    return list(configs_by_id.values())


@dataclass(frozen=True)
class AttentionSettings:
    """How a layer attends: the factor of its scores, the tokens that it sees, and its sinks (H,), if it has any.

    A sink is one more score of every query, with nothing behind it: it takes its share and answers nothing.
    """

    scale: float
    window: int | None = None
    sinks: Tensor | None = None


Attend = Callable[[Tensor, Tensor, Tensor, AttentionSettings], Tensor]


@contextmanager
def attending(configs: Sequence[PreTrainedConfig], attend: Attend) -> Iterator[None]:
    """Let the models of these configs attend by a function of queries, keys, values (R, T, H, d) and settings."""
    from transformers import AttentionInterface

    def attend_for_transformers(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        if options.get("softcap") is not None:
            raise NotImplementedError("attention with soft caps")
        scale = options.get("scaling")
        if scale is None:
            scale = query.shape[-1] ** -0.5
        settings = AttentionSettings(
            scale=scale, window=options.get("sliding_window"), sinks=options.get("s_aux")
        )
        attended = attend(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), settings
        )
        return attended, None

    AttentionInterface.register(_ATTENTION, attend_for_transformers)
    earlier_names = [getattr(config, "_attn_implementation", None) for config in configs]
    try:
        for config in configs:
            config._attn_implementation = _ATTENTION
        yield
    finally:
        for config, earlier_name in zip(configs, earlier_names, strict=True):
            config._attn_implementation = earlier_name


def find_body(model: nn.Module) -> nn.Module:
    """Find the part that the model's forward calls for hidden states: its base model, or a part of that (OPT)."""
    body_name = try_once(model, "body", lambda: _find_module_name(model, _find_called_part(model)))
    return model.get_submodule(body_name)


def _find_module_name(model: nn.Module, searched_module: nn.Module) -> str:
    """Return the name of a part of a model; the empty name, which is the model's own, where it is none."""
    for module_name, module in model.named_modules():
        if module is searched_module:
            return str(module_name)
    return ""


def try_once(model: nn.Module, question: str, run_trial: Callable[[], Answer]) -> Answer:
    """Return what a trial run of a model answers to a question; the trial is made once a model."""
    findings = _FINDINGS.setdefault(model, {})
    if question not in findings:
        findings[question] = run_trial()
    answer: Answer = findings[question]
    return answer


def note_built_alike(model: nn.Module, original: nn.Module) -> None:
    """Note that a model is a copy of another: what trial runs of that showed holds for it."""
    if original in _FINDINGS:
        _FINDINGS[model] = dict(_FINDINGS[original])


def _find_called_part(model: nn.Module) -> nn.Module:
    """Run the model on two tokens, and return the part of it that is called first."""
    base_model = getattr(model, "base_model", model)
    called: list[nn.Module] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, _: called.append(module))
        for module in (base_model, *base_model.children())
        if module is not model
    ]
    try:
        with torch.no_grad():
            device = next(model.parameters()).device
            token_ids = torch.zeros(1, 2, dtype=torch.long, device=device)
            model(input_ids=token_ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise ModelError(f"{type(model).__name__} has no separate body: it cannot be tuned here")
    return called[0]
