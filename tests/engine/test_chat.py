"""Chat templates are rendered within limits, and as transformers renders them."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

import tiny
from potentia import limited
from potentia.engine import write_chat
from potentia.errors import ModelError

TURNS = [{"role": "system", "content": "Be kind.\n"}, {"role": "user", "content": " 2 < 3 & é? "}]
ANSWERED = [*TURNS, {"role": "assistant", "content": "Yes, "}]
PLAIN = "{% for m in messages %}<|{{ m.role }}|>\n{{ m['content'] }}{{ eos_token }}\n{% endfor %}"
TEMPLATES = (
    PLAIN + "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "{{ bos_token }}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content | trim }}"
    "{% endfor %}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "{% set n = namespace(k=0) %}{% for m in messages %}{% set n.k = n.k + 1 %}{{ n.k }}{{ m.content }}{% endfor %}",
    "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ strftime_now('%Y') }}{{ tools is none }}",
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }}"
    "{% endfor %}",
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("chat") / "m"
    tiny.save_model(folder, seed=0)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_writes_what_it_writes_in_transformers(tokenizer, template: str):
    tokenizer.chat_template = template
    refuses = "no system" in template
    turns = TURNS[1:] if refuses else TURNS
    assert write_chat(tokenizer, TURNS) == tokenizer.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )
    if "tojson" not in template:
        expected = tokenizer.apply_chat_template(
            ANSWERED[1:] if refuses else ANSWERED, tokenize=False, continue_final_message=True
        )
        assert write_chat(tokenizer, ANSWERED, reply=False) == expected


@pytest.mark.parametrize(
    "bomb",
    [
        "{{ 'x'|center(6000000000) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
        "{{ raise_exception('never') }}",
    ],
)
def test_a_template_that_goes_too_far_is_refused(tokenizer, bomb: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(limited, "DEADLINE", 1.0)
    tokenizer.chat_template = bomb
    with pytest.raises(ModelError, match="chat template cannot be used"):
        write_chat(tokenizer, TURNS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "template",
    [
        "hello",
        "{% for m in messages %}<{{ m.role }}>{% endfor %}",
        "{{ messages[0].content }}{% for m in messages[1:] %}<{{ m.role }}>{% endfor %}",
        "{% for m in messages %}{% if loop.first or loop.last %}{{ m.content }}{% endif %}{% endfor %}",
    ],
)
def test_a_template_that_drops_a_question_is_refused(tokenizer, template: str):
    tokenizer.chat_template = template
    turns = [TURNS[0], TURNS[1], {"role": "assistant", "content": "Yes."}, TURNS[1]]
    with pytest.raises(ModelError, match="chat template leaves out"):
        write_chat(tokenizer, turns)
