"""The architecture matrix tries a case whole, tells wrong from right, and its page is about this transformers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from architectures import score, tune
from architectures.page import FORMS_MARK, replace_matrix, write_matrix
from architectures.run import PAGE
from architectures.tiny import SKIPPED, build, cases, config, words
from architectures.trial import try_case
from potentia.engine import LoadedModel
from potentia.engine.scoring import Scorer


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    return try_case("gpt2")


def test_a_case_is_tried_whole(row: dict[str, Any]) -> None:
    assert row["verdict"] == "exact", row
    assert (row["paths"], row["writing"], row["written"]) == ("plain+tree", "fast", row["asked"])
    assert row["choice"] < 2e-4  # 0 where a processor rounds both alike
    assert 0 < row["all-linear"]["plain"] < tune.EXACT_ADAPTER
    assert "| gpt2 | GPT2LMHeadModel | fast |" in write_matrix([row])


def test_scores_that_are_off_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Scorer.loglikelihood
    shifted = lambda *given: [replace(one, logprob=one.logprob + 0.01) for one in original(*given)]  # noqa: E731
    monkeypatch.setattr(Scorer, "loglikelihood", shifted)
    comparison = score.compare(LoadedModel.of(build("gpt2"), words()))
    assert comparison.choice == pytest.approx(0.01, rel=0.05)
    assert comparison.rolling < 2e-4


def test_what_is_wrong_is_said(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = row | {"case": "other", "verdict": "WRONG"}
    page = write_matrix([row, wrong])
    assert "2 cases, 1 exact, 0 refused, 1 wrong, 0 crashed" in page
    assert "| other | GPT2LMHeadModel | fast **WRONG** |" in page
    monkeypatch.setattr("architectures.trial.tune.EXACT_ADAPTER", 0.0)
    assert not tune.Tuning("", 1, 1e-9, 0.0, 0.0, 1.0).exact
    assert not tune.Tuning(
        "", 1, 0.0, 0.0, 0.0, 0.0
    ).exact  # an adapter that does nothing proves nothing


def test_what_was_left_out_is_named(row: dict[str, Any]) -> None:
    page = write_matrix([row])
    assert len({case.partition("+")[0] for case in cases()}) >= 70
    assert all(f"**{kind}**: {reason}" in page for kind, reason in SKIPPED.items())
    assert "not in this run" in page


def test_a_run_changes_its_own_section_of_the_page_alone(row: dict[str, Any]) -> None:
    """Found before: the text around the results had a copy in the tool, which a run put in the place of a newer one."""
    page = Path(PAGE).read_text("utf-8")
    head = page.partition("## The matrix in float32")[0]
    forms = page.partition(FORMS_MARK)[2]
    renewed = replace_matrix(page, write_matrix([row]))
    assert renewed.startswith(head)
    assert renewed.endswith(FORMS_MARK + forms)
    assert "1 cases, 1 exact" in renewed
    assert "| llama | LlamaForCausalLM |" in page
    assert "| llama | LlamaForCausalLM |" not in renewed
    assert replace_matrix(renewed, write_matrix([row])) == renewed


def test_the_page_shows_no_wrong_case() -> None:
    page = Path(PAGE).read_text("utf-8")
    match = re.search(r"(\d+) cases, (\d+) exact, (\d+) refused, 0 wrong, 0 crashed", page)
    assert match is not None
    assert int(match[2]) >= 70


def text_config(case: str) -> Any:
    made = config(case)
    return getattr(made, "text_config", None) or made


@pytest.mark.parametrize("case", ["lfm2", "lfm2_moe"])
def test_lfm2_has_convolutions_and_attention(case: str) -> None:
    assert {"conv", "full_attention"} == set(text_config(case).layer_types)


@pytest.mark.parametrize("case", ["gemma3n_text", "gemma4", "gemma4_text", "gemma4_unified_text"])
def test_gemma_shares_keys_and_values(case: str) -> None:
    made = text_config(case)
    assert 0 < made.num_kv_shared_layers < made.num_hidden_layers
    own = made.num_hidden_layers - made.num_kv_shared_layers
    assert set(made.layer_types[:own]) == {"sliding_attention", "full_attention"}
    assert set(made.layer_types[own:]) == {"sliding_attention", "full_attention"}


@pytest.mark.parametrize("case", ["llama4", "llama4_text"])
def test_llama4_has_layers_without_positions(case: str) -> None:
    made = text_config(case)
    assert sorted(made.no_rope_layers) == [0, 1]
    assert made.no_rope_layers[made.layer_types.index("full_attention")] == 0
