"""The facts of models: complete, resolvable by every name, and equal to the papers' tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from potentia.errors import DataError
from potentia.facts import models

# Rows of table 4 of Train-before-Test: parameters (B), tokens (B), FLOPs (10^18).
TABLE_4 = {
    "Llama-3-8B": (8.03, 15000, 722700.0),
    "Llama-3.2-3B-IT": (3.21, 9000, 173340.0),
    "Qwen1.5-0.5B": (0.62, 2400, 8928.0),
    "Qwen1.5-14B-IT": (14.20, 4000, 340800.0),
    "Gemma-7B": (8.54, 6000, 307440.0),
    "Gemma-2-9B-IT": (9.24, 8000, 443520.0),
    "Pythia-70M": (0.07, 300, 126.0),
    "Pythia-12B": (12.0, 300, 21600.0),
    "Yi-6B-IT": (6.06, 3000, 109080.0),
    "Yi-9B": (8.83, 3800, 201324.0),
    "Yi-1.5-9B-IT": (8.83, 3600, 190728.0),
}


@pytest.mark.parametrize("name", TABLE_4)
def test_flops_are_those_of_table_4(name: str) -> None:
    facts = models().find(name)
    parameters, tokens, flops = TABLE_4[name]
    assert facts is not None
    assert facts.parameters == pytest.approx(parameters * 1e9)
    assert facts.tokens == tokens * 1e9
    assert facts.flops == pytest.approx(flops * 1e18, rel=1e-12)


def test_the_papers_models_are_all_there() -> None:
    by_source: dict[str, int] = {}
    for model in models():
        for source in model.sources:
            label = f"{source} {model.kind}" if source.startswith("test-task") else source
            by_source[label] = by_source.get(label, 0) + 1
    assert by_source["train-before-test table 2"] == 61
    assert by_source["train-before-test table 4"] == 37
    assert by_source["test-task-training appendix B.1 base"] == 56
    assert (
        by_source["test-task-training appendix B.1 instruct"] == 35
    )  # the rows that its table prints


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("google/gemma-2-2b", "google/gemma-2-2b"),
        ("gemma-2-2b", "google/gemma-2-2b"),
        ("GEMMA-2-2B", "google/gemma-2-2b"),
        ("Gemma-2-2B-IT", "google/gemma-2-2b-it"),
        ("qwen-1.5-0.5b", "Qwen/Qwen1.5-0.5B"),
        ("Qwen2.5-14B-IT", "Qwen/Qwen2.5-14B-Instruct"),
        ("llama-3-8b-instruct", "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("stablelm-2-1.6b", "stabilityai/stablelm-2-1_6b"),
        ("stabilitylm-2-1.6b", "stabilityai/stablelm-2-1_6b"),
        ("GPT2-1.5B", "openai-community/gpt2-xl"),
        ("/models/gemma-2-2b/", "google/gemma-2-2b"),
        ("pythia-70m", "EleutherAI/pythia-70m"),
        ("pythia-70m-deduped", "EleutherAI/pythia-70m-deduped"),
    ],
)
def test_every_name_finds_its_model(name: str, repository: str) -> None:
    facts = models().find(name)
    assert facts is not None
    assert facts.repository == repository


def test_another_organisation_is_another_model() -> None:
    assert models().find("someone/gemma-2-2b") is None
    assert models().find("no-such-model") is None


def test_no_name_means_two_models() -> None:
    owners: dict[str, str] = {}
    for model in models():
        for name in model.names:
            assert owners.setdefault(name.casefold(), model.name) == model.name


def test_base_models_exist_and_agree() -> None:
    table = models()
    for model in table:
        if model.kind == "instruct" and model.note != "its base model is not public":
            assert model.base_model is not None
            base = table.find(model.base_model)
            assert base is not None
            assert base.family == model.family or model.family == "vicuna"
        else:
            assert model.base_model is None
        assert model.language in ("en", "en+cn")
        assert model.parameters is not None
        assert model.size is not None


@pytest.mark.shared
def test_published_scores_name_known_models(shared_data: Path) -> None:
    table = models()
    with (shared_data / "published/train_before_test_scores.csv").open() as file:
        names = {row["model"] for row in csv.DictReader(file)}
    assert {name: table.find(name).repository for name in names} == {name: name for name in names}
    with (shared_data / "published/test_task_training_models.csv").open() as file:
        for row in csv.DictReader(file):
            facts = table.find(row["model"])
            assert facts is not None, row["model"]
            assert facts.size == pytest.approx(float(row["params_b"]) * 1e9)
            assert facts.language == row["language"]
            assert facts.tokens is not None
            if row["model"] != "gemma-2b":  # 3 T in the paper's appendix, 2 T in the file
                assert facts.tokens == pytest.approx(float(row["tokens_b"]) * 1e9, rel=0.03)


def test_a_user_adds_and_replaces_facts(tmp_path: Path) -> None:
    extra = tmp_path / "mine.csv"
    extra.write_text(
        "name,parameters_b,tokens_b,date,aliases\nhouse-1b,1.1,500,2026-01,h1;ours\ngemma-2b,2.51,2000,,\n"
    )
    table = models(extra_csv=extra)
    mine = table.find("OURS")
    assert mine is not None
    assert (mine.name, mine.flops, mine.date, mine.kind) == (
        "house-1b",
        6 * 1.1e9 * 500e9,
        "2026-01",
        "base",
    )
    assert table.find("gemma-2b").tokens == 2e12
    assert len(table) == len(models()) + 1
    assert models().find("gemma-2b").tokens == 3e12


def test_checkpoints_know_the_tokens_seen_so_far() -> None:
    table = models()
    early = table.find("EleutherAI/pythia-160m@step1000")
    assert early is not None
    assert (early.tokens, early.family, early.parameters) == (1000 * 2_097_152, "pythia", 0.16e9)
    assert table.find("EleutherAI/pythia-160m@143000").tokens == pytest.approx(300e9, rel=1e-3)
    assert table.find("google/gemma-2-2b@500").tokens is None
    assert table.find("nobody/knows@5") is None


def test_a_part_of_a_name_finds_models_and_what_lacks_is_said() -> None:
    table = models()
    assert "HuggingFaceTB/SmolLM2-135M" in [m.repository for m in table.search("smollm")]


def test_the_papers_columns_and_ones_own_are_read_too(tmp_path: Path) -> None:
    extra = tmp_path / "mine.csv"
    extra.write_text("model,params_b,tokens_b,trained,lab\na,1,300,2023-11,east\n")
    mine = models(extra).find("a")
    assert mine is not None
    assert (mine.flops, mine.date, dict(mine.extra)) == (
        6 * 1e9 * 300e9,
        "2023-11",
        {"lab": "east"},
    )
    extra.write_text("model,compute\na,3.5e21\n")
    assert models(extra).find("a").flops == 3.5e21


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("nom,parameters_b\nx,1\n", "no column names the models"),
        ("name,tokens\nx,1\n", "did you mean tokens_b"),
        ("name,model\nx,y\n", "the column name appears twice"),
        ("name,compute\nx,many\n", "line 2, column compute"),
        ("name,kind\nx,base\nx,base\n", "named twice"),
        ("name,parameters_b\nx,one\n", "line 2, column parameters_b"),
        ("name,tokens_b\nx,-1\n", "line 2, column tokens_b"),
        ("name,date\nx,July 2024\n", "line 2"),
        ("name,kind\nx,chat\n", "line 2"),
        ("name,kind\n,base\n", "line 2"),
        ("name,kind\nx,base,more\n", "line 2"),
    ],
)
def test_wrong_facts_name_their_place(tmp_path: Path, text: str, place: str) -> None:
    extra = tmp_path / "mine.csv"
    extra.write_text(text)
    with pytest.raises(DataError, match=place):
        models(extra_csv=extra)
