"""Families by names: relatives are grouped, and names that say nothing group nobody."""

from __future__ import annotations

import pytest

from potentia.facts import Background
from potentia.facts.model_families import find_families_by_name, split_model_name


def group_by_name(*models: str) -> set[frozenset[str]]:
    """Return the groups of several models that the names suggest."""
    families = find_families_by_name(models, ["another"], ["llama", "qwen", "mistral", "deepseek"])
    groups: dict[str, set[str]] = {}
    for model, family in families.items():
        groups.setdefault(family, set()).add(model)
    return {frozenset(group) for group in groups.values() if len(group) > 1}


def test_sizes_versions_and_words_of_tuning_are_no_part_of_a_family() -> None:
    acme = (
        "acme-7b",
        "org/acme-13b-chat",
        "Acme2-7B-v0.2-DPO",
        "acme_1.5b@step2000",
        "acme-7b-Q4_K_M.gguf",
    )
    assert group_by_name(*acme, "bravo-7b", "coda-7b-chat") == {frozenset(acme)}


def test_a_name_that_names_a_known_family_is_of_it() -> None:
    families = find_families_by_name(
        ["OpenHermes-2.5-Mistral-7B", "DeepSeek-R1-Distill-Qwen-7B", "my_llama3.1-8b"],
        [],
        ["llama", "qwen", "mistral", "deepseek"],
    )
    assert list(families.values()) == ["mistral", "qwen", "llama"]


def test_a_family_of_several_words_is_found_in_names() -> None:
    """GPT-Neo and GPT-NeoX are two families: both their names begin with gpt."""
    known_families = ["gpt-neo", "gpt-neox", "map-neo", "gpt", "gpt2", "neo"]
    family_by_model = {
        "EleutherAI/gpt-neo-125m-sft": "gpt-neo",
        "gpt_neox_20b-chat": "gpt-neox",
        "GPT-NeoX2-20B": "gpt-neox",
        "map-neo-7b-it": "map-neo",
        "gpt-neo-distill-map-neo": "map-neo",
        "my-gpt2-xl": "gpt2",
        "neo-7b": "neo",
    }
    assert find_families_by_name(list(family_by_model), [], known_families) == family_by_model


def test_a_family_that_is_only_in_part_in_a_name_is_not_the_models() -> None:
    known_families = ["gpt-neo", "acme-base", "模型-a", "-"]
    assert find_families_by_name(["neo-7b", "acme-7b", "a-13b"], ["x"], known_families) == {}


@pytest.mark.parametrize(
    "models",
    [
        ("m0", "m1", "m2"),
        ("model-a", "model-b", "model-c"),
        ("A", "B", "C"),
        ("7b", "13b-chat", "70b-instruct"),
        ("run-1", "run-2", "exp-3"),
        ("acme-7b", "bravo-7b", "coda-7b"),
    ],
)
def test_names_that_say_nothing_group_nobody(models: tuple[str, ...]) -> None:
    assert group_by_name(*models) == set()


def test_a_word_that_all_models_share_tells_none_apart() -> None:
    assert find_families_by_name(["shop-a", "shop-b", "shop-c"], [], []) == {}
    assert len(find_families_by_name(["shop-a", "shop-b"], ["other"], [])) == 2


def test_facts_come_before_names(tmp_path) -> None:
    from potentia.facts import models

    facts = tmp_path / "facts.csv"
    facts.write_text("name,family\nacme-7b,built\nacme-13b,bought\n")
    background = Background.of(
        ["acme-7b", "acme-13b", "acme-30b", "acme-70b", "zed"], table=models(facts)
    )
    assert background.families["acme-7b"] == "built"
    assert background.families["acme-13b"] == "bought"
    assert background.families["acme-30b"] == background.families["acme-70b"] == "acme"
    assert "zed" not in background.families
    assert background.named_families == {"acme-30b", "acme-70b"}


def test_words_of_a_name() -> None:
    assert split_model_name("meta-llama/Llama-3.1-8B-Instruct") == ["llama"]
    assert split_model_name("gpt2-xl") == ["gpt2", "gpt"]
