"""What Potentia says to people: every sentence in one table, in the field's words."""

from __future__ import annotations

import re

import pytest

import sentences
from potentia.values.wording import set_signs

# Words of an earlier dialect, and what is said instead (docs/vocabulary.md).
OLD_WORDS = {
    r"\btold apart\b": "significantly different",
    r"four (times|studies) (in|of) five": "80 % power",
    r"\bmay have more in (it|them)\b": "the score may be too low",
    r"\bkept (the )?untuned\b": "the untuned model was used",
    r"\bdrawn anew\b": "bootstrap",
    r"\bwith a word\b": "with a message",
    r"\bmend\b": "fix",
    r"\b[Cc]ells?\b": "result",
    r"\b[Ll]anes?\b": "fine-tuning",
    r"\b[Dd]ocuments?\b(?! of a corpus)": "example",
    r"\banew\b": "again",
    r"\bthe harness\b": "lm-eval",
    r"\bis no (number|JSON|CSV|name)\b": "is not a …",
}


@pytest.fixture(scope="module")
def table() -> list[sentences.Sentence]:
    return sentences.collect_sentences()


def test_the_table_of_all_sentences(table: list[sentences.Sentence]) -> None:
    """``pytest -s tests/test_sentences.py`` prints them, to be read in one go."""
    for sentence in table:
        print(f"{sentence.file}:{sentence.line}\t{' '.join(sentence.text.split())}")
    assert len(table) > 1_000
    assert any(sentence.file == "cli/run.py" for sentence in table)


@pytest.mark.parametrize("old", OLD_WORDS)
def test_no_sentence_speaks_the_old_dialect(old: str, table: list[sentences.Sentence]) -> None:
    result = [
        f"{sentence.file}:{sentence.line} {sentence.text} → {OLD_WORDS[old]}"
        for sentence in table
        if re.search(old, sentence.text)
    ]
    assert result == []


def test_gaps_and_docstrings_are_known(tmp_path) -> None:
    (tmp_path / "a.py").write_text(
        '"""No sentence of three words."""\n\ndef f(n):\n    """Nor is this one."""\n'
        '    return f"about {n} more examples are needed"\n'
    )
    (only,) = sentences.collect_sentences(tmp_path)
    assert (only.text, only.line) == ("about … more examples are needed", 5)


def test_help_pages_and_scripts_are_in_the_table(tmp_path) -> None:
    """What ``--help`` prints and what report and board show is said to people too."""
    (tmp_path / "command.py").write_text(
        '@command(app, "run", Options)\ndef run(options):\n    """Run a whole study."""\n'
    )
    (tmp_path / "page.html").write_text(
        '{# No sentence of mine. #}\n{% set lead = "What the scores say" %}\n'
        '<p class="no class of mine">The <b>first {{ n }}</b> of them</p><p title="A tip to read">\n'
    )
    (tmp_path / "page.js").write_text(
        '/* no comment of mine */\nconst quote = (s) => /["]/.test(s);\n'
        'show(`${n} of ${noun(m, "x")} results`, "nothing runs now", "");\n'
    )
    found = [(sentence.line, sentence.text) for sentence in sentences.collect_sentences(tmp_path)]
    assert found == [
        (3, "Run a whole study."),
        (2, "What the scores say"),
        (3, "The first … of them"),
        (3, "A tip to read"),
        (3, "nothing runs now"),
    ]


def test_negative_numbers_have_a_minus_sign_and_names_keep_their_hyphens() -> None:
    sentence = "pythia-160m scores -0.006 (95% interval -0.01 to 0.002) at a rate of 1e-4."
    written = "pythia-160m scores −0.006 (95 % interval −0.01 to 0.002) at a rate of 1e-4."
    assert set_signs(sentence) == written
