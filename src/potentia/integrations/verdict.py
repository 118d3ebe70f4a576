"""Whether a judge's reply says that an answer is correct: yes, no, or neither.

A judge is asked for one word and often writes a sentence. Every clause that says something of the answer counts, with
its negations; words about the *right* answer ("the correct answer is 5"), questions, conditions and doubts say nothing.
Where clauses contradict each other, or none says anything, the verdict is unclear.
"""

from __future__ import annotations

import re

_APOSTROPHES = re.compile(r"[’‘`´]")
_MARKUP = re.compile(r"[*_\"“”()\[\]{}<>]|\\boxed|\\text")
_SENTENCE_END = re.compile(r"[.!;\n。！；]")
_CLAUSE_END = re.compile(r"[,:]|\s-\s|—|–|\b(?:but|however|so|therefore|because|since)\b")
_QUESTION = re.compile(r"[^.!?\n]*\?")
_CONDITION = re.compile(r"\b(?:if|unless|provided)\b")
# What the right answer is, not whether the answer to judge is right.
_TALK_OF_RIGHT_ANSWER = re.compile(
    r"\b(?:the|its|an?)\s+(?:correct|right|true)\s+(?:answer|solution|value|result|option|choice|one)"
    r"(?=\s+(?:is|was|would|should|must|=|to)\b|\s*$)"
)
_GIVES_RIGHT_ANSWER = re.compile(
    r"\b(?P<verb>gives?|gave|matches|match|equals|states?|provides?|reaches|contains?|agrees with|same as)\b"
    r"[^.]*\b(?:correct|right|true|gold|expected|reference)\s+(?:answer|solution|value|result|one)"
)
_DOUBT = re.compile(
    r"\b(?:whether|unsure|uncertain|unclear|maybe|perhaps|possibly|might|may|could|cannot|can't|can not"
    r"|hard to|difficult to|unable|partially|partly|half|somewhat|mostly|would have been|should be|depends)\b"
)
_BOTH = re.compile(
    r"\b(?:correct|right|true|yes)\s*(?:/|or|nor|and)\s*(?:incorrect|wrong|false|no)\b"
)
_NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|hardly|far from|cannot be|anything but|isn't|aint|ain't|wasn't|doesn't|does not|don't"
    r"|isnt|doesnt|no way|without)\b"
)
_RIGHT = re.compile(r"\b(?:correct|correctly|right|true|accurate|valid|yes|yep|yeah)\b|✓|✔|✅")
_WRONG = re.compile(
    r"\b(?:incorrect|incorrectly|wrong|wrongly|false|inaccurate|invalid|mistaken|erroneous|untrue|no|nope)\b|✗|✘|❌"
)
_WRONG_IN_CHINESE = re.compile(r"不正确|不对|错误|不是正确|并不正确")
_RIGHT_IN_CHINESE = re.compile(r"正确|对的")


def parse_verdict(reply: str) -> bool | None:
    """Return whether a reply calls the answer correct; None where it does not say, or contradicts itself."""
    text = _APOSTROPHES.sub("'", reply.casefold())
    text = _MARKUP.sub(" ", text)
    if _BOTH.search(text):
        return None
    verdicts = set()
    for clause in _split_clauses(text):
        verdict = _judge_clause(clause)
        if verdict is not None:
            verdicts.add(verdict)
    return verdicts.pop() if len(verdicts) == 1 else None


def _split_clauses(text: str) -> list[str]:
    """Return the clauses of a reply without its questions and conditions."""
    sentences = _SENTENCE_END.split(_QUESTION.sub(" ", text))
    clauses: list[str] = []
    for sentence in sentences:
        if _CONDITION.search(sentence) is None:
            clauses += _CLAUSE_END.split(sentence)
    return [clause.strip() for clause in clauses if clause.strip()]


def _judge_clause(clause: str) -> bool | None:
    """Return what one clause says of the answer; None where it says nothing."""
    if _WRONG_IN_CHINESE.search(clause):
        return False
    if _RIGHT_IN_CHINESE.search(clause):
        return True
    if _DOUBT.search(clause):
        return None
    gives_right_answer = _GIVES_RIGHT_ANSWER.search(clause)
    if gives_right_answer is not None:
        return not _is_negated(clause[: gives_right_answer.end("verb")])
    clause = _TALK_OF_RIGHT_ANSWER.sub(" ", clause)
    wrong = _WRONG.search(clause)
    right = _RIGHT.search(clause)
    if wrong is not None and right is not None:
        return None
    word = wrong or right
    if word is None:
        return None
    says_right = wrong is None
    return says_right != _is_negated(clause[: word.start()])


def _is_negated(words_before: str) -> bool:
    """Whether the words before a verdict turn it around; two negations do not."""
    return len(_NEGATION.findall(words_before)) % 2 == 1
