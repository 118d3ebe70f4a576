"""The door for models that are no causal language models here: encoders with a head, and bodies whose states are read.

It has the guards of ``loading``: a folder's config is looked at before anything is built of it, weights that can run
code are refused unless they were allowed, no code of a stranger's is run, and whatever a library raises on a damaged
file is an error with the model's name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.engine.models.admission import loading_error
from potentia.engine.models.foreign_files import check_model_folder, refuse_pickles
from potentia.engine.models.identity import find_weights
from potentia.errors import INTERRUPTS, ModelError, PotentiaError
from potentia.files import PICKLE, is_allowed

if TYPE_CHECKING:
    from torch import nn


def load_tokenizer(source: str) -> Any:
    """Load the tokenizer of a model."""
    from transformers import AutoTokenizer

    _check_folder(source)
    return _guard(source, lambda: AutoTokenizer.from_pretrained(source, trust_remote_code=False))


def load_text_encoder(model_class: Any, source: str, **options: Any) -> nn.Module:
    """Load a model by one of transformers' auto classes; ``options`` are those of its ``from_pretrained``."""
    _check_folder(source)
    weight_options: dict[str, Any] = {"trust_remote_code": False}
    if not is_allowed(PICKLE):
        weight_options["use_safetensors"] = True
    model: nn.Module = _guard(
        source, lambda: model_class.from_pretrained(source, **options, **weight_options)
    )
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise ModelError(f"{source}: {name} holds numbers that are not finite")
    return model


def _check_folder(source: str) -> None:
    """Refuse a folder that nothing should be built of, or whose weights can run code."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        check_model_folder(folder)
        refuse_pickles(find_weights(folder, None))


def _guard(source: str, load: Any) -> Any:
    """Return what is loaded; whatever goes wrong is told with the model's name."""
    try:
        return load()
    except (*INTERRUPTS, PotentiaError):
        raise
    except BaseException as error:  # a tokenizer's library may panic, which is no Exception
        raise loading_error(source, error) from error
