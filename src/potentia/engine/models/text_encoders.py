"""The door for models that are no causal language models here: encoders with a head, and bodies whose states are read.

It has the guards of ``loading``: a folder's config is looked at before anything is built of it, weights that can run
code are refused unless they were allowed, no code of a stranger's is run, and whatever a library raises on a damaged
file is an error with the model's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from potentia.engine.models.admission import loading_error
from potentia.engine.models.foreign_files import check_model_folder, refuse_pickles
from potentia.engine.models.identity import find_weights
from potentia.engine.models.loading import pick_device
from potentia.errors import INTERRUPTS, ModelError, PotentiaError
from potentia.files import PICKLE, is_allowed

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

Loaded = TypeVar("Loaded")
MOST_TOKENS = 256  # of a text
EMBEDDING_BATCH = 32


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model."""
    from transformers import AutoTokenizer

    _check_folder(source)
    tokenizer: PreTrainedTokenizerBase = _guard(
        source, lambda: AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    )
    return tokenizer


def load_text_encoder(model_class: Any, source: str, **options: Any) -> nn.Module:
    """Load a model by one of transformers' auto classes; ``options`` are those of its ``from_pretrained``."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # bars of other libraries would tear our own
    _check_folder(source)
    weight_options: dict[str, Any] = {"trust_remote_code": False}
    if not is_allowed(PICKLE):
        weight_options["use_safetensors"] = True
    model: nn.Module = _guard(
        source, lambda: model_class.from_pretrained(source, **options, **weight_options)
    )
    for parameter_name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise ModelError(f"{source}: {parameter_name} holds numbers that are not finite")
    return model


def embed_texts(source: str, texts: Sequence[str], device: str) -> np.ndarray[Any, Any]:
    """Return the mean of the last hidden states of every text, (texts, features), by a model of any kind."""
    import torch
    from transformers import AutoModel

    torch_device = pick_device(device)
    tokenizer: Any = load_tokenizer(source)
    model: Any = load_text_encoder(AutoModel, source, dtype=torch.float32).to(torch_device).eval()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    limit = min(MOST_TOKENS, int(tokenizer.model_max_length))
    parts = []
    with torch.no_grad():
        for start in range(0, len(texts), EMBEDDING_BATCH):
            batch = tokenizer(
                list(texts[start : start + EMBEDDING_BATCH]),
                padding=True,
                truncation=True,
                max_length=limit,
                return_tensors="pt",
            ).to(torch_device)
            batch.pop("token_type_ids", None)
            states = model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"].unsqueeze(-1).float()
            means = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
            parts.append(means.cpu().numpy())
    return np.asarray(np.concatenate(parts), dtype=np.float64)


def _check_folder(source: str) -> None:
    """Refuse a folder that nothing should be built of, or whose weights can run code."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        check_model_folder(folder)
        refuse_pickles(find_weights(folder, None))


def _guard(source: str, load: Callable[[], Loaded]) -> Loaded:
    """Return what is loaded; whatever goes wrong is told with the model's name."""
    try:
        return load()
    except (*INTERRUPTS, PotentiaError):
        raise
    except BaseException as error:  # a tokenizer's library may panic, which is no Exception
        raise loading_error(source, error) from error
