"""Scans of hybrid models: by an installed package's kernels in 16 bits, by torch in float32."""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers.integrations import use_kernel_func_from_hub_with_fallback

from architectures.tiny import build
from lane_models import examples, place, spec, tiny
from potentia.engine.lane_spec import LoraConfig, TrainingRow
from potentia.engine.layers import row_mixers
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.packed_pass import PackedPass
from potentia.engine.layers.row_layout import lay_out_rows
from potentia.engine.models.scan_kernels import (
    KERNEL_MODULES,
    _choose_by_dtype,
    has_scan_kernels,
)
from potentia.engine.models.split_model import SplitModel
from potentia.engine.training.lane import Lane

MODULES_OF_TRANSFORMERS = {
    "torch_chunk_gated_delta_rule": "transformers.models.qwen3_5.modeling_qwen3_5",
    "chunk_kimi_delta_attention": "transformers.models.kimi_linear.modeling_kimi_linear",
    "mamba2_chunk_scan": "transformers.models.granitemoehybrid.modeling_granitemoehybrid",
}


@pytest.mark.parametrize("name", KERNEL_MODULES)
def test_transformers_still_has_the_functions(name: str) -> None:
    """Their names, what is below their wrappers, and the argument that kernels are told rows by."""
    module = importlib.import_module(MODULES_OF_TRANSFORMERS[name])
    function = getattr(module, name)
    assert inspect.unwrap(function) is not function
    told = row_mixers.SCAN_FUNCTIONS[name].told.value
    # without the package, transformers refuses packed rows, whatever the other arguments are
    with pytest.raises(ValueError, match="packed sequences"):
        function(**{told: torch.tensor([0, 4])})


# ---- stand-ins: kernels with the signatures of the packages, computed by transformers' plain functions ---------------


class StandIns:
    """Modules under the names of flash-linear-attention and mamba-ssm, and what their kernels were told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.rows_told: list[list[int]] = []

    def install(self, name: str, kernel_name: str, package: str, kernel: Any) -> None:
        """Let transformers' own wrapper take a kernel for the function of this name."""
        module = importlib.import_module(MODULES_OF_TRANSFORMERS[name])
        plain_function = inspect.unwrap(getattr(module, name))
        parts = KERNEL_MODULES[name].split(".")
        parent: ModuleType | None = None
        for end in range(1, len(parts) + 1):
            made = ModuleType(".".join(parts[:end]))
            self.monkeypatch.setitem(sys.modules, made.__name__, made)
            if parent is not None:
                setattr(parent, parts[end - 1], made)
            parent = made
        setattr(parent, kernel_name, kernel(plain_function, self.rows_told))
        wrapper = use_kernel_func_from_hub_with_fallback(kernel_name, package)
        self.monkeypatch.setattr(module, name, wrapper(plain_function))
        floats = (*row_mixers.FLOATS_OF_KERNELS, torch.float32)
        self.monkeypatch.setattr(row_mixers, "FLOATS_OF_KERNELS", floats)
        self.monkeypatch.setattr(
            row_mixers, "has_scan_kernels", lambda asked, _device: asked == name
        )


def delta_rule(plain_function: Any, rows_told: list[list[int]]) -> Any:
    """Return a kernel as flash-linear-attention has it."""

    def chunk_gated_delta_rule(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        scale: float | None = None,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: torch.Tensor | None = None,
        cu_seqlens_cpu: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert scale is None
        assert initial_state is None
        assert not output_final_state
        assert cu_seqlens is not None
        assert cu_seqlens_cpu is not None
        assert cu_seqlens.dtype == torch.int64
        assert cu_seqlens_cpu.device.type == "cpu"
        bounds = cu_seqlens.tolist()
        rows_told.append(bounds)
        outputs: list[torch.Tensor] = []
        for begin, end in itertools.pairwise(bounds):
            row = [tensor[:, begin:end] for tensor in (q, k, v, g, beta)]
            scanned = plain_function(*row, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel)
            outputs.append(scanned[0])
        return torch.cat(outputs, dim=1), None

    return chunk_gated_delta_rule


def state_space(plain_function: Any, rows_told: list[list[int]]) -> Any:
    """Return a kernel as mamba-ssm has it."""

    def mamba_chunk_scan_combined(
        x: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        chunk_size: int,
        D: torch.Tensor | None = None,
        z: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        initial_states: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        return_varlen_states: bool = False,
    ) -> torch.Tensor:
        assert z is None
        assert initial_states is None
        assert not return_final_states
        assert seq_idx is not None
        assert seq_idx.dtype == torch.int32
        assert seq_idx.shape == x.shape[:2]
        numbers = seq_idx[0].tolist()
        rows_told.append(numbers)
        assert numbers == sorted(numbers)
        outputs: list[torch.Tensor] = []
        for _, tokens in itertools.groupby(range(len(numbers)), key=numbers.__getitem__):
            places = list(tokens)
            x_row, dt_row, b_row, c_row = (tensor[:, places] for tensor in (x, dt, B, C))
            outputs.append(
                plain_function(
                    x_row,
                    dt_row,
                    A,
                    b_row,
                    c_row,
                    chunk_size,
                    D=D,
                    dt_bias=dt_bias,
                    dt_softplus=dt_softplus,
                    dt_limit=dt_limit,
                )
            )
        return torch.cat(outputs, dim=1)

    return mamba_chunk_scan_combined


def lessons() -> list[TrainingRow]:
    """Return rows of three lanes, of five to nineteen tokens."""
    rows: list[TrainingRow] = []
    for slot in range(3):
        lane = Lane(spec(f"lane {slot}", data=examples(n=6, seed=slot), seed=slot))
        lane.slot = slot
        rows += lane.next_rows(64)
    return rows


def losses_and_gradients(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    bank = AdapterBank(model, LoraConfig(dropout=0.0, targets=("all-linear",)), 3)
    bank.make_up_adapters()
    packed = PackedPass(SplitModel(model), bank, None)
    packed(place(lay_out_rows(lessons()), bank, few=False))
    bank.close()
    return packed.losses[:3].clone(), bank.grads.clone()


@pytest.mark.parametrize(
    ("name", "kernel_name", "package", "kernel"),
    [
        ("torch_chunk_gated_delta_rule", "chunk_gated_delta_rule", "fla", delta_rule),
        ("mamba2_chunk_scan", "mamba_chunk_scan_combined", "mamba_ssm", state_space),
    ],
)
def test_installed_kernels_are_told_where_rows_begin(
    name: str, kernel_name: str, package: str, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long row goes to the kernel in one piece, and every row is scanned by itself: as rows side by side are."""
    model = tiny("qwen3_5" if package == "fla" else "granite4")
    losses, gradients = losses_and_gradients(model)
    stand_ins = StandIns(monkeypatch)
    stand_ins.install(name, kernel_name, package, kernel)
    kernel_losses, kernel_gradients = losses_and_gradients(model)
    assert stand_ins.rows_told
    assert torch.allclose(kernel_losses, losses, rtol=1e-5)
    assert torch.allclose(kernel_gradients, gradients, rtol=1e-4, atol=1e-6)
    assert float(gradients.abs().max()) > 1e-3  # there is something to compare


@pytest.mark.parametrize("case", ["kimi_linear", "jamba"])
def test_other_scans_stay_within_rows(case: str) -> None:
    """The same rows in another order, beside others: each lane's loss is its own."""
    model = build(case)
    bank = AdapterBank(model, LoraConfig(dropout=0.0, targets=None), 3)
    losses: list[torch.Tensor] = []
    for rows in (lessons(), lessons()[::-1]):
        packed = PackedPass(SplitModel(model), bank, None)
        packed(place(lay_out_rows(rows), bank, few=False))
        losses.append(packed.losses[:3].clone())
    assert torch.allclose(losses[0], losses[1], rtol=1e-5)


def test_float32_is_scanned_by_the_plain_function() -> None:
    calls: list[torch.dtype] = []

    def plain_scan(query: torch.Tensor, scale: float = 1.0) -> str:
        return "plain"

    def kernel_scan(query: torch.Tensor, scale: float = 1.0) -> str:
        calls.append(query.dtype)
        return "kernels"

    kernel_scan.__wrapped__ = plain_scan  # type: ignore[attr-defined]
    scan = _choose_by_dtype(kernel_scan)
    assert scan(torch.zeros(2)) == "plain"
    assert scan(query=torch.zeros(2, dtype=torch.bfloat16), scale=2.0) == "kernels"
    assert calls == [torch.bfloat16]


def test_a_processor_has_no_kernels() -> None:
    assert not has_scan_kernels("torch_chunk_gated_delta_rule", torch.device("cpu"))
