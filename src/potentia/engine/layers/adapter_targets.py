"""Which layers get an adapter: the user's choice, else PEFT's for the architecture, else all linear ones.

PEFT decides: names go through its own rules (``peft_rules``), among them that some architectures keep their experts as
stacked parameters, so that an adapter trained here is the one that PEFT would train and reads back. Left out of every
choice by name are layers that no text reaches (the picture tower of a multimodal model); left out of "all-linear" are
the head's, those that answer with something else than a linear layer's output, and routers.

"all-linear" means every linear map of the body, whatever PEFT understands by it: dense layers beside experts, shared
experts, the stacked weights of routed experts, and matrices that a module multiplies by itself. An expert's adapters
have rank r / (active experts), at least 1, so that a token passes through as many adapter numbers as in a dense model.
Where several projections are one matrix (queries, keys and values; gates and ups), each has an adapter of its own. A
model and the same function with fused projections, or as one expert, are then tuned alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from potentia.engine.layers.adapter_methods import LowRankAdapter, find_adapter_method
from potentia.engine.layers.fused_projections import (
    Columns,
    find_fused_projections,
    find_gates_and_ups_of_parameter,
)
from potentia.engine.layers.matrices import Matrix, find_matrices
from potentia.engine.layers.peft_rules import (
    find_names_in_files,
    is_refused_as_layer,
    make_peft_config,
    names_taken_for_experts,
    new_peft_config,
)
from potentia.engine.layers.routers import find_routers
from potentia.engine.layers.trial_runs import drop_numbers
from potentia.engine.models.device_layout import is_out_of_memory
from potentia.engine.models.split_model import find_body, requiring_gradients, try_once
from potentia.errors import TuningError
from potentia.values.recipe import LoraConfig

LINEAR = (nn.Linear, Conv1D)
ALL_LINEAR = "all-linear"
# stacked weights of experts, by transformers' names; gates and ups in one matrix are two projections
EXPERT_PROJECTIONS = {"gate_up_proj": 2, "gate_proj": 1, "up_proj": 1, "down_proj": 1}
# settings that say how many experts a token goes through
ACTIVE_EXPERTS = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_k",
)


@dataclass(frozen=True)
class StackedParameter:
    """A parameter that holds the weights of many experts, or of a router: (experts, out, in), (experts, in, out)."""

    name: str  # PEFT's, of the wrapper around its module
    module: nn.Module
    parameter: str
    scope: (
        nn.Module
    )  # what runs once for each slot: the module, or one around it that is given rows in order
    rank: int  # of an expert, all of its projections together
    scale: float
    out_first: bool  # (experts, out, in)
    projections: int = 1  # in one matrix, each with an adapter of its own
    interleaved: bool = (
        False  # whether the projections' outputs alternate, rather than lie side by side
    )


@dataclass(frozen=True)
class AdapterTargets:
    """The layers to adapt, by name, the stacked parameters beside them, and PEFT's config that says the same."""

    names: tuple[str, ...]  # as chosen: endings of names
    layers: list[tuple[str, nn.Module]]
    stacked: list[StackedParameter] = field(default_factory=list)
    config: Any = None
    # of layers that hold several projections, each with an adapter of its own: the outputs of every projection
    fused: dict[str, tuple[Columns, ...]] = field(default_factory=dict)
    # the layers that PEFT's files know by other names
    names_in_files: dict[str, str] = field(default_factory=dict)


def find_targets(model: nn.Module, lora: LoraConfig) -> AdapterTargets:
    """Find what an adapter of this shape is put on."""
    if lora.targets == (ALL_LINEAR,):
        return _find_all_linear(model, lora)
    return _find_named_targets(model, lora)


def _refuse_dropout(model: nn.Module, lora: LoraConfig) -> None:
    """Refuse dropout on weights that PEFT adapts as parameters."""
    if lora.dropout > 0:
        raise TuningError(
            f"{type(model).__name__} has weights that PEFT adapts as parameters, such as stacked experts, "
            "without dropout only",
            hint="set the adapter's dropout to 0, or name other layers with `targets`, such as [q_proj, v_proj]",
        )


# ---- all linear maps of the body ------------------------------------------------------------------------------------


def _find_all_linear(model: nn.Module, lora: LoraConfig) -> AdapterTargets:
    """Find every linear map of the body, experts included."""
    config = new_peft_config(model, lora, names_of_linear_layers(model))
    layers = _choose_all_layers(model, config)
    config.fan_in_fan_out = any(isinstance(module, Conv1D) for _, module in layers)
    as_parameters = names_taken_for_experts(model, lora, [name for name, _ in layers])
    fused = find_fused_projections(model, layers)
    fused = {name: columns for name, columns in fused.items() if name not in as_parameters}
    layers = _put_fused_layers_first(layers, fused)
    for layer_name, columns in fused.items():
        _set_rank_of_projections(config, layer_name, lora, rank=lora.r, projections=len(columns))
    config.target_modules = [name for name, _ in layers if name not in as_parameters]
    stacks = _find_stacks(model, config, lora, [module for _, module in layers])
    parameters = [f"{layer_name}.weight" for layer_name in sorted(as_parameters)]
    for stack_name, stack in stacks.items():
        parameters.append(stack_name)
        _set_rank_of_projections(
            config, stack_name, lora, rank=stack.projection_rank, projections=stack.projections
        )
    stacked: list[StackedParameter] = []
    if parameters:
        _refuse_dropout(model, lora)
        config.target_parameters = parameters
        stacked = _list_stacked_parameters(model, config, lora, stacks)
    names_in_files = _find_known_names_in_files(model, config, layers)
    return AdapterTargets((ALL_LINEAR,), layers, stacked, config, fused, names_in_files)


def _choose_all_layers(model: nn.Module, config: Any) -> list[tuple[str, nn.Module]]:
    """Return the linear layers that a text reaches and can be adapted, but for routers."""
    layers = _match_layers(model, config)
    obstacles = _find_obstacles(model, config, layers)
    routers = find_routers(model, layers)
    return [
        (layer_name, module)
        for layer_name, module in layers
        if layer_name not in obstacles and layer_name not in routers
    ]


def _set_rank_of_projections(
    config: Any, layer_name: str, lora: LoraConfig, *, rank: int, projections: int
) -> None:
    """Give a matrix of several projections the rank of all of them in PEFT's config, and α so that the factor stays."""
    method = find_adapter_method(lora.kind)
    peft_alpha = method.peft_alpha_factor * lora.alpha
    config.rank_pattern[re.escape(layer_name)] = rank * projections
    config.alpha_pattern[re.escape(layer_name)] = peft_alpha * _alpha_factor(
        method, rank, projections
    )


def _alpha_factor(method: LowRankAdapter, rank: int, projections: int) -> float:
    """Return how many times α gives an adapter of so many times the rank the factor that it had."""
    times = method.scale(rank, 1) / method.scale(rank * projections, 1)
    return round(times) if abs(times - round(times)) < 1e-9 else times


def _put_fused_layers_first(
    layers: Sequence[tuple[str, nn.Module]], fused: Mapping[str, tuple[Columns, ...]]
) -> list[tuple[str, nn.Module]]:
    """Put fused layers before the others of their module: queries, keys and values come before the output's layer.

    Modules name their layers in any order, and adapters are drawn in this one: twins have to draw alike.
    """
    first_of_module: dict[str, int] = {}
    for position, (layer_name, _) in enumerate(layers):
        first_of_module.setdefault(layer_name.rpartition(".")[0], position)

    def order_of(position: int) -> tuple[int, int]:
        layer_name = layers[position][0]
        if layer_name in fused:
            return first_of_module[layer_name.rpartition(".")[0]], 0
        return position, 1

    return [layers[position] for position in sorted(range(len(layers)), key=order_of)]


# ---- stacked weights ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stack:
    """What a parameter holds: its layout, its projections, and the rank of each projection's adapter."""

    scope: nn.Module
    out_first: bool
    projections: int
    interleaved: bool
    projection_rank: int


def _find_stacks(
    model: nn.Module, config: Any, lora: LoraConfig, adapted: Sequence[nn.Module]
) -> dict[str, _Stack]:
    """Find the parameters of the body that hold linear maps without being a linear layer's, by their full names."""
    stacks: dict[str, _Stack] = {}
    body_modules = set(find_body(model).modules())
    for module_name, module in model.named_modules():
        if module not in body_modules or not hasattr(module, "is_transposed"):
            continue
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if parameter_name in EXPERT_PROJECTIONS and parameter.dim() == 3:
                stacks[f"{module_name}.{parameter_name}"] = _Stack(
                    scope=module,
                    out_first=not module.is_transposed,
                    projections=EXPERT_PROJECTIONS[parameter_name],
                    interleaved=not getattr(module, "is_concatenated", True),
                    projection_rank=_rank_of_expert(model, lora),
                )
    matrices = [matrix for matrix in find_matrices(model, adapted) if matrix.name not in stacks]
    renamed = find_names_in_files(model, config, [matrix.module_name for matrix in matrices])
    for matrix in matrices:
        is_refused = is_refused_as_layer(model, config, matrix.module_name)
        if matrix.module_name not in renamed and not is_refused:
            stacks[matrix.name] = _describe_stack(model, lora, matrix)
    return stacks


def _describe_stack(model: nn.Module, lora: LoraConfig, matrix: Matrix) -> _Stack:
    """Describe a parameter that its module multiplies by, without saying how it lies."""
    is_interleaved = False
    projections = matrix.groups
    if matrix.is_routed:
        columns = find_gates_and_ups_of_parameter(model, matrix.name, out_first=matrix.out_first)
        if columns:
            projections = len(columns)
            is_interleaved = columns[0][1] != columns[0][0] + 1
    return _Stack(
        scope=matrix.scope,
        out_first=matrix.out_first,
        projections=projections,
        interleaved=is_interleaved,
        projection_rank=_rank_of_expert(model, lora) if matrix.is_routed else lora.r,
    )


def _rank_of_expert(model: nn.Module, lora: LoraConfig) -> int:
    return max(1, lora.r // count_active_experts(model))


def _list_stacked_parameters(
    model: nn.Module, config: Any, lora: LoraConfig, stacks: Mapping[str, _Stack]
) -> list[StackedParameter]:
    """Return the stacked parameters under the names that PEFT gives them, as their stacks are described."""
    module_names = {module: name for name, module in model.named_modules()}
    stacked: list[StackedParameter] = []
    for entry in _find_stacked_parameters(model, config, lora):
        stack = stacks.get(f"{module_names[entry.module]}.{entry.parameter}")
        if stack is not None:
            described = replace(
                entry,
                scope=stack.scope,
                out_first=stack.out_first,
                projections=stack.projections,
                interleaved=stack.interleaved,
            )
            stacked.append(described)
    return stacked


def count_active_experts(model: nn.Module) -> int:
    """Return how many experts a token goes through, the fewest where layers differ."""
    config = getattr(model.config, "text_config", None) or model.config
    for setting in ACTIVE_EXPERTS:
        value = getattr(config, setting, None)
        if isinstance(value, list | tuple):
            value = min(value, default=None)
        if isinstance(value, int) and value > 0:
            return value
    raise TuningError(
        f"the config of {type(model).__name__} does not say how many experts a token goes through",
        hint="name the layers with `targets`, such as [q_proj, v_proj]",
    )


# ---- by name --------------------------------------------------------------------------------------------------------


def _find_named_targets(model: nn.Module, lora: LoraConfig) -> AdapterTargets:
    """Find the layers that a user names, or PEFT for the architecture; all linear layers where neither does."""
    chosen, takes_all_linear = _chosen_targets(model, lora)
    config = make_peft_config(model, lora, chosen)
    names = _target_names(config)
    stacked: list[StackedParameter] = []
    if takes_all_linear:
        # our own choice: PEFT reads the other layers back as they are
        layers = _choose_all_layers(model, config)
        names = (ALL_LINEAR,)
        config.target_parameters = None
        config.rank_pattern = {}
        config.alpha_pattern = {}
    else:
        layers = _choose_named_layers(model, config)
        stacked = _find_stacked_parameters(model, config, lora)
    if not layers and not stacked:
        raise TuningError(
            f"no layer of {type(model).__name__} is named {', '.join(names)}",
            hint="name the layers with `targets`, or use targets: [all-linear]",
        )
    if stacked:
        _refuse_dropout(model, lora)
    config.target_modules = [layer_name for layer_name, _ in layers]
    config.fan_in_fan_out = any(isinstance(module, Conv1D) for _, module in layers)
    names_in_files = _find_known_names_in_files(model, config, layers)
    return AdapterTargets(names, layers, stacked, config, names_in_files=names_in_files)


def _choose_named_layers(model: nn.Module, config: Any) -> list[tuple[str, nn.Module]]:
    """Return the layers that PEFT's config names and a text reaches; raise an error for one that takes no adapter."""
    layers = _match_layers(model, config)
    obstacles = _find_obstacles(model, config, layers)
    for layer_name, obstacle in obstacles.items():
        raise TuningError(f"layer {layer_name} {obstacle}", hint="name other layers with `targets`")
    return layers


def _target_names(config: Any) -> tuple[str, ...]:
    names = config.target_modules or ()
    return (names,) if isinstance(names, str) else tuple(sorted(names))


def _chosen_targets(model: nn.Module, lora: LoraConfig) -> tuple[str | list[str], bool]:
    """Return the targets in PEFT's words, and whether they are all linear layers."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS

    if lora.targets is not None:
        targets = lora.targets[0] if _is_pattern(lora.targets) else list(lora.targets)
        return targets, False
    defaults = DEFAULTS.get(getattr(model.config, "model_type", ""))
    if defaults is None:
        return names_of_linear_layers(model), True
    return (defaults if isinstance(defaults, str) else list(defaults)), False


def names_of_linear_layers(model: nn.Module) -> list[str]:
    """Return the names of all linear layers but the head."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    linear = [
        (layer_name, module)
        for layer_name, module in model.named_modules()
        if isinstance(module, LINEAR)
    ]
    return [layer_name for layer_name, module in linear if module is not head]


# ---- layers that take an adapter ------------------------------------------------------------------------------------


def _match_layers(model: nn.Module, config: Any) -> list[tuple[str, nn.Module]]:
    """Return the layers that PEFT's config names, but for linear ones that no text reaches: they learn nothing."""
    from peft.tuners.tuners_utils import check_target_module_exists

    reached = try_once(model, "reached layers", lambda: _find_reached_layers(model))
    return [
        (layer_name, module)
        for layer_name, module in model.named_modules()
        if check_target_module_exists(config, layer_name)
        and (drop_numbers(layer_name) in reached or _find_obstacle(module) is not None)
    ]


def _find_obstacles(
    model: nn.Module, config: Any, layers: Sequence[tuple[str, nn.Module]]
) -> dict[str, str]:
    """Return why layers cannot be adapted, for those that cannot."""
    inside = set(find_body(model).modules())
    names_in_files = find_names_in_files(model, config, [name for name, _ in layers])
    obstacles: dict[str, str] = {}
    for layer_name, module in layers:
        obstacle = _find_obstacle(module)
        if obstacle is None and is_refused_as_layer(model, config, layer_name):
            obstacle = "takes no adapter of PEFT's in this architecture"
        if obstacle is None and names_in_files.get(layer_name, layer_name) is None:
            obstacle = "has an adapter that PEFT does not find again in its own files"
        if obstacle is None and module not in inside:
            obstacle = "belongs to the head, which has no adapters"
        if obstacle is not None:
            obstacles[layer_name] = obstacle
    return obstacles


def _find_known_names_in_files(
    model: nn.Module, config: Any, layers: Sequence[tuple[str, nn.Module]]
) -> dict[str, str]:
    """Return the names of layers in PEFT's files, where they are others."""
    names = find_names_in_files(model, config, [layer_name for layer_name, _ in layers])
    return {layer_name: name for layer_name, name in names.items() if name is not None}


def _find_obstacle(module: nn.Module) -> str | None:
    """Say why a module is no layer that can be adapted; None where it is one."""
    if not isinstance(module, LINEAR):
        return f"is a {type(module).__name__}: adapters fit Linear and Conv1D layers only"
    if type(module) is nn.Linear or isinstance(module, Conv1D):
        return None
    return _find_difference_from_linear(module)


@torch.no_grad()
def _find_difference_from_linear(module: nn.Module) -> str | None:
    """Try a layer that is more than a Linear: its output must be one tensor of the usual shape."""
    weight: Any = module.weight
    sample = torch.zeros(1, 2, module.in_features, dtype=weight.dtype, device=weight.device)  # type: ignore[call-overload]
    if not weight.is_floating_point():
        sample = sample.to(torch.get_default_dtype())
    try:
        layer_output = module(sample)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        return f"is a {type(module).__name__} that takes no plain input ({type(error).__name__})"
    if not isinstance(layer_output, Tensor) or layer_output.shape != (1, 2, module.out_features):
        return f"is a {type(module).__name__}, whose output is no linear layer's"
    return None


def _find_reached_layers(model: nn.Module) -> set[str]:
    """Name the linear layers whose output the prediction of a text depends on, with numbers left out of the names.

    An expert that one short text does not choose is reached all the same if one of its kind is.
    """
    reached: set[str] = set()

    def watch(layer_name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(_: nn.Module, __: Any, layer_output: Any) -> None:
            if isinstance(layer_output, Tensor) and layer_output.requires_grad:
                layer_output.register_hook(lambda _slope: reached.add(drop_numbers(layer_name)))  # type: ignore[no-untyped-call]

        return note

    def start(_: nn.Module, __: Any, embedded: Tensor) -> Tensor:
        return embedded.detach().requires_grad_() * 1  # some models write into it

    layers = [
        (layer_name, module)
        for layer_name, module in model.named_modules()
        if isinstance(module, LINEAR)
    ]
    hooks = [module.register_forward_hook(watch(layer_name)) for layer_name, module in layers]
    embedding: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    hooks.append(embedding.register_forward_hook(start))
    training = model.training
    model.eval()
    try:
        with requiring_gradients(model, False), torch.enable_grad():
            token_ids = torch.arange(4, device=next(model.parameters()).device)[None]
            logits = model(input_ids=token_ids, use_cache=False).logits
            torch.autograd.backward(torch.logsumexp(logits.float(), dim=-1).sum())
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {
            drop_numbers(layer_name) for layer_name, _ in model.named_modules()
        }  # training will tell
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return reached


def _find_stacked_parameters(
    model: nn.Module, config: Any, lora: LoraConfig
) -> list[StackedParameter]:
    """Find the stacked parameters that PEFT's config names, each under the name of the wrapper PEFT puts around it."""
    from peft.utils.other import get_pattern_key

    targets = sorted(config.target_parameters or ())
    if not targets:
        return []
    method = find_adapter_method(lora.kind)
    stacked: list[StackedParameter] = []
    for module_name, module in model.named_modules():
        parameters = [
            parameter_name for parameter_name, _ in module.named_parameters(recurse=False)
        ]
        chosen = [
            parameter_name
            for parameter_name in parameters
            if _is_named(f"{module_name}.{parameter_name}", targets)
        ]
        for number, parameter in enumerate(chosen):  # the last is PEFT's outermost wrapper
            full_name = f"{module_name}.{parameter}"
            rank_key = get_pattern_key(config.rank_pattern, full_name)
            alpha_key = get_pattern_key(config.alpha_pattern, full_name)
            stacked_rank = config.rank_pattern.get(rank_key, lora.r)
            peft_alpha = config.alpha_pattern.get(alpha_key, config.lora_alpha)
            entry = StackedParameter(
                name=module_name + ".base_layer" * (len(chosen) - 1 - number),
                module=module,
                parameter=parameter,
                scope=module,
                rank=int(stacked_rank),
                scale=method.scale(stacked_rank, peft_alpha / method.peft_alpha_factor),
                out_first=reads_out_first(module, parameter),
            )
            stacked.append(entry)
    return stacked


def reads_out_first(module: nn.Module, parameter: str) -> bool:
    """Return whether PEFT reads a parameter as (experts, out, in): it does where the module does not say otherwise."""
    weight: Tensor = getattr(module, parameter)
    return weight.dim() == 2 or not getattr(module, "is_transposed", False)


def _is_named(full_name: str, targets: Sequence[str]) -> bool:
    return any(full_name == target or full_name.endswith(f".{target}") for target in targets)


def _is_pattern(names: tuple[str, ...]) -> bool:
    """Return whether the only name is a regular expression."""
    if len(names) != 1 or names[0] == ALL_LINEAR:
        return False
    return not names[0].replace("_", "").replace(".", "").isalnum()
