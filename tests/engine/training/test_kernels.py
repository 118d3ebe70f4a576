"""The Triton kernels equal the plain forms: on a GPU, or on a processor under Triton's interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lane_models import tiny
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.row_layout import AdapterGroup, LaneRoute
from potentia.engine.operations import Gain, Rows, plain, tile
from potentia.engine.operations.grouped import RowGroups
from potentia.values.recipe import LoraConfig

CUDA = torch.cuda.is_available()
with pytest.MonkeyPatch.context() as patch:
    if not CUDA:
        patch.setenv(
            "TRITON_INTERPRET", "1"
        )  # read when functions are defined, Triton's own among them
    pytest.importorskip("triton")
    from potentia.engine.operations import kernels

DEVICE = torch.device("cuda" if CUDA else "cpu")


@pytest.fixture(autouse=True)
def _interpreting(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUDA:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert bool(torch.isfinite(ours).all())
    assert float((ours - theirs).norm()) <= 3e-6 * float(theirs.norm())
    assert float(theirs.norm()) > 0


def rows_of(lengths: list[int], tokens: int, ends: list[int]) -> Rows:
    """First token and end of every token's row (what is left over stands alone), and tiles of lanes with these ends."""
    first, last = np.arange(tokens), np.arange(tokens) + 1
    at = 0
    for length in lengths:
        first[at : at + length], last[at : at + length] = at, at + length
        at += length
    tiles = np.concatenate([tile(ends), np.zeros(4, np.int32)])  # the last two have nothing to do
    return Rows(
        *(
            torch.from_numpy(part).to(DEVICE, torch.int32)
            for part in (first, last, tiles.reshape(-1, 2))
        )
    )


@pytest.mark.parametrize("taps", [3, 4])
@pytest.mark.parametrize("has_bias", [False, True])
def test_convolutions_within_rows(taps: int, has_bias: bool) -> None:
    tokens, channels = 37, 130  # more than a block of each, and no whole number of them
    wider = draw(tokens, channels + 6)
    x, dy = wider[:, :channels], draw(tokens, channels, seed=1)
    weight = draw(channels, taps, seed=2)
    bias = draw(channels, seed=3) if has_bias else None
    row_lengths = [1, 2, 20, 9, 5]
    places = torch.cat([torch.arange(length) for length in row_lengths]).to(DEVICE, torch.int32)
    close(kernels.convolve(x, weight, bias, places), plain.convolve(x, weight, bias, places))
    close(kernels.convolve_back(dy, weight, places), plain.convolve_back(dy, weight, places))


def test_plain_convolutions_are_torchs_of_each_row() -> None:
    channels, taps = 6, 4
    row_lengths = [1, 3, 11]
    weight, bias = draw(channels, taps, seed=2), draw(channels, seed=3)
    x = draw(sum(row_lengths), channels).requires_grad_()
    places = torch.cat([torch.arange(length) for length in row_lengths]).to(DEVICE)
    row_results = []
    for row in x.split(row_lengths):
        padded = torch.nn.functional.pad(row.t(), (taps - 1, 0)).unsqueeze(0)
        row_results.append(
            torch.nn.functional.conv1d(padded, weight.unsqueeze(1), bias, groups=channels)[0].t()
        )
    expected = torch.cat(row_results)
    dy = draw(*expected.shape, seed=1)
    expected.backward(dy)
    close(plain.convolve(x.detach(), weight, bias, places), expected.detach())
    assert x.grad is not None
    close(plain.convolve_back(dy, weight, places), x.grad)


@pytest.mark.parametrize("rank", [1, 4, 20])
def test_factors_of_groups(rank: int) -> None:
    """Empty groups at both ends and between, one of several tiles, and one of a single row."""
    sizes = torch.tensor([0, 5, 0, 70, 1, 32, 0, 0])
    ends = sizes.cumsum(0).to(DEVICE, torch.int32)
    rows, width = int(sizes.sum()), 130
    groups = RowGroups.from_ends(ends, rows)
    x, factors = draw(rows, width), draw(len(sizes), rank, width, seed=1)
    inner = plain.group_inner_values(x, factors, groups)
    expected = torch.stack([x[row] @ factors[group_of(ends, row)].t() for row in range(rows)])
    close(inner, expected)
    close(kernels.group_inner_values(x, factors, groups), inner)
    y, theirs = draw(rows, width, seed=2), draw(rows, width, seed=2)
    kernels.add_group_outputs_(inner, factors, y, groups)
    plain.add_group_outputs_(inner, factors, theirs, groups)
    close(y, theirs)
    close(kernels.group_gradients(inner, x, groups), plain.group_gradients(inner, x, groups))
    assert not kernels.group_gradients(inner, x, groups)[sizes == 0].any()


def group_of(ends: torch.Tensor, row: int) -> int:
    return int((ends <= row).sum())


@pytest.mark.parametrize("sizes", [[0], [1], [32, 33], [0, 0, 64, 0, 7]])
def test_tiles_hold_every_row_once_and_rows_of_one_group(sizes: list[int]) -> None:
    ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
    groups = RowGroups.from_ends(ends, sum(sizes))
    rows_seen: list[int] = []
    for group, first, end in zip(
        groups.tile_groups.tolist(),
        groups.tile_firsts.tolist(),
        groups.tile_ends.tolist(),
        strict=True,
    ):
        rows = list(range(first, end))
        assert all(group_of(ends, row) == group for row in rows)
        rows_seen += rows
    assert sorted(rows_seen) == list(range(sum(sizes)))


@pytest.mark.parametrize("more", [0.0, 1.0])
@pytest.mark.parametrize("width", [36, 64])
def test_norms(width: int, more: float) -> None:
    x, add, dy = draw(5, width), draw(5, width, seed=1), draw(5, width, seed=2)
    gain = Gain(draw(width, seed=3), 1e-5, more)
    for ours, theirs in zip(kernels.norm(x, gain), plain.norm(x, gain), strict=True):
        close(ours, theirs)
    for ours, theirs in zip(
        kernels.add_norm(x, add, gain), plain.add_norm(x, add, gain), strict=True
    ):
        close(ours, theirs)
    _, scale = plain.norm(x, gain)
    for other in (None, add):
        close(
            kernels.norm_back(dy, x, gain, scale, other), plain.norm_back(dy, x, gain, scale, other)
        )
    expected = x.clone().requires_grad_()
    torch.nn.functional.rms_norm(expected, (width,), gain.weight + more, 1e-5).backward(dy)
    close(kernels.norm_back(dy, x, gain, scale), expected.grad)


@pytest.mark.parametrize("module", [kernels, plain])
def test_norms_of_heads_within_a_wider_row(module) -> None:
    heads, head = 3, 24
    whole, slope = draw(5, (heads + 2) * head), draw(5, (heads + 1) * head, seed=2)
    gain = Gain(draw(head, seed=3), 1e-5, 1.0)
    part = whole[:, head : (1 + heads) * head]
    into = torch.full((5, (heads + 2) * head), 7.0, device=DEVICE)
    _, scale = module.norm(part, gain, into[:, head : (1 + heads) * head])
    expected = part.clone().requires_grad_()
    rows = torch.nn.functional.rms_norm(
        expected.unflatten(1, (heads, head)), (head,), gain.weight + 1, 1e-5
    )
    close(into[:, head : (1 + heads) * head], rows.flatten(1).detach())
    assert bool((into[:, :head] == 7).all())
    assert bool((into[:, (1 + heads) * head :] == 7).all())
    rows.flatten(1).backward(slope[:, :-head])
    own = slope[:, :-head]
    module.norm_back(
        own, part, gain, scale, None, own
    )  # in place, as the gradients of queries and keys are
    close(own, expected.grad)
    assert torch.equal(slope[:, -head:], draw(5, (heads + 1) * head, seed=2)[:, -head:])


@pytest.mark.parametrize("gelu", [False, True])
def test_gates(gelu: bool) -> None:
    both, slope = draw(6, 2 * 1100) * 3, draw(6, 1100, seed=1)
    close(kernels.gate(both, gelu), plain.gate(both, gelu))
    expected = both.clone().requires_grad_()
    g, u = expected.chunk(2, dim=1)
    opened = (
        torch.nn.functional.gelu(g, approximate="tanh") if gelu else torch.nn.functional.silu(g)
    )
    (opened * u).backward(slope)
    for module in (plain, kernels):
        for keep in (True, False):
            into, product = both.clone(), slope.clone()
            module.gate_back_(into, product, gelu, keep)
            close(into, expected.grad)
            close(product, (opened * u).detach() if keep else slope)


@pytest.mark.parametrize(("heads", "head", "rotated"), [(3, 8, 8), (4, 24, 24), (3, 16, 12)])
def test_rotations(heads: int, head: int, rotated: int) -> None:
    x = draw(7, (heads + 2) * head)
    angles = draw(7, rotated // 2, seed=1).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    turned = kernels.rotate_(x.clone(), heads, head, cos, sin)
    close(turned, plain.rotate_(x.clone(), heads, head, cos, sin))
    assert torch.equal(turned[:, heads * head :], x[:, heads * head :])
    by_head = turned[:, : heads * head].view(7, heads, head)
    assert torch.equal(
        by_head[..., rotated:], x[:, : heads * head].view(7, heads, head)[..., rotated:]
    )
    close(kernels.rotate_(turned, heads, head, cos, sin, back=True), x)


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize(("heads", "kept", "head"), [(2, 2, 16), (4, 2, 24)])
def test_attention_within_rows(heads: int, kept: int, head: int, window: int | None) -> None:
    tokens = 128
    rows = rows_of([5, 70, 1, 12, 30], tokens, [76, 128])
    both = draw(tokens, (heads + 2 * kept) * head)
    q, k, v = (
        part.unflatten(1, (-1, head))
        for part in both.split([heads * head, kept * head, kept * head], dim=1)
    )
    out, lse = kernels.attend(q, k, v, rows, 0.3, window)
    expected, sums = plain.attend(q, k, v, rows, 0.3, window)
    close(out, expected)
    close(lse, sums)
    dout = draw(tokens, heads, head, seed=1)
    found, right = [], []
    for module, answer, logs, into in ((kernels, out, lse, found), (plain, expected, sums, right)):
        into += [torch.full_like(part, float("nan")).contiguous() for part in (q, k, v)]
        module.attend_back(dout, q, k, v, answer, logs, rows, 0.3, window, tuple(into))
    parts = [part.detach().clone().requires_grad_() for part in (q, k, v)]
    group = heads // kept
    keys, values = (part.repeat_interleave(group, dim=1).transpose(0, 1) for part in parts[1:])
    at = torch.arange(tokens, device=DEVICE)
    sees = (
        (at <= at[:, None]) & (at >= rows.first[:, None]) & (at > at[:, None] - (window or tokens))
    )
    answer = torch.nn.functional.scaled_dot_product_attention(
        parts[0].transpose(0, 1), keys, values, attn_mask=sees, scale=0.3
    )
    answer.transpose(0, 1).backward(dout)
    for ours, theirs, part in zip(found, right, parts, strict=True):
        close(theirs, part.grad)
        close(ours, part.grad)


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize(("heads", "kept", "head"), [(2, 2, 16), (6, 2, 24)])
def test_attention_to_what_was_kept(heads: int, kept: int, head: int, window: int | None) -> None:
    seats, capacity = 3, 100
    q, k, v = (
        draw(seats, heads, head),
        draw(seats * capacity + 1, kept, head, seed=1),
        draw(seats * capacity + 1, kept, head, seed=2),
    )
    lengths = torch.tensor([1, 100, 70], dtype=torch.int32, device=DEVICE)
    expected = plain.attend_cached(q, k, v, lengths, capacity, 0.3, window)
    close(kernels.attend_cached(q, k, v, lengths, capacity, 0.3, window), expected)
    part = slice(2 * capacity + max(0, 70 - (window or 70)), 2 * capacity + 70)
    keys, values = (x[part].repeat_interleave(heads // kept, dim=1).transpose(0, 1) for x in (k, v))
    alone = torch.nn.functional.scaled_dot_product_attention(q[2][:, None], keys, values, scale=0.3)
    close(expected[2], alone[:, 0])


@pytest.mark.parametrize("head", [64, 128, 192, 256, 512])
def test_attention_fits_the_shared_memory_of_a_desktop_card(head: int) -> None:
    """The compiler gives the gradients' kernels four blocks of heads: 134 KB of heads of 512, in blocks of 32."""
    sizes = kernels.attention._choose_sizes(torch.zeros(1, 1, head, dtype=torch.bfloat16))
    assert 4 * sizes["BLOCK"] * sizes["WIDE"] * torch.bfloat16.itemsize <= 99 * 1024
    assert sizes["BLOCK"] >= 16  # what a matrix unit takes


@pytest.mark.parametrize("module", [kernels, plain])
def test_what_is_not_finite_spoils_its_own_row_alone(module) -> None:
    tokens = 64
    rows = rows_of([20, 20, 20], tokens, [20, 40, 64])
    dout = draw(tokens, 2, 16, seed=4)
    for spoiled in range(3):
        parts = [draw(tokens, 2, 16, seed=seed) for seed in range(3)]
        results = []
        for value in (1.0, float("inf"), float("nan")):
            parts[spoiled][20, 0, 3] = value  # the first token of the second row
            slope = dout.clone()
            slope[20:40] *= value  # as it would come back
            out, lse = module.attend(*parts, rows, 0.3, None)
            into = tuple(torch.empty_like(part) for part in parts)
            module.attend_back(slope, *parts, out, lse, rows, 0.3, None, into)
            results.append((out, *into))
        sound, *others = results
        for found in others:
            assert not bool(torch.isfinite(found[0][20:40, 0]).all()), (spoiled, found is others[0])
            for whole, part in zip(sound, found, strict=True):
                for span in (slice(0, 20), slice(40, tokens)):
                    assert torch.equal(whole[span], part[span])


@pytest.mark.parametrize(
    ("names", "dropout"),
    [
        (("q_proj",), 0.3),
        (("q_proj", "v_proj"), 0.0),
        (("q_proj", "k_proj", "v_proj"), 0.0),
        (("q_proj", "k_proj", "v_proj"), 0.3),
    ],
)
def test_thin_products(names: tuple[str, ...], dropout: float) -> None:
    bank = AdapterBank(
        tiny("llama").to(DEVICE), LoraConfig(r=4, alpha=8, dropout=dropout, targets=names), 3
    )
    bank.weights[:3] = draw(3, bank.width)
    bank.refresh_work()
    tokens = 96
    owners = torch.tensor([0, 0, 2, 2, 2, 3], dtype=torch.int32, device=DEVICE)
    spans = torch.tensor([[2, 32, 80], [0, 0, 32], [0, 0, 0]], dtype=torch.int32, device=DEVICE)
    keys = (
        torch.randint(0, 1 << 31, (tokens,), dtype=torch.int32, device=DEVICE) if dropout else None
    )
    tiles = torch.from_numpy(tile([32, 80, tokens]).reshape(-1, 2)).to(DEVICE)
    route = LaneRoute(bank, owners, spans, keys, tiles)
    starts = {"q_proj": 0, "k_proj": 32, "v_proj": 48}
    sites = [
        (site, starts[name])
        for site in bank.sites[: len(names)]
        for name in names
        if site.name.endswith(name)
    ]
    group = AdapterGroup(sites, bank.lora.r, DEVICE)
    x, y, dy = draw(tokens, 32), draw(tokens, 64, seed=1), draw(tokens, 64, seed=2)
    dy[80:] = 0
    results = []
    for module in (kernels, plain):
        bank.grads.fill_(0.5)
        out, dx = y.clone(), draw(tokens, 32, seed=3)
        h = module.add_adapter_outputs(x, out, group, route)
        for into in (dx, None):
            dh = module.backpropagate_adapters(dy, into, group, route)
            module.sum_adapter_gradients(x, dy, h, dh, group, route)
        results.append((out, h, dx, dh, bank.grads.clone()))
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs)
    out, *_, grads = results[0]
    assert torch.equal(out[80:], y[80:])  # the bare model's tokens
    assert not torch.equal(out[:80], y[:80])
    assert bool((grads[1] == 0.5).all())
    assert bool((grads[3] == 0.5).all())
    if not dropout:
        site, column = sites[0]
        a, b = bank.views(bank.weights, site)
        expected = y[:32, column : column + site.fan_out] + x[:32] @ a[0] @ b[0] * 2
        close(out[:32, column : column + site.fan_out], expected)


def test_no_place_is_called_aligned_that_is_not() -> None:
    for rank, expected in (
        (4, 16),
        (3, 2),
        (1, 2),
    ):  # the tiny model is 32 wide; its rows of A and B are rank times that
        bank = AdapterBank(
            tiny("llama").to(DEVICE),
            LoraConfig(r=rank, targets=("k_proj", "v_proj"), dropout=0.1),
            1,
        )
        site = bank.sites[1]
        group = AdapterGroup([(site, 34 if rank < 4 else 32)], rank, DEVICE)
        assert group.align == expected
        assert all(number % group.align == 0 for number in group.table[0, :4].tolist())


def test_losses() -> None:
    logits, weights = draw(9, 5000) * 4, draw(9, seed=1).abs()
    targets = torch.arange(9, device=DEVICE) * 600
    states = logits.clone().requires_grad_()
    values = torch.nn.functional.cross_entropy(states, targets, reduction="none")
    (values * weights).sum().backward()
    for module in (kernels, plain):
        ours, slope = module.loss(logits, targets, weights)
        close(ours, values.detach())
        close(slope, states.grad)


def test_updates() -> None:
    n, width = 4, 1500
    results = []
    for module in (kernels, plain):
        parts = [
            draw(n + 1, width, seed=1),
            draw(n, width, seed=2),
            draw(n, width, seed=3).abs(),
            draw(n + 1, width),
        ]
        parts[3][2, 7] = float("nan")
        before = [part.clone() for part in parts]
        factors = draw(width, seed=5)
        work = parts[0] * factors
        settings = draw(n, 11, seed=6).abs()
        settings[0, 8] = float("inf")
        settings[:, 9] = torch.tensor([1.0, 1.0, 1.0, 0.0])
        norms = torch.linalg.vector_norm(parts[3][:n], dim=1)
        module.update_(*parts, work, factors, settings, norms)
        assert bool((parts[3][:n] == 0).all())
        for part, old in zip(parts[:3], before[:3], strict=True):
            assert torch.equal(part[2:4], old[2:4])
            assert not torch.equal(part[:2], old[:2])
        results.append((*parts[:3], work))
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs)


def test_an_update_of_70_million_numbers_is_a_grid_that_cuda_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found before: blocks of the width lay in the grid's second dimension, which has 65,535 at most."""
    grids = []
    monkeypatch.setattr(
        kernels.elementwise, "launch", lambda _kernel, grid, *_, **__: grids.append(grid)
    )
    lanes, width = 24, 70_000_000
    rows = torch.empty(lanes + 1, width, device="meta")
    moments = torch.empty(lanes, width, device="meta")
    settings, norms = torch.empty(lanes, 11, device="meta"), torch.empty(lanes, device="meta")
    kernels.update_(rows, moments, moments, rows, rows, rows[0], settings, norms)
    ((first, second),) = grids
    assert first * kernels.elementwise.BLOCK >= width
    assert first < 2**31
    assert second == lanes <= 65_535


@pytest.mark.long
def test_the_compiler_takes_every_kernel(tmp_path: Path) -> None:
    """For a GPU that need not be there: what the interpreter runs, the compiler may still refuse."""
    script = Path(__file__).parents[2] / "compiled_kernels.py"
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {
        "TRITON_CACHE_DIR": str(tmp_path)
    }
    ran = subprocess.run(
        [sys.executable, str(script), "bfloat16"], env=env, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    source = Path(kernels.__file__).parent
    launched = {
        name
        for file in source.glob("*.py")
        for name in re.findall(r"launch\(\s*(_\w+)", file.read_text())
    }
    assert len(launched) >= 12
    assert set(ran.stdout.split()) == launched
    made = [
        file
        for name in ("inner_values", "outer_products", "adapter_gradient")
        for file in tmp_path.glob(f"*/_{name}_kernel.ptx")
    ]
    assert len(made) >= 5
    for file in made:  # places that are multiples of 16 are read 16 bytes at a time, not two
        assert ".global.b16" not in file.read_text(), file.name
