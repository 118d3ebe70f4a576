"""The stacked Llama equals transformers' own, and a stack trains its models apart from each other."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from potentia.zoo.world import BOS, make_world, vocabulary  # noqa: E402  # noqa: E402
from zoo_builder import recipe  # noqa: E402
from zoo_builder.adam import Adam  # noqa: E402
from zoo_builder.corpus import LENGTH, Sampler, make_pools  # noqa: E402
from zoo_builder.pretrain import Run, StackTraining, pretrain  # noqa: E402
from zoo_builder.stack import Shape, hidden, initial, logits, unflatten  # noqa: E402

WORDS = vocabulary()


@pytest.fixture(scope="module")
def pools():  # type: ignore[no-untyped-def]
    return make_pools(make_world(sizes=(20, 10, 20, 20)), documents=300)


@pytest.mark.parametrize("width", recipe.WIDTHS)
def test_equals_transformers(width: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = Shape(recipe.LAYERS, width, 2 * width, recipe.HEADS[width], len(WORDS))
    weights = unflatten(shape, initial(shape, [3, 4]))
    tokens = torch.randint(len(WORDS), (2, 3, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = logits(weights, hidden(shape, weights, tokens)).view(2, 3, 40, -1)
        for i in range(2):
            model = LlamaForCausalLM(LlamaConfig(**shape.config())).eval()
            missing = model.load_state_dict({n: w[i] for n, w in weights.items()}, strict=False)
            assert missing.missing_keys == ["lm_head.weight"]
            torch.testing.assert_close(ours[i], model(tokens[i]).logits, atol=1e-5, rtol=1e-5)
            assert (
                sum(p.numel() for p in model.parameters())
                == shape.parameters
                == recipe.parameters(width)
            )


def test_rows_hold_whole_documents_from_the_mix(pools) -> None:  # type: ignore[no-untyped-def]
    mixes = [{"facts": 0.5, "form:ask": 0.5}, {"pairs": 1.0}]
    tokens = Sampler(pools, mixes, "cpu", seed=0).draw(50, 64)
    assert tokens.shape == (2, 50, 64)
    words = [{WORDS[i] for i in tokens[m].flatten().tolist()} for m in range(2)]
    assert "where" in words[0]
    assert "where" not in words[1]
    assert "make" in words[1]
    assert "make" not in words[0]
    assert (tokens == 0).float().mean() < 0.05
    assert pools.lengths.max() <= LENGTH
    first = {WORDS[i] for i in tokens[:, :, 0].flatten().tolist()}
    assert BOS in first
    assert len(first) > 1  # some documents open without it


def test_a_run_stops_at_its_budget_and_keeps_its_copies(pools) -> None:  # type: ignore[no-untyped-def]
    shape = Shape(2, 16, 32, 1, len(WORDS))
    short = Run("short", {"facts": 1.0}, 2, 1, 1e-2)
    long = Run("long", {"facts": 1.0}, 6, 1, 1e-2, keep=(3,))
    stack = StackTraining(shape, [short, long], pools, "cpu", rows=4)
    pretrain([stack])
    assert sorted(short.kept) == [2]
    assert sorted(long.kept) == [3, 6]
    torch.testing.assert_close(stack.flat[0].detach(), short.kept[2])
    assert not torch.equal(long.kept[3], long.kept[6])


def test_adam_keeps_models_apart() -> None:
    flat = torch.ones(2, 3)
    adam = Adam(flat)
    adam.update(flat, torch.tensor([[1.0, -1.0, 0.0], [5.0, 5.0, 5.0]]), torch.tensor([0.1, 0.0]))
    torch.testing.assert_close(flat[0], torch.tensor([0.9, 1.1, 1.0]), atol=1e-4, rtol=0)
    assert torch.equal(flat[1], torch.ones(3))


def test_families_differ_only_in_forms() -> None:
    plans = recipe.plans()
    base = [plan for plan in plans if plan.kind == "base"]
    assert 12 <= len(base) <= 16
    assert len({plan.family for plan in base}) == 4
    for plan in base:
        mix = dict(plan.mix)
        assert sum(mix.values()) == pytest.approx(1.0)
        assert {name for name in mix if name.startswith("form:")} == {
            f"form:{f}" for f in recipe.EXPOSURE[plan.family]
        }
    for (
        width
    ) in recipe.WIDTHS:  # in every size each family has another budget, and each budget occurs once
        assert len({plan.steps for plan in base if plan.width == width}) == 4
    assert sum(plan.kind == "lab" for plan in plans) == 7
