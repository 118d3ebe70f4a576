"""How good a written answer is beside the right one: exact match, token F1, containment, ROUGE-L.

Texts are compared as words: in lower case, without punctuation and white space. English articles do not count, as in
SQuAD. So "It is Oslo." is no exact match of "Oslo", contains it, and has a token F1 of one half.

What words cannot tell: "-5" is the same as "5"; a sentence of a script without blanks (Chinese, Japanese, Thai) is one
word; and a right answer that is an article ("A") is found only in an answer of nothing but articles.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any

EXACT_MATCH = "exact_match"
TOKEN_F1 = "token_f1"
CONTAINS = "contains"
ROUGE_L = "rouge_l"
FREE_TEXT_METRICS = (EXACT_MATCH, TOKEN_F1, CONTAINS, ROUGE_L)
SHORT_ANSWER = 20  # words; in longer answers the order of the words matters
_ARTICLES = frozenset({"a", "an", "the"})
_WORD = re.compile(r"[^\W_]+")
_MARK_CATEGORIES = ("Mn", "Mc")  # Unicode's marks that are written on or around a letter
_SELECTORS = frozenset(
    map(chr, range(0xFE00, 0xFE10))
)  # marks that only choose a glyph, as of emoji


def choose_metric(right_answers: Sequence[str]) -> str:
    """Return the metric for a task with these right answers: token F1 if most are short, else ROUGE-L."""
    lengths = [len(split_words(answer, keep_marks=has_marks(answer))) for answer in right_answers]
    return TOKEN_F1 if not lengths or median(lengths) <= SHORT_ANSWER else ROUGE_L


def has_marks(text: str) -> bool:
    """Whether words of a text have marks on their letters, such as the vowel signs of Hindi or Arabic."""
    return split_words(text, keep_marks=True) != split_words(text)


def split_words(text: str, *, keep_marks: bool = False) -> list[str]:
    """Return the words of a text in lower case; without articles, unless it consists of them.

    A mark on a letter ends the word and is dropped, unless ``keep_marks`` makes it part of the word.
    """
    normalised = unicodedata.normalize("NFKC", text).casefold()
    if keep_marks:
        words = _split_with_marks(normalised)
    else:
        words = _WORD.findall(normalised)
    return [word for word in words if word not in _ARTICLES] or words


def _split_with_marks(text: str) -> list[str]:
    """Return the words of a text; a word is letters and digits, each with the marks that follow it."""
    characters: list[str] = []
    for character in text:
        is_on_letter = bool(characters) and characters[-1] != " "
        is_mark = unicodedata.category(character) in _MARK_CATEGORIES
        if character.isalnum() or (is_mark and is_on_letter and character not in _SELECTORS):
            characters.append(character)
        else:
            characters.append(" ")
    return "".join(characters).split()


def grade_free_text(document: Mapping[str, object], results: Sequence[str]) -> dict[str, float]:
    """Return every metric of the model's answer, ``results[0]``, beside the right one, the document's completion.

    It is the ``process_results`` of a definition: lm-eval calls it for each document. Marks on letters count where the
    right answer has any.
    """
    written_answer = results[0]
    right_answer = str(document["completion"])
    keep_marks = has_marks(right_answer)
    written_words = split_words(written_answer, keep_marks=keep_marks)
    right_words = split_words(right_answer, keep_marks=keep_marks)
    if not right_words:  # the right answer has only signs, such as "!?": they must be the same
        is_same = float(written_answer.strip() == right_answer.strip())
        return dict.fromkeys(FREE_TEXT_METRICS, is_same)
    return {
        EXACT_MATCH: float(written_words == right_words),
        TOKEN_F1: compute_token_f1(written_words, right_words),
        CONTAINS: float(_contains(written_words, right_words)),
        ROUGE_L: compute_rouge_l(written_words, right_words),
    }


# Hashed into the fingerprint of a task in place of this file, so that an edit that changes no score keeps results.
grade_free_text.fingerprint_parts = (  # type: ignore[attr-defined]
    "exact match, token F1, contains and ROUGE-L of words in lower case, without articles"
)


def grade_marked_text(document: Mapping[str, object], results: Sequence[str]) -> dict[str, float]:
    """Return the same as ``grade_free_text``, for a task some of whose right answers have marks.

    It has a fingerprint of its own, since versions up to 0.3 graded such answers without their marks.
    """
    return grade_free_text(document, results)


grade_marked_text.fingerprint_parts = (  # type: ignore[attr-defined]
    "exact match, token F1, contains and ROUGE-L of words with their marks in lower case, without articles"
)


def choose_grader(right_answers: Sequence[str]) -> Callable[..., dict[str, float]]:
    """Return the ``process_results`` of a task with these right answers."""
    return grade_marked_text if any(map(has_marks, right_answers)) else grade_free_text


def compute_token_f1(written_words: Sequence[str], right_words: Sequence[str]) -> float:
    """Return the F1 of the words that both texts have, as SQuAD does: a word counts as often as both have it."""
    common = (Counter(written_words) & Counter(right_words)).total()
    total = len(written_words) + len(right_words)
    return 2 * common / total if total else 0.0


def _contains(written_words: Sequence[str], right_words: Sequence[str]) -> bool:
    """Whether the right words stand in the written ones, one after another."""
    length = len(right_words)
    starts = range(len(written_words) - length + 1)
    return any(list(written_words[start : start + length]) == list(right_words) for start in starts)


def compute_rouge_l(written_words: Sequence[str], right_words: Sequence[str]) -> float:
    """Return the F measure of the longest common subsequence of words.

    It is computed by ``rouge_score``, Google's reimplementation of ROUGE.
    """
    if not written_words or not right_words:
        return 0.0
    scores = _rouge_scorer().score(" ".join(right_words), " ".join(written_words))
    return float(scores["rougeL"].fmeasure)


class _BlankTokenizer:
    """Splits a text at blanks; the usual tokenizer of rouge_score drops every letter that is not English."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


@cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

    return RougeScorer(["rougeL"], tokenizer=_BlankTokenizer())
