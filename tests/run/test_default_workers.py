"""How many rows run at once where nobody says: by the GPU's memory, the cores and the rows left."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import tiny
from potentia.run import choose_worker_count, plan_study
from potentia.run.executors.local import choose_memory_share
from potentia.run.plan import Assignment
from potentia.study import make_study

GIB = 2**30


@pytest.fixture
def plan(tmp_path):
    def make(sizes: list[float | None], device: str = "auto"):
        tiny.save_model(tmp_path / "base")
        tiny.save_questions(tmp_path / "q.jsonl")
        models = [
            {
                "name": f"m{k}",
                "path": str(tmp_path / "base"),
                **({"parameters": size} if size else {}),
            }
            for k, size in enumerate(sizes)
        ]
        body = {
            "models": models,
            "tasks": [str(tmp_path / "q.jsonl")],
            "protocols": ["direct"],
            "device": device,
        }
        return plan_study(make_study({**body, "store": str(tmp_path / "s.db")}))

    return make


def on_gpus(monkeypatch, count: int, memory: float, cores: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=memory * GIB)
    )
    monkeypatch.setattr(os, "cpu_count", lambda: cores)


@pytest.mark.parametrize(
    ("sizes", "gpus", "memory", "cores", "workers"),
    [
        ([1e8] * 10, 1, 139, 16, 6),  # small models share a GPU
        ([1e8] * 10, 1, 139, 4, 2),  # but not the cores
        ([1e8] * 2, 1, 139, 16, 2),  # no more than there are rows
        ([1.1e9] * 2 + [2e7] * 8, 1, 139, 16, 6),
        ([1.1e9] * 2 + [2e7] * 8, 1, 56, 16, 3),  # the largest may come together
        ([1.1e9] * 2 + [5e8] * 2 + [2.7e8] * 6, 1, 139, 16, 6),
        (
            [1.1e9] * 2 + [5e8] * 2 + [2.7e8] * 6,
            1,
            80,
            16,
            3,
        ),  # passes of half a billion need as much as of one
        ([8e9, 1e8, 1e8], 1, 105, 16, 2),  # a large one leaves room for a small one
        ([8e9, 8e9, 1e8], 1, 139, 16, 1),
        ([1e8] * 10, 4, 139, 64, 8),
    ],
)
def test_small_models_share_a_gpu(plan, monkeypatch, sizes, gpus, memory, cores, workers) -> None:
    study_plan = plan(sizes)
    on_gpus(monkeypatch, gpus, memory, cores)
    assert choose_worker_count(study_plan) == workers


def test_one_row_at_a_time_on_a_cpu(plan, monkeypatch) -> None:
    study_plan = plan([1e8] * 4, device="cpu")
    on_gpus(monkeypatch, 1, 139, 16)
    assert choose_worker_count(study_plan) == 1


def test_rows_on_one_gpu_have_memory_by_need(plan) -> None:
    """With equal parts the passes of a model of 1.1 B found no room, with parts by parameters those of 0.5 B."""
    waiting = [Assignment(row) for row in plan([1.1e9] * 2 + [5e8] * 2 + [2e7] * 6).rows]
    busy = []
    while len(busy) < 6:
        row = waiting.pop(0)
        busy.append(replace(row, memory_share=choose_memory_share(row, busy, waiting, 6)))
    assert min(busy[0].memory_share, busy[2].memory_share) > 1 / 6 > busy[4].memory_share > 0.05
    assert sum(row.memory_share for row in busy) == pytest.approx(0.97)
    busy = busy[
        1:4
    ]  # a large one and two small ones have ended: the small ones that are left share what these had
    row = waiting.pop(0)
    part = choose_memory_share(row, busy, waiting, 6)
    assert part == pytest.approx((0.97 - sum(row.memory_share for row in busy)) / 3)
    busy.append(replace(row, memory_share=part))
    while waiting:
        row = waiting.pop(0)
        busy.append(replace(row, memory_share=choose_memory_share(row, busy, waiting, 6)))
    assert sum(row.memory_share for row in busy) == pytest.approx(0.97)
