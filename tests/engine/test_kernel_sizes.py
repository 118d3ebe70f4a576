"""The largest grids, strides and offsets that today's models reach fit what CUDA and 32-bit numbers hold.

Kernels are launched on tensors without memory (``meta``), and what would have been launched is looked at. A grid has
2³¹ − 1 programs in its first dimension and 65,535 in the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from potentia.engine.layers.row_layout import STRETCH, AdapterGroup
from potentia.engine.operations import TILE, Gain, Rows

with pytest.MonkeyPatch.context() as patch:
    if not torch.cuda.is_available():
        patch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    from potentia.engine.operations.kernels import attention, elementwise

    adapters = import_module("potentia.engine.operations.kernels.adapters")

FIRST_DIMENSION, OTHER_DIMENSIONS = 2**31 - 1, 65_535
LARGEST_INDEX = 2**31 - 1
TOKENS = 1 << 21  # of one pass: sixteen rows of 131,072 tokens
LANES = 256
RANKS = (8, 64, 256)


@dataclass(frozen=True)
class Widths:
    """The sizes of a model that kernels see."""

    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head: int
    layers: int
    vocabulary: int
    experts: int = 1

    @property
    def numbers_per_rank(self) -> int:
        """How many numbers an adapter of all linear layers has for each unit of its rank."""
        query, kept = self.heads * self.head, self.key_value_heads * self.head
        attention = 2 * self.hidden + 2 * query + 2 * (self.hidden + kept)
        return self.layers * (attention + self.experts * 3 * (self.hidden + self.intermediate))


MODELS = {
    "Qwen3-0.6B": Widths(1024, 3072, 16, 8, 128, 28, 151_936),
    "Llama-3.1-8B": Widths(4096, 14336, 32, 8, 128, 32, 128_256),
    "gemma-3-27b": Widths(5376, 21504, 32, 16, 128, 62, 262_208),
    "Qwen3-32B": Widths(5120, 25600, 64, 8, 128, 64, 151_936),
    "Llama-3.3-70B": Widths(8192, 28672, 64, 8, 128, 80, 128_256),
    "Qwen2.5-72B": Widths(8192, 29568, 64, 8, 128, 80, 152_064),
    "Qwen3-30B-A3B": Widths(2048, 768, 32, 4, 128, 48, 151_936, experts=128),
    "gpt-oss-120b": Widths(2880, 2880, 64, 8, 64, 36, 201_088, experts=128),
}


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


Launches = list[tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    made: Launches = []

    def record(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        made.append((kernel.fn.__name__, grid, args, options))

    for module in (attention, elementwise, adapters):
        monkeypatch.setattr(module, "launch", record)
    return made


def check(launches: Launches) -> None:
    """Check the grids of what was launched, and the numbers that kernels take as 32 bits."""
    assert launches
    for name, grid, args, _ in launches:
        assert grid[0] <= FIRST_DIMENSION, (name, grid)
        assert all(size <= OTHER_DIMENSIONS for size in grid[1:]), (name, grid)
        sizes = [number for number in args if isinstance(number, int)]
        if name in (
            "_inner_values_kernel",
            "_outer_products_kernel",
            "_adapter_gradient_kernel",
        ):
            sizes.remove(max(sizes))  # the numbers of one lane's adapters: 64 bits where needed
        assert max(sizes, default=0) <= LARGEST_INDEX, (name, sizes)
    launches.clear()


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> Widths:
    return MODELS[request.param]


def test_elementwise_kernels(model: Widths, launches: Launches) -> None:
    x, gain = empty(TOKENS, model.hidden), Gain(empty(model.hidden), 1e-5)
    _, scale = elementwise.norm(x, gain)
    elementwise.add_norm(x, x, gain)
    elementwise.norm_back(x, x, gain, scale)
    query_width = model.heads * model.head
    queries, head_gain = empty(TOKENS, query_width), Gain(empty(model.head), 1e-5)
    _, scale = elementwise.norm(queries, head_gain)
    elementwise.norm_back(queries, queries, head_gain, scale)
    angles = empty(TOKENS, model.head)
    elementwise.rotate_(queries, model.heads, model.head, angles, angles)
    both = empty(TOKENS, 2 * model.intermediate)
    elementwise.gate(both)
    elementwise.gate_back_(both, empty(TOKENS, model.intermediate))
    logits, targets = empty(TOKENS, model.vocabulary), empty(TOKENS, dtype=torch.int32)
    elementwise.loss(logits, targets, empty(TOKENS, dtype=torch.float32))
    keys = empty(TOKENS, dtype=torch.int32)
    elementwise.fused_drop(x, keys, 1, 0.1)
    elementwise.fused_drop(both, keys, 1, 0.1)
    check(launches)


def test_attention_kernels(model: Widths, launches: Launches) -> None:
    marks = empty(TOKENS, dtype=torch.int32)
    rows = Rows(marks, marks, empty(TOKENS // TILE + LANES, 2, dtype=torch.int32))
    for dtype in (torch.bfloat16, torch.float32):
        q = empty(TOKENS, model.heads, model.head, dtype=dtype)
        k = empty(TOKENS, model.key_value_heads, model.head, dtype=dtype)
        out, lse = attention.attend(q, k, k, rows, 1.0, None)
        attention.attend_back(out, q, k, k, out, lse, rows, 1.0, None, (q, k, k))
        seats, capacity = 4096, 131_072
        cache = empty(seats * capacity, model.key_value_heads, model.head, dtype=dtype)
        attention.attend_cached(q[:seats], cache, cache, marks[:seats], capacity, 1.0, None)
    check(launches)


def site(index: int, offset: int, fan_in: int, fan_out: int) -> Any:
    return SimpleNamespace(index=index, offset=offset, fan_in=fan_in, fan_out=fan_out)


def thin_route(numbers: int, rank: int, dtype: torch.dtype) -> Any:
    lora = SimpleNamespace(r=rank, dropout=0.1)
    work, grads = (empty(LANES + 1, numbers, dtype=kind) for kind in (dtype, torch.float32))
    return SimpleNamespace(
        bank=SimpleNamespace(lora=lora, scale=1.0, work=work, grads=grads),
        owners=empty(TOKENS // STRETCH, dtype=torch.int32),
        spans=empty(LANES, 3, dtype=torch.int32),
        keys=empty(TOKENS, dtype=torch.int32),
        tiles=empty(TOKENS // TILE + LANES, 2, dtype=torch.int32),
        stretch=STRETCH,
    )


@pytest.mark.parametrize("rank", RANKS)
def test_adapter_kernels(model: Widths, launches: Launches, rank: int) -> None:
    numbers = model.numbers_per_rank * rank
    kept = model.key_value_heads * model.head
    for fan_in, fan_outs in (
        (model.hidden, [model.heads * model.head, kept, kept]),
        (model.hidden, [model.intermediate] * 2),
        (model.hidden, [model.intermediate] * 2 * model.experts),
        (model.intermediate, [model.hidden]),
        (model.hidden, [model.vocabulary]),
    ):
        sites, offset = [], numbers - rank * sum(fan_in + fan_out for fan_out in fan_outs)
        columns = [sum(fan_outs[:number]) for number in range(len(fan_outs))]
        for number, fan_out in enumerate(fan_outs):
            sites.append((site(number, offset, fan_in, fan_out), columns[number]))
            offset += rank * (fan_in + fan_out)
        group = AdapterGroup(sites, rank, torch.device("cpu"))
        for dtype in (torch.bfloat16, torch.float32):
            route = thin_route(numbers, rank, dtype)
            x, y = empty(TOKENS, fan_in, dtype=dtype), empty(TOKENS, sum(fan_outs), dtype=dtype)
            h = adapters.add_adapter_outputs(x, y, group, route)
            dh = adapters.backpropagate_adapters(y, x, group, route)
            adapters.sum_adapter_gradients(x, y, h, dh, group, route)
        for *_, options in launches:
            assert options["RANK"] * max(fan_in, *fan_outs) <= LARGEST_INDEX  # within one A or B
        check(launches)


def reach() -> Iterator[tuple[int, int]]:
    """Ranks and tokens whose inner values at the last of three sites lie beyond 2³¹ numbers."""
    yield 64, 1 << 24


@pytest.mark.skipif(torch.cuda.is_available(), reason="by Triton's interpreter")
@pytest.mark.parametrize(("rank", "tokens"), reach())
def test_inner_values_beyond_32_bits(
    monkeypatch: pytest.MonkeyPatch, rank: int, tokens: int
) -> None:
    """The last tokens of a pass, at the last site: memory that is not touched costs nothing."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    width, fan_out, number = 16, 16, 3
    numbers = number * rank * (width + fan_out)
    sites = [
        (site(index, index * rank * (width + fan_out), width, fan_out), index * fan_out)
        for index in range(number)
    ]
    group = AdapterGroup(sites, rank, torch.device("cpu"))
    work, grads = torch.randn(2, numbers), torch.zeros(2, numbers)
    lora = SimpleNamespace(r=rank, dropout=0.0)
    begin = tokens - STRETCH
    route: Any = SimpleNamespace(
        bank=SimpleNamespace(lora=lora, scale=1.0, work=work, grads=grads),
        owners=torch.zeros(tokens // STRETCH, dtype=torch.int32),
        spans=torch.tensor([[0, begin, tokens]], dtype=torch.int32),
        keys=None,
        tiles=torch.tensor([[begin, tokens]], dtype=torch.int32),
        stretch=STRETCH,
    )
    assert number * tokens * rank > LARGEST_INDEX
    x, y = torch.empty(tokens, width), torch.empty(tokens, number * fan_out)
    x[begin:] = torch.randn(STRETCH, width)
    y[begin:] = 0.0
    h = adapters.add_adapter_outputs(x, y, group, route)
    last = numbers - rank * (width + fan_out)
    a = work[0, last : last + rank * width].view(rank, width)
    b = work[0, last + rank * width :].view(rank, fan_out)
    expected = x[begin:] @ a.t()
    torch.testing.assert_close(h[-1, begin:], expected)
    torch.testing.assert_close(y[begin:, -fan_out:], expected @ b, atol=1e-4, rtol=1e-4)
    adapters.sum_adapter_gradients(x, y, h, h, group, route)
    sums = grads[0, last + rank * width :].view(rank, fan_out)
    torch.testing.assert_close(sums, expected.t() @ y[begin:, -fan_out:], atol=1e-2, rtol=1e-3)
