"""A model that says nothing is refused: predictions without spread, blind to the text, or of unknown words alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tiny as tiny_files
from potentia.engine import LoadedModel, load
from potentia.engine.models.admission import check_predictions
from potentia.engine.scoring import Scorer
from potentia.errors import ModelError
from potentia.values.requests import Continuation, Document, Generation
from scoring_models import ARCHITECTURES, tiny


def save_changed(folder: Path, change: Callable[[torch.Tensor], None], dtype: torch.dtype) -> str:
    tiny_model = tiny("llama")
    tiny_model.model.to(dtype)
    with torch.no_grad():
        for weight in tiny_model.model.parameters():
            change(weight)
    tiny_model.model.save_pretrained(folder)
    tiny_model.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        (lambda weight: weight.mul_(1e20), "bfloat16"),
        (lambda weight: weight.zero_(), "float32"),
        (lambda weight: weight.zero_(), "bfloat16"),
    ],
)
def test_predictions_without_spread_are_refused(
    tmp_path: Path, change: Callable[[torch.Tensor], None], dtype: str
) -> None:
    folder = save_changed(tmp_path, change, getattr(torch, dtype))
    with pytest.raises(ModelError, match="the same probability to every token"):
        load(folder, device="cpu", dtype=dtype)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_models_that_do_not_read_the_text_are_refused(kind: str) -> None:
    loaded = tiny(kind)
    check_predictions(loaded.model, loaded.tokenizer)
    head = loaded.model.get_output_embeddings()
    constant = torch.randn(head.weight.shape[0])
    head.register_forward_hook(lambda module, inputs, output: output * 0 + constant)
    with pytest.raises(ModelError, match="do not depend on the text"):
        check_predictions(loaded.model, loaded.tokenizer)


def test_an_infinite_prediction_is_refused() -> None:
    loaded = tiny("llama")
    loaded.model.lm_head.register_forward_hook(
        lambda module, inputs, output: output.index_fill(-1, torch.tensor([3]), torch.inf)
    )
    with pytest.raises(ModelError, match="not numbers"):
        check_predictions(loaded.model, loaded.tokenizer)


def test_tokens_that_are_ruled_out_are_no_fault() -> None:
    loaded = tiny("llama")
    loaded.model.lm_head.register_forward_hook(
        lambda module, inputs, output: output.index_fill(-1, torch.tensor([3]), -torch.inf)
    )
    check_predictions(loaded.model, loaded.tokenizer)


def test_a_tokenizer_that_does_not_know_its_own_words_is_refused(tmp_path: Path) -> None:
    from tokenizers import normalizers

    tiny_files.save_model(tmp_path)
    loaded = load(str(tmp_path), device="cpu")
    loaded.tokenizer.backend_tokenizer.normalizer = normalizers.Prepend("broken")
    loaded.tokenizer.backend_tokenizer.pre_tokenizer = None
    with pytest.raises(ModelError, match="tokenizer knows no word"):
        check_predictions(loaded.model, loaded.tokenizer)


UNKNOWN = [Continuation("zwei Äpfel im Korb", f" Antwort {k}") for k in range(8)]


@pytest.fixture
def word_model(tmp_path: Path) -> LoadedModel:
    tiny_files.save_model(tmp_path)
    return load(str(tmp_path), device="cpu")


def test_requests_of_unknown_words_are_refused(word_model: LoadedModel) -> None:
    scorer = Scorer(word_model)
    known = [Continuation("the cat is in the old house", " red"), *UNKNOWN[:1]]
    assert len(scorer.loglikelihood(known)) == 2
    with pytest.raises(ModelError, match="tokenizer knows hardly any of the words"):
        scorer.loglikelihood(UNKNOWN)
    with pytest.raises(ModelError, match="tokenizer knows hardly any of the words"):
        scorer.rolling([Document(request.context * 8) for request in UNKNOWN])
    with pytest.raises(ModelError, match="tokenizer knows hardly any of the words"):
        scorer.generate([Generation(request.context * 8, max_tokens=2) for request in UNKNOWN])
