"""The recipe's check on shipped models: exposure shows in direct scores, tuning levels it."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from potentia.zoo import find_model, make_world  # noqa: E402
from potentia.zoo.benchmarks import BENCHMARK, make_items  # noqa: E402
from potentia.zoo.library import WEIGHTS  # noqa: E402
from potentia.zoo.world import vocabulary  # noqa: E402
from zoo_builder.agreement import first_share, mean_tau, ranking, summary  # noqa: E402
from zoo_builder.check import RATES, Lanes, Rows, check_stack, encode, score  # noqa: E402
from zoo_builder.knowledge import clozes, measure  # noqa: E402
from zoo_builder.recipe import HEADS, LAYERS  # noqa: E402
from zoo_builder.stack import Shape, Weights  # noqa: E402

WORLD = make_world()


def shipped(width: int, names: list[str]) -> tuple[Shape, Weights]:
    from safetensors.torch import load_file

    shape = Shape(LAYERS, width, 2 * width, HEADS[width], len(vocabulary()))
    files = [load_file(WEIGHTS / name / "model.safetensors") for name in names]
    return shape, {
        slot: torch.stack([file[slot].float() for file in files]) for slot, _ in shape.slots()
    }


def rows(name: str, split: str, count: int) -> Rows:
    return encode(BENCHMARK[name], make_items(WORLD, BENCHMARK[name], split)[:count], "cpu")


def test_direct_scores_follow_exposure_rather_than_knowledge() -> None:
    names = ["aster-159k", "birch-159k"]
    shape, weights = shipped(64, names)
    assert find_model("aster-159k").knowledge > find_model("birch-159k").knowledge + 0.1
    aster, birch = score(shape, weights, rows("ask", "test", 200)).tolist()
    assert birch > aster + 0.25


@pytest.mark.long
def test_tuning_shows_what_the_unexposed_model_knows() -> None:
    shape, weights = shipped(64, ["aster-159k", "birch-159k"])
    sizes = {"train": 240, "validation": 40, "test": 150}
    data = [
        {split: rows(name, split, count) for split, count in sizes.items()}
        for name in ("ask", "record")
    ]
    checked = check_stack(shape, weights, data, examples=240, epochs=3)
    direct, tuned = checked.direct.tolist(), checked.tuned.tolist()
    assert direct[0][0] < direct[1][0] - 0.25  # before: the exposed model leads on its own form
    assert tuned[0][0] > direct[0][0] + 0.25
    assert (
        tuned[0][1] > tuned[1][1]
    )  # after: the one that knows more leads on a form that neither had seen
    assert set(checked.rate.flatten().tolist()) <= set(torch.tensor(RATES).tolist())


def test_fresh_lanes_change_nothing() -> None:
    shape, weights = shipped(40, ["aster-71k"])
    lanes = Lanes(shape, weights, tasks=2, rates=RATES)
    merged = lanes.merged(lanes.flat)
    assert lanes.task.tolist() == [0, 0, 1, 1]
    for name, weight in weights.items():
        torch.testing.assert_close(merged[name], weight.expand_as(merged[name]))


def test_generation_wants_the_answer_and_an_end() -> None:
    shape, weights = shipped(80, ["cedar-237k", "aster-237k"])
    exposed, other = score(shape, weights, rows("call", "test", 100)).tolist()
    assert exposed > 0.6
    assert other < 0.1


def test_knowledge_is_measured_as_the_facts_say() -> None:
    shape, weights = shipped(40, ["aster-71k", "dahlia-71k"])
    found = measure(shape, weights, clozes(WORLD, limit=60))
    for name, result in zip(("aster-71k", "dahlia-71k"), found, strict=True):
        assert result["knowledge"] == pytest.approx(find_model(name).knowledge, abs=0.1)


def test_agreement_of_a_planted_order() -> None:
    values = np.outer(np.arange(6.0), [1.0, 2.0, 3.0])
    assert mean_tau(values) == pytest.approx(1.0)
    assert first_share(values) == pytest.approx(1.0)
    assert ranking(values).tolist() == [1, 2, 3, 4, 5, 6]
    names = [f"m{i}" for i in range(6)]
    result = {
        "tasks": ["a", "b", "c"],
        "rows": {
            n: {"direct": list(-v), "tuned": list(v)} for n, v in zip(names, values, strict=True)
        },
        "facts": {n: {"kind": "base", "knowledge": i / 6} for i, n in enumerate(names)},
    }
    text = summary(result)
    assert "direct: mean tau 1.000, PC1 1.000, mean rank against knowledge -1.000" in text
    assert "tuned: mean tau 1.000, PC1 1.000, mean rank against knowledge 1.000" in text


def test_the_shipped_check_gives_the_documented_figures() -> None:
    result = json.loads((WEIGHTS / "check.json").read_text("utf-8"))
    for name, facts in result["facts"].items():
        assert facts["knowledge"] == pytest.approx(find_model(name).knowledge, abs=1e-4)
    text = summary(result, [task for task in result["tasks"] if task not in ("round", "chronicle")])
    assert "direct: mean tau 0.227, PC1 0.394, mean rank against knowledge 0.367" in text
    assert "tuned: mean tau 0.752, PC1 0.870, mean rank against knowledge 0.850" in text
