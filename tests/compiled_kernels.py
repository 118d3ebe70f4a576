"""Compile every kernel of static passes for a GPU that need not be there, and print their names: run by the tests.

The interpreter runs kernels as Python: what the compiler refuses it does not see.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from lane_models import place, spec, tiny
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.fused_layers import FusedLayers
from potentia.engine.layers.packed_pass import PackedPass
from potentia.engine.layers.row_layout import lay_out_rows
from potentia.engine.models.split_model import SplitModel
from potentia.engine.operations import compile_kernels, kernels
from potentia.engine.operations.grouped import RowGroups
from potentia.engine.steps.lane_states import UPDATE_COLUMNS, LaneStates
from potentia.engine.training.lane import Lane
from potentia.values.recipe import LoraConfig


def main() -> None:
    device = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    driver.set_active(device)
    compiled = set[str]()
    original = JITFunction.warmup

    def noted(self: JITFunction, *args: object, **options: object) -> object:
        compiled.add(self.fn.__name__)
        return original(self, *args, **options)

    JITFunction.warmup = noted
    dropout, dtype = 0.1, getattr(torch, sys.argv[1])
    model = tiny("gemma3").to(dtype).requires_grad_(False)
    bank = AdapterBank(model, LoraConfig(dropout=dropout, targets=("all-linear",)), 3)
    lanes = [Lane(spec(f"l{slot}", seed=slot, dropout=dropout)) for slot in range(3)]
    for slot, lane in enumerate(lanes):
        lane.slot = slot
    inputs = place(
        lay_out_rows([row for lane in lanes for row in lane.next_rows(64)]), bank, few=True
    )
    packed_pass = PackedPass(SplitModel(model), bank, FusedLayers.of(model))
    assert packed_pass.blocks is not None
    packed_pass.operations = kernels
    states, table = LaneStates(3, bank.width, bank.device), torch.ones(3, UPDATE_COLUMNS)
    q, kept = torch.zeros(2, 4, 8, dtype=dtype), torch.zeros(41, 2, 8, dtype=dtype)

    tokens, filters = torch.zeros(40, 128, dtype=dtype), torch.zeros(128, 4, dtype=dtype)
    places = torch.zeros(40, dtype=torch.int32)
    factors = torch.zeros(3, 1, 128, dtype=dtype)
    groups = RowGroups.from_ends(torch.tensor([8, 8, 40], dtype=torch.int32), 40)

    def work() -> None:
        packed_pass._run(inputs, recompute=False)
        angles = torch.zeros(4, 12, dtype=dtype)  # fewer than a head has numbers
        kernels.rotate_(torch.zeros(4, 64, dtype=dtype), 3, 16, angles, angles, back=True)
        kernels.update_(
            bank.weights,
            states.first_moments,
            states.second_moments,
            bank.grads,
            bank.work,
            bank.scales,
            table,
            table[0],
        )
        kernels.attend_cached(q, kept, kept, torch.ones(2, dtype=torch.int32), 20, 0.3, 9)
        kernels.loss(
            torch.zeros(4, 30, dtype=dtype), torch.zeros(4, dtype=torch.int32), torch.ones(4)
        )
        kernels.fused_drop(
            torch.zeros(4, 32, dtype=dtype), torch.zeros(4, dtype=torch.int32), 12345, 0.1
        )
        kernels.convolve(tokens, filters, filters[:, 0], places)
        kernels.convolve_back(tokens, filters, places)
        inner = kernels.group_inner_values(tokens, factors, groups)
        kernels.add_group_outputs_(inner, factors, tokens, groups)
        kernels.group_gradients(inner, tokens, groups)
        kernels.gate_back_(
            torch.zeros(4, 64, dtype=dtype), kernels.gate(torch.zeros(4, 64, dtype=dtype))
        )

    compile_kernels(kernels, "all", work)
    print(*sorted(compiled))


if __name__ == "__main__":
    main()
