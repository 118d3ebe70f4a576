"""Real models small enough for a test: random weights, a word-level tokenizer, no downloads."""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = [
    "the",
    "a",
    "of",
    "is",
    "was",
    "in",
    "red",
    "blue",
    "green",
    "old",
    "new",
    "cat",
    "dog",
    "bird",
    "tree",
    "house",
    "river",
    "who",
    "what",
    "where",
    "answer",
    "question",
    ":",
    "?",
    ".",
]
CHAT = "{% for m in messages %}<user> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"  # noqa: E501


def tokenizer(chat: bool = False):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        w: i
        for i, w in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<assistant>", *WORDS])
    }
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pre_trained_tokenizer_fast = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
    )
    if chat:
        pre_trained_tokenizer_fast.chat_template = CHAT
    return pre_trained_tokenizer_fast


def save_model(
    folder: Path, *, seed: int = 0, chat: bool = False, width: int = 32, words=None
) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    words = words or tokenizer(chat)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def save_questions(file: Path, *, n: int = 60, seed: int = 0) -> Path:
    """Questions that can be learnt: the colour that follows from the animal."""
    stream = random.Random(seed)
    colour = {"cat": "red", "dog": "blue", "bird": "green"}
    seen: set[str] = set()
    with file.open("w") as out:
        while len(seen) < n:
            animal = stream.choice(sorted(colour))
            filler = " ".join(stream.choices(["the", "a", "of", "old", "new", "in"], k=3))
            choices = ["red", "blue", "green"]
            stream.shuffle(choices)
            row = {
                "question": f"what is the {animal} {filler} ?",
                "choices": choices,
                "answer": choices.index(colour[animal]),
            }
            if (line := json.dumps(row)) not in seen:
                seen.add(line)
                out.write(line + "\n")
    return file


def save_texts(file: Path, *, n: int = 40, seed: int = 0) -> Path:
    stream = random.Random(seed)
    with file.open("w") as out:
        for _ in range(n):
            out.write(json.dumps({"text": " ".join(stream.choices(WORDS, k=20))}) + "\n")
    return file
