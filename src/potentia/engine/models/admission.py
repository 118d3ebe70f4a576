"""What is refused at the door: weights that do not fit, models that are not causal, predictions that say nothing.

A weight that the files do not hold is filled at random by the library, and the model would be scored all the same.

A model that reads ahead gives likelihoods that mean nothing, and so does one whose weights are damaged; both would
look like scores. Found by trying: the predictions for the beginning of a text must not change with what follows it.
Both texts have one length, so that the same kernels round them alike: in bfloat16, lengths alone move logits.

Damaged weights need not give NaN. Weights that are all zero, or so large that a norm overflows, give every token the
same probability; every choice of a question then ties, and the first one is counted as the answer. So predictions must
differ between tokens and between texts, and a tokenizer must know some words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import ModelError
from potentia.files import MISSING_WEIGHTS, is_allowed, read_json
from potentia.values.engine_records import LoadedWeights, LoadRecord

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from potentia.engine.models.tokenization import Ids


TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps."
PROBE_TOKENS = 12  # of it that are read
FEWEST_PROBE_TOKENS = 4
PLAIN_TEXTS = (
    TEXT,
    "1 2 3 + 4 = 7",
    "a b c d e A B C D E",
    "A C G T M K V L",
    "Съешь ещё этих мягких французских булок",
    "東京は大きい。 今天天气很好",
    "السلام عليكم",
    "नमस्ते दुनिया",
)
OWN_WORDS = 64  # of a tokenizer's vocabulary that are read by it
SAME_PREDICTION = 1e-6  # logits that differ by so small a share of the largest one are equal
LONGEST_REASON = 300
NOTICEABLE = {"float32": 1e-3, "float64": 1e-3}  # of the logits' spread
NOTICEABLE_HALF = 0.05
# computed from the config whatever the files say: angles, masks, positions
HARMLESS = re.compile(
    r"(^|\.)(inv_freq|rope_freqs(\.weight)?|position_ids|(attn|attention)\.(masked_)?bias)$"
)
LARGEST_FACTS = 64 * 2**20  # bytes: a tokenizer config may list every added token
NAMED = 3  # tensors shown of each kind
RECORDED = 20  # tensors of each kind in the record


def check_predictions(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a model that reads ahead, computes no numbers, or says nothing about the text."""
    import torch

    check_known_words(tokenizer)
    token_ids = _probe_ids(model, tokenizer)
    kept_length = len(token_ids) // 2
    changed_ids = [*token_ids[:kept_length], *([token_ids[0]] * (len(token_ids) - kept_length))]
    weight = next(model.parameters())
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = _read_logits(model, token_ids)
            changed_logits = _read_logits(model, changed_ids)
    finally:
        model.train(was_training)
    if bool(torch.log_softmax(logits, dim=-1).isnan().any()):
        raise not_a_number_error("on a plain sentence")
    largest_logit = float(_select_finite(logits).abs().max())
    rounding = SAME_PREDICTION * max(1.0, largest_logit)
    if _largest_spread(logits) <= rounding:
        raise ModelError(
            "the model gives the same probability to every token: its predictions say nothing",
            hint="its weights may be damaged, all zero, or too large for this dtype: try dtype: float32",
        )
    if token_ids != changed_ids and _largest_difference(logits[-1], changed_logits[-1]) <= rounding:
        raise ModelError(
            "the model's predictions do not depend on the text: they are the same after two sentences",
            hint="its weights may be damaged, or too large for this dtype: try dtype: float32",
        )
    dtype_name = str(weight.dtype).removeprefix("torch.")
    tolerance = NOTICEABLE.get(dtype_name, NOTICEABLE_HALF)
    spread = float(_select_finite(logits[:kept_length]).std())
    moved = _largest_difference(logits[:kept_length], changed_logits[:kept_length])
    if moved > tolerance * max(spread, 1e-6):
        raise ModelError(
            f"{type(model).__name__} reads ahead: its prediction of a token changes with what follows it",
            hint="scoring needs a causal model; a BERT-type model is one with is_decoder: true in its config.json",
        )


def _probe_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Ids:
    """Return the tokens of a plain sentence, or made-up ones where the tokenizer has few for it."""
    token_ids: Ids = list(tokenizer(TEXT)["input_ids"])[:PROBE_TOKENS]
    if len(token_ids) >= FEWEST_PROBE_TOKENS:
        return token_ids
    embedding: Tensor = model.get_input_embeddings().get_parameter("weight")
    vocabulary_size = embedding.shape[0]
    return [token % vocabulary_size for token in range(PROBE_TOKENS)]


def _read_logits(model: PreTrainedModel, token_ids: Ids) -> Tensor:
    """Return the logits after every token of a text, in float32."""
    import torch

    device = next(model.parameters()).device
    output = model(input_ids=torch.tensor([token_ids], device=device), use_cache=False)
    logits: Tensor = output.logits[0].float()
    return logits


def _select_finite(logits: Tensor) -> Tensor:
    """Return the logits that are finite: some models rule tokens out by minus infinity."""
    return logits[logits.isfinite()]


def _largest_spread(logits: Tensor) -> float:
    """Return the largest distance between two tokens' logits at one position."""
    import torch

    highest = torch.where(logits.isfinite(), logits, -torch.inf).amax(dim=-1)
    lowest = torch.where(logits.isfinite(), logits, torch.inf).amin(dim=-1)
    return float((highest - lowest).max())


def _largest_difference(logits: Tensor, other_logits: Tensor) -> float:
    """Return the largest difference of two predictions, tokens that are ruled out aside."""
    difference = (logits - other_logits).abs()
    return float(_select_finite(difference).max())


def check_known_words(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that reads both plain texts and the words of its own vocabulary as unknown."""
    unknown_id = getattr(tokenizer, "unk_token_id", None)
    if unknown_id is None:
        return
    special_ids = set(tokenizer.all_special_ids)
    vocabulary_ids = tokenizer.get_vocab().values()
    own_ids = [token for token in sorted(vocabulary_ids) if token not in special_ids]
    own_words = [str(tokenizer.decode([token])) for token in own_ids[:OWN_WORDS]]
    for text in (*PLAIN_TEXTS, *own_words):
        token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if any(token != unknown_id for token in token_ids):
            return
    raise ModelError(
        "the model's tokenizer knows no word: every text becomes unknown tokens",
        hint="its tokenizer files may be another model's, or damaged: repair tokenizer.json",
    )


def unknown_words_error(unknown_tokens: int, tokens: int) -> ModelError:
    """Make the error for texts of which a tokenizer knows next to nothing."""
    return ModelError(
        "the model's tokenizer knows hardly any of the words of these texts: "
        f"{unknown_tokens:,} of {tokens:,} tokens are unknown to it",
        hint="its tokenizer files may be another model's, or damaged, or the task is in another language",
    )


def check_loaded_weights(source: str, loading_info: dict[str, Any]) -> LoadRecord:
    """Refuse weights that do not fit the model, or, where that was allowed, record what did not fit.

    ``loading_info`` is what transformers says of it, without tied heads and what the architecture says is derived.
    """
    misfits = {
        "missing": _list_harmful(loading_info["missing_keys"]),
        "unexpected": _list_harmful(loading_info["unexpected_keys"]),
        "mismatched": sorted(
            f"{parameter_name} {tuple(file_shape)} for {tuple(model_shape)}"
            for parameter_name, file_shape, model_shape in loading_info["mismatched_keys"]
        ),
    }
    names_by_kind = {kind: names for kind, names in misfits.items() if names}
    if not names_by_kind:
        return LoadRecord(weights=LoadedWeights.IN_PLACE)
    if not is_allowed(MISSING_WEIGHTS):
        parts = [
            f"{len(names)} {kind} ({_format_names(names)})" for kind, names in names_by_kind.items()
        ]
        cause = _explain_misfits(
            missing=misfits["missing"],
            unexpected=misfits["unexpected"],
            mismatched=misfits["mismatched"],
        )
        raise ModelError(
            f"the weights of {source} do not fit its config: {', '.join(parts)}; {cause}",
            hint="repair its files; or, to score it with what is missing filled at random, --allow missing-weights",
        )
    return LoadRecord(
        weights=LoadedWeights.PARTLY_RANDOM,
        misfits={kind: len(names) for kind, names in names_by_kind.items()},
        misfit_names={kind: tuple(names[:RECORDED]) for kind, names in names_by_kind.items()},
    )


def _list_harmful(names: Iterable[str]) -> list[str]:
    """Return the sorted names of tensors that matter to a score."""
    return sorted(parameter_name for parameter_name in names if not HARMLESS.search(parameter_name))


def _format_names(names: Sequence[str]) -> str:
    """Return the first names as text, with dots where there are more."""
    text = ", ".join(names[:NAMED])
    if len(names) > NAMED:
        text += ", …"
    return text


def _explain_misfits(
    *, missing: Sequence[str], unexpected: Sequence[str], mismatched: Sequence[str]
) -> str:
    """Say what is likely wrong with files whose tensors have other names or shapes."""
    for model_name in missing:
        for file_name in unexpected:
            explanation = _explain_prefix(model_name, file_name)
            if explanation is not None:
                return explanation
    if mismatched:
        return "the config is another size's"
    if unexpected and not missing:
        return "the files hold parts that this architecture does not have, or more layers than the config says"
    return "a file is incomplete, or a shard is missing"


def _explain_prefix(model_name: str, file_name: str) -> str | None:
    """Say which prefix a tensor's name in the file has too much or too little; None where neither explains it.

    Any trace of torch.compile in the name counts.
    """
    if file_name.endswith("." + model_name):
        prefix = file_name.removesuffix(model_name)
        explanation = f"its tensors carry the prefix {prefix}"
        if "_orig_mod." in prefix:
            explanation += " (saved through torch.compile)"
        return explanation
    if model_name.endswith("." + file_name):
        return f"its tensors lack the prefix {model_name.removesuffix(file_name)}"
    if "_orig_mod." in file_name:
        return "its tensors' names contain _orig_mod. (saved through torch.compile)"
    return None


def refuse_encoder_decoder(config: PreTrainedConfig) -> None:
    """Refuse a model that reads one text and writes another."""
    if not getattr(config, "is_encoder_decoder", False):
        return
    architectures = getattr(config, "architectures", None) or [type(config).__name__]
    raise ModelError(
        f"{architectures[0]} is an encoder-decoder model: it reads one text and writes another",
        hint="give a causal (decoder-only) language model instead",
    )


def loading_error(source: str, error: BaseException) -> ModelError:
    """Say in two lines why a model cannot be loaded, whatever its library said."""
    text = " ".join(str(error).split())
    if "Unrecognized configuration class" in text:
        config_path = text.partition("configuration_")[2].partition("'")[0]
        config_class = config_path.rpartition(".")[2] or "its config"
        return ModelError(
            f"cannot load {source}: {config_class} belongs to no causal language model",
            hint="encoder-decoder models, encoders and classifiers cannot be scored: give a decoder-only model",
        )
    if len(text) > LONGEST_REASON:
        text = text[:LONGEST_REASON] + " …"
    return ModelError(
        f"cannot load {source}: {text}",
        hint="give a Hub name, a folder with config.json and safetensors, or a .gguf file",
    )


def not_a_number_error(location: str) -> ModelError:
    """Make the error for a model whose predictions are not numbers."""
    return ModelError(
        f"the model's predictions are not numbers (NaN) {location}",
        hint="its weights may be damaged, or too large for this dtype: try dtype: float32",
    )


def read_json_object(json_file: Path) -> dict[str, object]:
    """Return the object in a JSON file; an empty one where the file holds none or cannot be read."""
    try:
        content = read_json(json_file, LARGEST_FACTS)
    except (OSError, ValueError):
        return {}
    if isinstance(content, dict):
        return content
    return {}
