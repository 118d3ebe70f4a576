"""Which layers get an adapter: the user's choice, else PEFT's for the architecture, else all linear ones.

PEFT decides: names go through its own rules, among them that some architectures keep their experts as stacked
parameters, so that an adapter trained here is the one that PEFT would train and reads back. Left out of every choice
by name are layers that no text reaches (the picture tower of a multimodal model); left out of "all-linear" are the
head's, those that PEFT refuses and those that answer with something else than a linear layer's output (routers).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from potentia.engine.lane_spec import LoraConfig
from potentia.engine.layers.adapter_methods import find_adapter_method
from potentia.engine.models.device_layout import out_of_memory
from potentia.engine.models.split_model import REACHED, asking, find_body
from potentia.errors import TuningError

LINEAR = (nn.Linear, Conv1D)
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class StackedParameter:
    """A parameter that holds the weights of many experts, or of a router: (experts, out, in), (experts, in, out)."""

    name: str  # PEFT's, of the wrapper around its module
    module: nn.Module
    parameter: str
    rank: int
    scale: float


@dataclass(frozen=True)
class AdapterTargets:
    """The layers to adapt, by name, the stacked parameters beside them, and PEFT's config that says the same."""

    names: tuple[str, ...]  # as chosen: endings of names
    layers: list[tuple[str, nn.Module]]
    stacked: list[StackedParameter] = field(default_factory=list)
    config: Any = None


def find_targets(model: nn.Module, lora: LoraConfig) -> AdapterTargets:
    """Find what an adapter of this shape is put on."""
    chosen, takes_all_linear = _chosen_targets(model, lora)
    config = _make_peft_config(model, lora, chosen)
    names = _target_names(config)
    layers = _layers(model, config, strict=not takes_all_linear)
    stacked = _find_stacked(model, config, lora)
    if takes_all_linear and chosen is not ALL_LINEAR:
        # our own choice: PEFT reads the other layers back as they are
        stacked = []
        config.target_parameters = None
        config.rank_pattern = {}
        config.alpha_pattern = {}
    model_name = type(model).__name__
    if not layers and not stacked:
        raise TuningError(
            f"no layer of {model_name} is named {', '.join(names)}",
            hint="name the layers with `targets`, or use targets: [all-linear]",
        )
    if stacked and lora.dropout > 0:
        raise TuningError(
            f"{model_name} keeps its experts as stacked parameters, "
            "which PEFT adapts without dropout only",
            hint="set the adapter's dropout to 0, or name other layers with `targets`, such as [q_proj, v_proj]",
        )
    config.target_modules = [name for name, _ in layers]
    config.fan_in_fan_out = any(isinstance(module, Conv1D) for _, module in layers)
    shown_names = (ALL_LINEAR,) if takes_all_linear else names
    return AdapterTargets(shown_names, layers, stacked, config)


def _target_names(config: Any) -> tuple[str, ...]:
    names = config.target_modules or ()
    return (names,) if isinstance(names, str) else tuple(sorted(names))


def _chosen_targets(model: nn.Module, lora: LoraConfig) -> tuple[str | list[str], bool]:
    """Return the targets in PEFT's words, and whether they are all linear layers."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS

    if lora.targets == (ALL_LINEAR,):
        return ALL_LINEAR, True
    if lora.targets is not None:
        targets = lora.targets[0] if _is_pattern(lora.targets) else list(lora.targets)
        return targets, False
    defaults = DEFAULTS.get(getattr(model.config, "model_type", ""))
    if defaults is None:
        return _names_of_linear_layers(model), True
    return (defaults if isinstance(defaults, str) else list(defaults)), False


def _names_of_linear_layers(model: nn.Module) -> list[str]:
    """Return the names of all linear layers but the head."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    linear = [(name, m) for name, m in model.named_modules() if isinstance(m, LINEAR)]
    return [name for name, module in linear if module is not head]


def _make_peft_config(model: nn.Module, lora: LoraConfig, chosen: str | list[str]) -> Any:
    """Let PEFT turn names into the ones of this version's modules and parameters."""
    from peft import LoraConfig as PeftConfig
    from peft.tuners.tuners_utils import _maybe_include_all_linear_layers

    config = PeftConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # PEFT says int and takes any number
        lora_dropout=lora.dropout,
        target_modules=chosen,
        task_type="CAUSAL_LM",
        base_model_name_or_path=getattr(model.config, "_name_or_path", None) or None,
        **find_adapter_method(lora.kind).peft_options,
    )
    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # a PEFT that knows no stacked experts
        return _maybe_include_all_linear_layers(config, model)
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError as error:
        raise TuningError(
            str(error), hint="name all parts of a fused layer, or none of them"
        ) from error
    return _maybe_include_all_linear_layers(config, model)


def _layers(model: nn.Module, config: Any, *, strict: bool) -> list[tuple[str, nn.Module]]:
    """Choose the layers that PEFT's config names, a text reaches and can be adapted; ``strict`` refuses the others."""
    from peft.tuners.tuners_utils import check_target_module_exists

    if model not in REACHED:
        REACHED[model] = _reached(model)
    reached, inside = REACHED[model], set(find_body(model).modules())
    matching = {
        name: module
        for name, module in model.named_modules()
        if check_target_module_exists(config, name)
    }
    lost = _not_read_back(model, config, matching)
    chosen = []
    for name, module in matching.items():
        trouble = _trouble(model, name, module, config)
        if trouble is None and name in lost:
            trouble = "has an adapter that PEFT does not find again in its own files"
        if trouble is None and _kind(name) not in reached:
            continue  # no text comes here: nothing to learn
        if trouble is None and module not in inside:
            trouble = "belongs to the head, which has no adapters"
        if trouble is None:
            chosen.append((name, module))
        elif strict:
            raise TuningError(f"layer {name} {trouble}", hint="name other layers with `targets`")
    return chosen


def _not_read_back(model: nn.Module, config: Any, names: Iterable[str]) -> set[str]:
    """Name the layers whose adapters PEFT saves under names that it changes on reading, as it does with Laguna's."""
    try:
        from peft.utils.transformers_weight_conversion import (
            convert_peft_adapter_state_dict_for_transformers,
        )
    except ImportError:  # a PEFT that renames nothing
        return set()
    keys = {name: f"base_model.model.{name}.lora_A.weight" for name in names}
    try:
        read = convert_peft_adapter_state_dict_for_transformers(
            model, config, {key: torch.zeros(1, 1) for key in keys.values()}
        )
    except (RuntimeError, ValueError, KeyError, TypeError):  # made for tensors of other shapes
        return set()
    return {name for name, key in keys.items() if key not in read}


def _trouble(model: nn.Module, name: str, module: nn.Module, config: Any) -> str | None:
    """Say why a layer cannot be adapted, or None."""
    if not isinstance(module, LINEAR):
        return f"is a {type(module).__name__}: adapters fit Linear and Conv1D layers only"
    try:
        from peft.tuners.tuners_utils import _check_lora_target_modules_mamba

        _check_lora_target_modules_mamba(config, model, name.rpartition(".")[2])
    except ImportError:
        pass
    except ValueError:
        return "takes no adapter of PEFT's in this architecture"
    return (
        None if type(module) is nn.Linear or isinstance(module, Conv1D) else _unlike_linear(module)
    )


@torch.no_grad()
def _unlike_linear(module: nn.Module) -> str | None:
    """Try a layer that is more than a Linear: its output must be one tensor of the usual shape."""
    weight: Any = module.weight
    sample = torch.zeros(1, 2, module.in_features, dtype=weight.dtype, device=weight.device)  # type: ignore[call-overload]
    if not weight.is_floating_point():
        sample = sample.to(torch.get_default_dtype())
    try:
        out = module(sample)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        return f"is a {type(module).__name__} that takes no plain input ({type(error).__name__})"
    if not isinstance(out, Tensor) or out.shape != (1, 2, module.out_features):
        return f"is a {type(module).__name__}, whose output is no linear layer's"
    return None


def _reached(model: nn.Module) -> set[str]:
    """Name the linear layers whose output the prediction of a text depends on, with numbers left out of the names.

    An expert that one short text does not choose is reached all the same if one of its kind is.
    """
    reached: set[str] = set()

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(_: nn.Module, __: Any, out: Any) -> None:
            if isinstance(out, Tensor) and out.requires_grad:
                out.register_hook(lambda _slope: reached.add(_kind(name)))  # type: ignore[no-untyped-call]

        return note

    def start(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        return out.detach().requires_grad_() * 1  # some models write into it

    layers = [
        (name, module) for name, module in model.named_modules() if isinstance(module, LINEAR)
    ]
    hooks = [module.register_forward_hook(watch(name)) for name, module in layers]
    embedding: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    hooks.append(embedding.register_forward_hook(start))
    training = model.training
    model.eval()
    try:
        with asking(model, False), torch.enable_grad():
            ids = torch.arange(4, device=next(model.parameters()).device)[None]
            logits = model(input_ids=ids, use_cache=False).logits
            torch.autograd.backward(torch.logsumexp(logits.float(), dim=-1).sum())
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return {_kind(name) for name, _ in model.named_modules()}  # training will tell
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return reached


def _kind(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".N", name)


def _find_stacked(model: nn.Module, config: Any, lora: LoraConfig) -> list[StackedParameter]:
    """Find the stacked parameters that PEFT's config names, each under the name of the wrapper PEFT puts around it."""
    from peft.utils.other import get_pattern_key

    targets = sorted(config.target_parameters or ())
    if not targets:
        return []
    method = find_adapter_method(lora.kind)
    stacked: list[StackedParameter] = []
    for module_name, module in model.named_modules():
        parameters = [name for name, _ in module.named_parameters(recurse=False)]
        chosen = [name for name in parameters if _is_named(f"{module_name}.{name}", targets)]
        for number, parameter in enumerate(chosen):  # the last is PEFT's outermost wrapper
            full_name = f"{module_name}.{parameter}"
            rank_key = get_pattern_key(config.rank_pattern, full_name)
            alpha_key = get_pattern_key(config.alpha_pattern, full_name)
            rank = config.rank_pattern.get(rank_key, lora.r)
            alpha = config.alpha_pattern.get(alpha_key, lora.alpha)
            entry = StackedParameter(
                name=module_name + ".base_layer" * (len(chosen) - 1 - number),
                module=module,
                parameter=parameter,
                rank=int(rank),
                scale=method.scale(rank, alpha),
            )
            stacked.append(entry)
    return stacked


def _is_named(full_name: str, targets: Sequence[str]) -> bool:
    return any(full_name == target or full_name.endswith(f".{target}") for target in targets)


def _is_pattern(names: tuple[str, ...]) -> bool:
    """Return whether the only name is a regular expression."""
    if len(names) != 1 or names[0] == ALL_LINEAR:
        return False
    return not names[0].replace("_", "").replace(".", "").isalnum()
