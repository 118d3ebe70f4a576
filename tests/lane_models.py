"""Tiny random models and examples for the tests of tuning."""

from __future__ import annotations

import numpy as np
import torch

from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.row_layout import Bucket, PackedInputs, PackedRows
from potentia.engine.proof.form_trial import TrialSettings
from potentia.engine.proof.training_check import TrainingFormCheck, choose_training_form
from potentia.engine.training import LaneSpec, LoraConfig, Schedule, TokenisedExamples

VOCAB = 96


# wider heads in layers without a window, which is every third
GEMMA4_SIZES = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
GEMMA4_KINDS = {
    "gemma4": {"hidden_size_per_layer_input": 0},
    "gemma4_one_key": {  # keys are values in layers without a window, and there is one for all queries
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    },
    "gemma4_inputs": {"hidden_size_per_layer_input": 8},
    "gemma4_shared": {  # the last layers read the keys and values of earlier ones
        "hidden_size_per_layer_input": 8,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
    },
}


def tiny(kind: str, seed: int = 0, vocabulary: int = VOCAB) -> torch.nn.Module:
    import transformers as tf

    torch.manual_seed(seed)
    common = {"vocab_size": vocabulary, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    if kind == "llama":
        config = tf.LlamaConfig(
            **common, **sizes, num_key_value_heads=2, max_position_embeddings=128
        )
    elif kind == "gpt2":
        config = tf.GPT2Config(
            **common,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        )
    elif kind == "neox":
        config = tf.GPTNeoXConfig(**common, **sizes, max_position_embeddings=128)
    elif kind == "gemma2":
        config = tf.Gemma2Config(
            **common, **sizes, num_key_value_heads=2, head_dim=8, final_logit_softcapping=3.0
        )
    elif kind == "gemma3":
        config = tf.Gemma3TextConfig(
            **common,
            **sizes,
            num_key_value_heads=2,
            head_dim=8,
            sliding_window=9,
            query_pre_attn_scalar=8,
        )
    elif kind == "opt":
        config = tf.OPTConfig(
            **common,
            hidden_size=32,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            word_embed_proj_dim=16,
        )
    elif kind == "mistral":
        config = tf.MistralConfig(**common, **sizes, num_key_value_heads=2, sliding_window=9)
    elif kind == "olmo2":
        config = tf.Olmo2Config(**common, **sizes, num_key_value_heads=2, pad_token_id=0)
    elif kind == "olmo3":  # norms after branches alone, a window in three layers of four
        deep = sizes | {"num_hidden_layers": 4}
        config = tf.Olmo3Config(**common, **deep, num_key_value_heads=2, sliding_window=9)
    elif kind == "smollm3":  # every fourth layer does not rotate
        deep = sizes | {"num_hidden_layers": 4}
        config = tf.SmolLM3Config(**common, **deep, num_key_value_heads=2, pad_token_id=0)
    elif kind == "phi3":  # fused projections, and half of each head rotates
        rotation = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
        config = tf.Phi3Config(
            **common,
            **sizes,
            num_key_value_heads=2,
            pad_token_id=0,
            rope_parameters=rotation,
            sliding_window=9,
        )
    elif kind == "lfm2":  # a convolution in every other layer
        config = tf.Lfm2Config(
            **common,
            **sizes,
            num_key_value_heads=2,
            layer_types=["conv", "full_attention"],
            block_auto_adjust_ff_dim=False,
        )
    elif kind == "qwen3_5":  # gated delta rules in three layers of four
        config = tf.AutoConfig.for_model(
            "qwen3_5_text",
            **common,
            **(sizes | {"num_hidden_layers": 4}),
            num_key_value_heads=2,
            head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        )
    elif kind == "granite4":  # a state-space scan in every other layer
        config = tf.AutoConfig.for_model(
            "granitemoehybrid",
            **common,
            **sizes,
            num_key_value_heads=2,
            shared_intermediate_size=64,
            num_local_experts=0,
            num_experts_per_tok=0,
            mamba_n_heads=8,
            mamba_d_head=8,
            mamba_d_state=16,
            mamba_chunk_size=16,
            layer_types=["mamba", "attention"],
        )
    elif kind == "gpt_oss":  # attention sinks, windows, experts
        config = tf.GptOssConfig(
            **common,
            **sizes,
            num_key_value_heads=2,
            head_dim=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=9,
        )
    elif kind.startswith("gemma4"):
        config = tf.AutoConfig.for_model(
            "gemma4_text",
            **common,
            **(sizes | GEMMA4_SIZES | GEMMA4_KINDS[kind]),
            vocab_size_per_layer_input=vocabulary,
        )
    elif kind == "bloom":
        config = tf.BloomConfig(**common, hidden_size=32, n_layer=2, n_head=4)
    else:
        raise ValueError(kind)
    model = tf.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager" if kind in ("gemma2", "bloom", "gpt_oss") else "sdpa"
    )
    with torch.no_grad():  # random weights large enough that the tests can tell right from wrong
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
            elif kind == "gemma3":  # its norms begin at one, and would hide one that is left out
                parameter.normal_(0.0, 0.3)
            elif kind.startswith(
                "gemma4"
            ):  # attention is scaled by these alone: with ones it would be a hard choice
                parameter.uniform_(0.3, 0.7)
        for name, factor in model.named_buffers():
            if name.endswith("layer_scalar"):
                factor.fill_(0.7)
    return model.eval()


def examples(n: int = 40, seed: int = 0, low: int = 5, high: int = 20) -> TokenisedExamples:
    stream = np.random.default_rng(seed)
    ids, prompts = [], []
    for _ in range(n):
        length = int(stream.integers(low, high))
        start = int(stream.integers(3, VOCAB))
        ids.append([(start + 7 * i) % (VOCAB - 3) + 3 for i in range(length)])
        prompts.append(int(stream.integers(1, length)))
    return TokenisedExamples.from_lists(ids, prompts)


# full tuning has no adapters: what its lanes say of their shape is not read
NO_ADAPTERS = LoraConfig(dropout=0.0, targets=None)


def spec(
    key: str = "lane",
    *,
    seed: int = 3,
    data: TokenisedExamples | None = None,
    dropout: float = 0.0,
    **schedule,
):
    settings = {"learning_rate": 1e-3, "epochs": 3, "loss": "text", **schedule}
    lora = LoraConfig(dropout=dropout, targets=None)
    return LaneSpec(
        key, data if data is not None else examples(seed=seed), Schedule(**settings), lora, seed
    )


def check_form(
    model: torch.nn.Module,
    specs: list[LaneSpec],
    *,
    may_pack: bool,
    lora: LoraConfig | None = None,
    limit: int | None = None,
    proof: TrainingFormCheck | None = None,
) -> TrainingFormCheck:
    """Choose the training form of a model for lanes with one shape of adapter."""
    settings = TrialSettings(lora or specs[0].lora, specs, limit)
    return choose_training_form(model, settings, may_pack=may_pack, proof=proof)


def place(row: PackedRows, bank: AdapterBank, *, few: bool) -> PackedInputs:
    """Put a long row into a bucket of its own."""
    bucket = Bucket.holding(len(row.ids), len(row.targets), bank.slots, coarse=few)
    inputs = PackedInputs.on(bank.device, bucket)
    inputs.buffer.copy_(torch.from_numpy(row.filled(bucket)))
    inputs.group_rows_of(row)
    return inputs


def gap(first_state: dict[str, torch.Tensor], second_state: dict[str, torch.Tensor]) -> float:
    assert first_state.keys() == second_state.keys()
    return max(float((first_state[name] - second_state[name]).abs().max()) for name in first_state)
