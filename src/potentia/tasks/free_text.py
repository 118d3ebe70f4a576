"""Scores of a written answer beside the right one: exact match, token F1, containment, ROUGE-L.

Texts are compared in lower case, without punctuation and without extra white space, in any script. English articles do
not count, as in SQuAD. So "It is Oslo." is no exact match of "Oslo", contains it, and has a token F1 of one half.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any

EXACT_MATCH = "exact_match"
TOKEN_F1 = "token_f1"
CONTAINS = "contains"
ROUGE_L = "rouge_l"
FREE_TEXT_METRICS = (EXACT_MATCH, TOKEN_F1, CONTAINS, ROUGE_L)
SHORT_ANSWER = 20  # words; the order of words matters in longer ones
_ARTICLES = frozenset({"a", "an", "the"})
_WORD = re.compile(r"[^\W_]+")


def choose_metric(answers: Sequence[str]) -> str:
    """Return the metric for answers of this length: token F1 of short ones, ROUGE-L of longer ones."""
    lengths = [len(split_words(answer)) for answer in answers]
    return TOKEN_F1 if not lengths or median(lengths) <= SHORT_ANSWER else ROUGE_L


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case; without articles, unless it consists of them."""
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return [word for word in words if word not in _ARTICLES] or words


def grade_free_text(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Score a completion by every metric of free text."""
    written = split_words(results[0])
    right = split_words(str(doc["completion"]))
    if not right:  # an answer of signs alone: they have to be the same
        is_same = float(results[0].strip() == str(doc["completion"]).strip())
        return dict.fromkeys(FREE_TEXT_METRICS, is_same)
    return {
        EXACT_MATCH: float(written == right),
        TOKEN_F1: compute_token_f1(written, right),
        CONTAINS: float(_contains(written, right)),
        ROUGE_L: compute_rouge_l(written, right),
    }


# What the fingerprint of a task knows of this function, instead of the text of this whole file.
grade_free_text.fingerprint_parts = (  # type: ignore[attr-defined]
    "exact match, token F1, contains and ROUGE-L of words in lower case, without articles"
)


def compute_token_f1(written: Sequence[str], right: Sequence[str]) -> float:
    """Return the harmonic mean of the shares of words that both texts have, as SQuAD does."""
    common = (Counter(written) & Counter(right)).total()
    return 2 * common / (len(written) + len(right)) if written or right else 0.0


def _contains(written: Sequence[str], right: Sequence[str]) -> bool:
    """Whether the right words stand in the written ones, one after another."""
    length = len(right)
    starts = range(len(written) - length + 1)
    return any(list(written[start : start + length]) == list(right) for start in starts)


def compute_rouge_l(written: Sequence[str], right: Sequence[str]) -> float:
    """Return the F measure of the longest common subsequence of words, by the library of its authors."""
    if not written or not right:
        return 0.0
    return float(_rouge_scorer().score(" ".join(right), " ".join(written))["rougeL"].fmeasure)


class _Blanks:
    """Divides at blanks: the usual tokenizer of rouge_score drops every letter that is not English."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


@cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

    return RougeScorer(["rougeL"], tokenizer=_Blanks())
