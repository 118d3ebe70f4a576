"""Tiny configurations: every size of an architecture's own default config made small, by the names sizes go by.

A case is an architecture, or a variant of one whose config switches another computation on (``falcon+alibi``). What
the generic sizes do not fit is listed by architecture below, and what is no text-only causal model with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

WORDS = 400
POSITIONS = 96
WINDOW = 16

CORPUS = [
    "Question: Which gas do plants take in from the air? Answer: carbon dioxide. Oxygen is what they give back.",
    "Sarah was a much better surgeon than Maria so she always got the easier cases. Passage: the river is long.",
    "def add(a, b):\n    return a + b\n\n# 12 + 30 = 42 and 7 * 6 = 42; yes no true false A B C D",
    "Der Fluß ist breit; l'été est chaud; 東京は大きい。 Ελλάδα — naïve façade… 🙂🙃",
]

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": POSITIONS,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "state_size": 8,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_expand": 2,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "ssm_state_size": 8,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "sliding_window": WINDOW,
    "attention_chunk_size": WINDOW,
    "decoder_layers": 2,
    "decoder_ffn_dim": 48,
    "decoder_attention_heads": 4,
    "encoder_layers": 2,
    "encoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "ffn_dim": 48,
    "dff": 48,
    "vocab_size_per_layer_input": WORDS,
    "hidden_size_per_layer_input": 8,
}

BERT = {"is_decoder": True}
ZAMBA = {
    "num_hidden_layers": 6,
    "layers_block_type": ["mamba", "hybrid", "mamba", "mamba", "hybrid", "mamba"],
}
# the last layers read the keys and values that the last layers of their kind before them made
SHARED_KEYS_AND_VALUES = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
}
WITHOUT_POSITIONS = {  # one layer with rotary positions in chunks, one without positions over all
    "layer_types": ["chunked_attention", "full_attention"],
    "no_rope_layers": [1, 0],
}

OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "bert": BERT,
    "big_bird": BERT | {"attention_type": "original_full"},
    "bert-generation": BERT,
    "camembert": BERT,
    "codegen": {"rotary_dim": 4},
    "cpmant": {
        "dim_head": 8,
        "dim_ff": 48,
        "position_bias_num_buckets": 32,
        "position_bias_max_distance": 64,
    },
    "data2vec-text": BERT,
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "electra": BERT | {"embedding_size": 32},
    "ernie": BERT,
    "falcon": {"head_dim": None},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": SHARED_KEYS_AND_VALUES
    | {"laurel_rank": 8, "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0]},
    "gemma4": SHARED_KEYS_AND_VALUES,
    "gemma4_text": SHARED_KEYS_AND_VALUES,
    "gemma4_unified_text": SHARED_KEYS_AND_VALUES,
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "gpt_neo": {
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
        "num_layers": 2,
        "num_heads": 4,
    },
    "gptj": {"rotary_dim": 4},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4": WITHOUT_POSITIONS,
    "llama4_text": WITHOUT_POSITIONS,
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 16},
    "megatron-bert": BERT,
    "ministral": {"head_dim": 8},
    "nemotron_h": {"n_groups": 1, "chunk_size": 16},
    "nemotron": {"num_key_value_heads": 2},
    "rembert": BERT | {"input_embedding_size": 32, "output_embedding_size": 32},
    "roberta": BERT,
    "roberta-prelayernorm": BERT,
    "roc_bert": BERT | {"pronunciation_vocab_size": 20, "shape_vocab_size": 20},
    "roformer": BERT | {"embedding_size": 32},
    "xlm": {"causal": True, "emb_dim": 32},
    "xlm-roberta": BERT,
    "xlm-roberta-xl": BERT,
    "xlstm": {
        "hidden_size": 128,
        "embedding_dim": 128,
        "v_head_dim": None,
        "num_heads": 4,
        "chunk_size": 16,
    },
    "xmod": BERT | {"default_language": "en_XX", "languages": ["en_XX"]},
    "zamba": ZAMBA,
    "zamba2": ZAMBA,
    "zaya": {"num_experts_per_tok": 1},
}

# Models of pictures and text, whose text is what we read: the tower is made small too.
TOWERS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    },
    "gemma4": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "position_embedding_size": 64,
    },
    "llama4": {
        "hidden_size": 16,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vision_output_dim": 16,
        "projector_input_dim": 16,
        "projector_output_dim": 16,
    },
    "qwen3_5": {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "out_hidden_size": 32,
    },
    "qwen3_5_moe": {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "out_hidden_size": 32,
    },
}

# Settings that switch another computation on.
VARIANTS: dict[str, dict[str, Any]] = {
    "doge+moe": {"is_moe": True},
    "falcon+alibi": {"alibi": True},
    "falcon+new": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon_h1+norm": {"mamba_rms_norm": True},
    "gemma4_text+dense": {
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "global_head_dim": 16,
    },
    "gemma4_text+moe": {
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 24,
        "num_kv_shared_layers": 0,
    },
    "gpt_neo+256": {"window_size": 256, "max_position_embeddings": 320},
    "granite+factors": {
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.5,
        "embedding_multiplier": 2.0,
    },
    "llama+bias": {"attention_bias": True, "mlp_bias": True},
    "llama+yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
    "mpt+noalibi": {"attn_config": {"alibi": False}},
    "olmo+clip": {"clip_qkv": 0.3},
    "opt+projected": {"word_embed_proj_dim": 16},
    "opt+dropout": {"dropout": 0.5, "attention_dropout": 0.5},
    "phi3+longrope": {
        "original_max_position_embeddings": 24,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 3.0, 4.0, 5.0],
            "original_max_position_embeddings": 24,
        },
    },
    "qwen2+window": {"use_sliding_window": True, "max_window_layers": 1},
    "smollm3+nope": {"no_rope_layers": [1, 0]},
    "stablelm+parallel": {"use_parallel_residual": True, "qk_layernorm": True},
}

SKIPPED: dict[str, str] = {
    "blt": "reads bytes in patches that another model cuts",
    "cohere_compass_text": "its default config does not build",
    "dbrx": "its modules do not fit its config in this version",
    "dots3_note": "its towers have no small form",
    "dots3_note_text": "its layers have sizes of their own, which have no small form",
    "emu3": "writes pictures as tokens",
    "fuyu": "needs pictures",
    "gemma3n": "needs the package timm",
    "gemma4_assistant": "drafts for another model",
    "gemma4_unified": "its towers have no small form",
    "gemma4_unified_assistant": "drafts for another model",
    "git": "needs pictures",
    "got_ocr2": "needs pictures",
    "mllama": "needs pictures",
    "moshi": "needs sound",
    "moss_transcribe_diarize": "needs sound",
    "musicgen": "needs sound",
    "musicgen_melody": "needs sound",
    "phi4_multimodal": "needs pictures and sound",
    "prophetnet": "predicts several tokens at once from two streams",
    "qwen4_exp": "its default config does not build",
    "qwen4_exp_text": "its default config does not build",
    "reformer": "hashes at random",
    "whisper": "needs sound",
    "xlnet": "reads in permuted order",
}


def cases() -> list[str]:
    """Name every case: the architectures of the library that are not skipped, and the variants."""
    return sorted(
        [*(kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if kind not in SKIPPED), *VARIANTS]
    )


def config(case: str) -> Any:
    """Make the tiny configuration of a case."""
    kind = case.partition("+")[0]
    config_class: Callable[..., Any] = CONFIG_MAPPING[kind]
    special = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    if kind in TOWERS:
        text = _fit(config_class().text_config) | special | OWN.get(kind, {})
        return config_class(
            text_config=text,
            vision_config=TOWERS[kind],
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
        )
    overrides = OWN.get(kind, {}) | VARIANTS.get(case, {})
    settings = _fit(config_class()) | overrides
    if "layers_block_type" in overrides:
        settings.pop("layer_types", None)
    return config_class(
        **special, **{name: value for name, value in settings.items() if value is not None}
    )


def _fit(default: Any) -> dict[str, Any]:
    """Choose small values for every size that a default config has."""
    small_settings = {
        name: size
        for name, size in SIZES.items()
        if _value(default, name) is not None and _free(default, name)
    }
    if "kv_lora_rank" in small_settings and "num_key_value_heads" in small_settings:
        small_settings["num_key_value_heads"] = small_settings["num_attention_heads"]
    kinds = list(dict.fromkeys(_value(default, "layer_types") or ()))
    if kinds and _free(default, "layer_types"):  # one layer of each kind, and two at least
        layers = max(2, len(kinds))
        small_settings |= {"layer_types": (kinds * 2)[:layers], "num_hidden_layers": layers}
    dense = list(dict.fromkeys(_value(default, "mlp_layer_types") or ()))
    if dense and _free(default, "mlp_layer_types"):
        small_settings["mlp_layer_types"] = (dense * 4)[: small_settings["num_hidden_layers"]]
    return small_settings


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # a size that varies over layers and is asked for as one
        return None


def _free(config: Any, name: str) -> bool:
    own_value = getattr(type(config), type(config).attribute_map.get(name, name), None)
    return not (isinstance(own_value, property) and own_value.fset is None)


def build(case: str, seed: int = 0) -> nn.Module:
    """Make a model of this case with random weights large enough to tell right from wrong."""
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(seed)
    model: nn.Module = AutoModelForCausalLM.from_config(config(case), dtype=torch.float32)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | Conv1D):
                module.weight.normal_(0, 0.2)
                if isinstance(module.bias, torch.Tensor):
                    module.bias.normal_(0, 0.1)
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(0, 0.6)
            else:
                for name, weight in module.named_parameters(recurse=False):
                    if weight.dim() == 3 or (
                        weight.dim() == 2 and name == "weight"
                    ):  # stacked experts, routers
                        weight.normal_(0, 0.2)
    return model.eval()


@cache
def words(*, adds_bos: bool = False) -> PreTrainedTokenizerFast:
    """Make a byte-level BPE tokenizer trained on the spot."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=["<bos>", "<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(CORPUS * 4, trainer)
    if adds_bos:
        start = raw.token_to_id("<bos>")
        raw.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", start)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
