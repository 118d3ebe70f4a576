"""What Potentia says to people: every sentence in one table, in the field's words."""

from __future__ import annotations

import re

import pytest

import sentences

# Words of an earlier dialect, and what is said instead (docs/vocabulary.md).
OLD_WORDS = {
    r"\btold apart\b": "significantly different",
    r"four (times|studies) (in|of) five": "80 % power",
    r"\bmay have more in (it|them)\b": "the score may be too low",
    r"\bkept (the )?untuned\b": "the untuned model was used",
    r"\bdrawn anew\b": "bootstrap",
    r"\bwith a word\b": "with a message",
    r"\bmend (it|them)\b": "fix",
}
SPOKEN_ROOMS = ("cli/", "analysis/rankings/", "analysis/benchmark/", "run/", "tasks/")


def test_the_table_of_all_sentences() -> None:
    """``pytest -s tests/test_sentences.py`` prints them, to be read in one go."""
    table = sentences.collect_sentences()
    for sentence in table:
        print(f"{sentence.file}:{sentence.line}\t{' '.join(sentence.text.split())}")
    assert len(table) > 1_000
    assert any(sentence.file == "cli/run.py" for sentence in table)


@pytest.mark.parametrize("old", OLD_WORDS)
def test_no_sentence_speaks_the_old_dialect(old: str) -> None:
    found = [
        f"{sentence.file}:{sentence.line} {sentence.text} → {OLD_WORDS[old]}"
        for sentence in sentences.collect_sentences()
        if sentence.file.startswith(SPOKEN_ROOMS) and re.search(old, sentence.text)
    ]
    assert found == []


def test_gaps_and_docstrings_are_known(tmp_path) -> None:
    (tmp_path / "a.py").write_text(
        '"""No sentence of three words."""\n\ndef f(n):\n    """Nor is this one."""\n'
        '    return f"about {n} more examples are needed"\n'
    )
    (only,) = sentences.collect_sentences(tmp_path)
    assert (only.text, only.line) == ("about … more examples are needed", 5)
