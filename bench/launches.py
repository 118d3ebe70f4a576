"""How the kernels of lanes are launched: warps, stages and tiles beside what is in use, on a pass of 36 lanes of 410M.

Each variant is compared with the one in use: the milliseconds of both, and how far their results are apart.

    python bench/launches.py --seconds 90 --out launches.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import lanes
from gpu_checks import quickly

LANES, PER_LANE, ROW = 36, 432, 108  # tokens of a lane, and of each of its rows
VARIANTS: list[tuple[str, str, dict[str, int]]] = [
    ("attention", "_back_keys", {"num_warps": 8}),
    ("thin", "_down_up", {"num_warps": 2}),
    ("thin", "_back", {"num_warps": 2}),
    ("thin", "_sums", {"BLOCK": 64}),
    ("attention", "_back_keys", {"num_stages": 1}),
    ("attention", "_back_keys", {"num_stages": 3}),
    ("thin", "_down_up", {"WIDE": 256}),
    ("thin", "_back", {"WIDE": 256}),
    ("thin", "_sums", {"num_warps": 2}),
    ("attention", "_back_queries", {"num_warps": 8}),
    ("attention", "_back_queries", {"num_stages": 3}),
    ("attention", "_forward", {"num_stages": 3}),
    ("thin", "_down_up", {"WIDE": 64, "num_warps": 2}),
    ("thin", "_back", {"WIDE": 64, "num_warps": 2}),
    ("thin", "_down_up", {"num_warps": 1}),
    ("thin", "_sums", {"BLOCK": 128}),
    ("thin", "_sums", {"BLOCK": 64, "num_warps": 8}),
]


class Launched:
    """A kernel whose launches have other settings."""

    def __init__(self, kernel: Any, changes: dict[str, int]) -> None:
        self.kernel, self.changes = kernel, changes

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **options: self.kernel[grid](*args, **(options | self.changes))


@contextmanager
def launched(module: str, name: str, changes: dict[str, int]) -> Iterator[None]:
    """Launch a kernel with other settings inside the block."""
    from importlib import import_module

    owner = import_module(f"potentia.engine.operations.kernels.{module}")
    with patch.object(owner, name, Launched(getattr(owner, name), changes)):
        yield


def operations_of_a_pass(device: torch.device) -> dict[str, Callable[[], tuple[torch.Tensor, ...]]]:
    """Make the operations on random numbers, by the names of the functions that launch the kernels."""
    from potentia.engine.operations import Rows, operations, tile
    from potentia.engine.tune.adapters import AdapterBank
    from potentia.engine.tune.layout import Route, ThinGroup
    from potentia.engine.tune.schedule import LoraConfig

    do, shape, tokens = operations(device), lanes.SHAPES["410m"], LANES * PER_LANE
    d, heads, kept = shape["d"], shape["heads"], shape["kv"]
    head = d // heads
    lanes.SHAPES["one layer"] = {**shape, "layers": 1, "vocab": 64}
    bank = AdapterBank(lanes.build("one layer", device, torch.bfloat16), LoraConfig(dropout=0.1), LANES)
    bank.randomise()
    at = np.arange(tokens)
    parts = (at // ROW * ROW, at // ROW * ROW + ROW, tile([(n + 1) * PER_LANE for n in range(LANES)]).reshape(-1, 2))
    rows = Rows(*(torch.from_numpy(part).to(device, torch.int32) for part in parts))
    spans = torch.tensor([(n * PER_LANE, (n + 1) * PER_LANE) for n in range(LANES)], dtype=torch.int32, device=device)
    owners = (torch.arange(tokens // 16, device=device) * 16 // PER_LANE).to(torch.int32)
    keys = torch.randint(0, 1 << 31, (tokens,), device=device).to(torch.int32)
    columns = {"q_proj": 0, "k_proj": heads * head, "v_proj": (heads + kept) * head}
    sites = [(site, columns[site.name.rsplit(".", 1)[-1]]) for site in bank.sites]
    group, route = ThinGroup(sites, bank.lora.r, device), Route(bank, owners, spans, keys)
    x, dx, dout = (torch.randn(tokens, d, device=device).bfloat16() for _ in range(3))
    qkv, dqkv = (torch.randn(tokens, (heads + 2 * kept) * head, device=device).bfloat16() for _ in range(2))
    sizes = [heads * head, kept * head, kept * head]
    q, k, v = (part.unflatten(1, (-1, head)) for part in qkv.split(sizes, dim=1))
    into = tuple(part.unflatten(1, (-1, head)) for part in torch.empty_like(qkv).split(sizes, dim=1))
    out, lse = do.attend(q, k, v, rows, head**-0.5, None)
    inner = do.thin(x, qkv.clone(), group, route)

    def thin() -> tuple[torch.Tensor, ...]:
        y = qkv.clone()
        return y, do.thin(x, y, group, route)

    def thin_back() -> tuple[torch.Tensor, ...]:
        bank.grads.zero_()
        slope = dx.clone()
        do.thin_back(x, dqkv, slope, inner, group, route)
        return slope, bank.grads

    def attend_back() -> tuple[torch.Tensor, ...]:
        do.attend_back(dout.view_as(out), q, k, v, out, lse, rows, head**-0.5, None, into)
        return into

    attend = lambda: do.attend(q, k, v, rows, head**-0.5, None)  # noqa: E731
    back = {"_back_keys": attend_back, "_back_queries": attend_back, "_back": thin_back, "_sums": thin_back}
    return back | {"_forward": attend, "_down_up": thin}


def main() -> None:
    """Measure the variants, until the seconds are over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--out", type=Path, default=Path("launches.jsonl"))
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("there are no kernels to launch here")
        return
    until = time.monotonic() + given.seconds
    works = operations_of_a_pass(torch.device("cuda"))
    with given.out.open("w") as out:
        for module, name, changes in VARIANTS:
            if time.monotonic() > until:
                break
            own, ms = [part.clone().float() for part in works[name]()], quickly(works[name])
            row: dict[str, Any] = {"kernel": name, **changes, "in_use_ms": ms}
            try:
                with launched(module, name, changes):
                    found = [part.clone().float() for part in works[name]()]
                    row["ms"] = quickly(works[name])
                gaps = [float((a - b).norm() / b.norm()) for a, b in zip(found, own, strict=True)]
                row["off"] = max(gaps)
            except Exception as error:  # one that does not compile is an answer too
                row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(row)


if __name__ == "__main__":
    main()
