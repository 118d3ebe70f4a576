"""The bench of today's architectures: one model through the script in small, bars, and how the time is shared out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lanes_by_architecture as bench
from potentia.values.training_form import TrainingForm

# the rows of the table that docs/lanes.md measures against
ASKED = {
    *(
        "llama-410m",
        "qwen3-0.6b",
        "gemma3-1b",
        "llama-1b",
        "pythia-410m",
        "olmo2-1b",
        "olmo3-1b",
        "smollm3-3b",
    ),
    *(
        "phi4-mini-3.8b",
        "lfm2-1.2b",
        "qwen3.5-0.8b",
        "gpt-oss-8of24",
        "gemma4-2b",
        "qwen3-moe-12of48",
    ),
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> bench.Setting:
    """Two fine-tunings of one task: what is tried is the script."""
    monkeypatch.setattr(bench, "TASKS", ("openbookqa",))
    return bench.Setting(device_name="cpu", is_tiny=True, is_profiled=False)


@pytest.mark.parametrize("name", ["olmo3-1b", "qwen3-moe-12of48"])
def test_a_model_is_measured_beside_its_peers(
    name: str, quick: bench.Setting, tmp_path: Path
) -> None:
    out = tmp_path / "rows.jsonl"
    turns = bench.Turns(1)
    reported: list[dict[str, Any]] = []

    def report(figures: dict[str, Any]) -> None:
        reported.append(dict(figures))
        bench.append_figures(out, figures)

    figures = bench.measure_architecture(name, quick, turns, report=report)
    assert "error" not in figures, figures["error"]
    assert ["ratio" in known for known in reported] == [False, True]  # ours is safe before the peer
    assert bench.read_figures(out)[name] == json.loads(json.dumps(figures, default=str))
    assert figures["step_ms"] > 0
    assert figures["slots"] == len(bench.LEARNING_RATES)
    assert figures["ratio"] == round(figures["peer_ms"] / figures["step_ms"], 2)
    assert ("ratio_on_experts" in figures) == (name == "qwen3-moe-12of48")
    assert "peer_error" not in figures
    assert figures["form"] in bench.PACKED_FORMS


def test_a_model_that_fails_is_told_and_lets_the_next_time(
    quick: bench.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no such layer")

    monkeypatch.setattr(bench, "make_model", fail)
    turns = bench.Turns(1)
    figures = bench.measure_architecture("olmo2-1b", quick, turns)
    turns.end_timing()
    assert "no such layer" in figures["error"]
    assert bench.describe_figures(figures).endswith("RuntimeError: no such layer")


def test_a_peer_without_time_leaves_our_figures(quick: bench.Setting) -> None:
    figures = bench.measure_architecture("llama-410m", quick, bench.Turns(1), end=0.0)
    assert figures["step_ms"] > 0
    assert "no time left after 0 of 1 tasks" in figures["peer_error"]


def test_all_models_of_the_table_are_measured() -> None:
    assert set(bench.SHAPES) >= ASKED
    assert set(bench.BARS) <= ASKED
    assert set(bench.PACKED_FORMS) == {TrainingForm.FUSED.words, TrainingForm.PACKED.words}


def test_bars_are_held_against_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = bench.Bar(least_ratio=24)
    assert bar.is_reached({"ratio": 25.8})
    assert bar.is_reached({"ratio": 23.9}) is False
    assert bar.is_reached({"step_ms": 3.0}) is None
    assert bench.Bar().is_reached({"ratio": 25.8}) is None
    assert bar.is_reached({"ratio": 25.8, "is_alone": False}) is None
    scans = bench.BARS["qwen3.5-0.8b"]
    assert scans.is_reached({"step_ms": 880})
    monkeypatch.setattr(bench, "find_spec", lambda name: name)
    assert scans.is_reached({"step_ms": 880}) is False  # kernels are installed: a quarter is asked
    experts = bench.BARS["qwen3-moe-12of48"]
    assert experts.is_reached({"form": "long rows", "slots": 24})
    assert experts.is_reached({"form": "shared passes", "slots": 24}) is False
    assert "| ≥ 24 × | **no** |" in bench.describe_figures({"model": "olmo2-1b", "ratio": 9})


def test_the_budget_is_shared_out_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(bench.time, "monotonic", lambda: clock[0])
    given: list[tuple[list[str], float]] = []

    def measure(names: Sequence[str], _: bench.Setting, __: Path, seconds: float) -> None:
        given.append((list(names), round(seconds)))
        clock[0] += seconds if "b" in names else 10  # one of them takes all that it is given

    setting = bench.Setting(device_name="cpu", is_tiny=True, is_profiled=False)
    options = {"together": 2, "measure": measure}
    bench.measure_within(list("abcdefg"), setting, tmp_path, budget=100, **options)
    assert given == [(["a", "b"], 38), (["c", "d"], 31), (["e", "f"], 39), (["g"], 42)]
    given.clear()
    clock[0] = 0.0
    bench.measure_within(list("abcd"), setting, tmp_path, budget=20, **options)
    assert given == [(["a", "b"], 15)]
    assert "no time left for c, d" in capsys.readouterr().out
