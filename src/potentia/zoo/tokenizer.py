"""The zoo's tokenizer: one token per word, words split at white space, with a chat template for instruct models."""

from __future__ import annotations

import json
from pathlib import Path

from potentia.zoo.words import ASSISTANT, BOS, EOS, PAD, SPECIAL, UNK, USER, vocabulary

CONTEXT = 64
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} " + ASSISTANT + " {{ message['content'] }} {{ eos_token }}"
    "{% else %} " + USER + " {{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} " + ASSISTANT + "{% endif %}"
)


def write_tokenizer(folder: Path, *, chat: bool = False) -> None:
    """Write tokenizer files that ``AutoTokenizer`` reads; a text begins with the start token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing

    ids = {word: i for i, word in enumerate(vocabulary())}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, ids[BOS])]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "unk_token": UNK,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    if chat:
        config["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
