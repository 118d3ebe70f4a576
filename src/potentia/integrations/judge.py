"""A language model as the loose judge of written answers: the upper bound of BOSE's table 11.

An extraction rule misjudges answers to prompts that it was not made for, and math-verify those without a formula. One
that sees the question (not the prompt), the answer and the right answer depends on neither; the share of its verdicts
that math-verify confirms says how well answers keep to the form. Any OpenAI-compatible endpoint will do. Nothing is
asked unless a user names one, and nothing is asked twice: the replies are kept in a file beside the store.
"""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from pathlib import Path

import numpy as np

from potentia.errors import DataError
from potentia.evidence import Evidence
from potentia.integrations.verdict import parse_verdict, read_conclusion
from potentia.store import CellRecord
from potentia.study import content_key
from potentia.tasks import verify_answer
from potentia.values.findings import Finding, Table, TableValue
from potentia.values.protocol import Protocol
from potentia.values.scores import ItemOutcome

ASK = (
    "Question:\n{question}\n\nRight answer:\n{gold}\n\nAnswer to judge:\n{answer}\n\n"
    "Does the answer to judge give the right answer, in whatever form? Reply with one word: correct or incorrect."
)
TRIES = 4
FIRST_PAUSE = 1.0  # seconds after the first failure; each next is twice as long
REQUESTS_AT_ONCE = 8
TIMEOUT = 120  # seconds for one reply
LONGEST_VERDICT = 16  # tokens
LONGEST_THOUGHT = 4_096  # tokens of a judge that thinks aloud, or explains its verdict
RETRIED_CODES = (429, 500, 502, 503, 504)

WrittenAnswer = tuple[str, str, str]  # question, right answer, answer to judge


@dataclass(frozen=True)
class JudgeReply:
    """What an endpoint replied, and whether it was cut off where its room ended."""

    text: str
    is_cut_off: bool

    @classmethod
    def from_json(cls, content: bytes) -> JudgeReply:
        """Read a chat completion of an OpenAI-compatible endpoint."""
        choice = json.loads(content)["choices"][0]
        text = str(choice["message"]["content"] or "")
        return cls(text, is_cut_off=choice.get("finish_reason") == "length")

    @property
    def needs_more_room(self) -> bool:
        """Whether a longer reply may say what this one does not: it was cut off, or ends in a thought."""
        return self.is_cut_off or not self.text.strip() or read_conclusion(self.text) is None


@dataclass
class AnswerJudge:
    """An endpoint (``http://host/v1``), the model to ask there, and the file that remembers its replies."""

    url: str
    model: str
    memory: Path
    key: str | None = field(default=None, repr=False)
    question_count: int = 0  # questions that were put so far

    def judge(self, questions: Sequence[WrittenAnswer]) -> list[bool | None]:
        """Return whether each answer is right, None where the judge does not say; nothing is asked twice."""
        question_keys = []
        for question, gold, answer in questions:
            question_keys.append(
                content_key(model=self.model, ask=ASK, question=question, gold=gold, answer=answer)
            )
        replies = self._read_memory()
        pending = {}
        for question_key, written_answer in zip(question_keys, questions, strict=True):
            if question_key not in replies:
                pending[question_key] = written_answer
        with (
            ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool,
            self.memory.open("a", encoding="utf-8") as file,
        ):
            new_replies = pool.map(self._ask_endpoint, pending.values())
            for question_key, reply in zip(pending, new_replies, strict=True):
                replies[question_key] = reply
                file.write(json.dumps({"key": question_key, "reply": reply}) + "\n")
                file.flush()
                self.question_count += 1
        return [parse_verdict(replies[question_key]) for question_key in question_keys]

    def _read_memory(self) -> dict[str, str]:
        """Return the replies that were given before; verdicts that were noted without the reply are asked again."""
        replies: dict[str, str] = {}
        if not self.memory.exists():
            return replies
        for line in self.memory.read_text("utf-8").splitlines():
            try:
                entry = json.loads(line)
                replies[str(entry["key"])] = str(entry["reply"])
            except (ValueError, KeyError, TypeError):
                continue  # half a line of a run that was killed, or a verdict without its reply
        return replies

    def _ask_endpoint(self, written_answer: WrittenAnswer) -> str:
        """Return the reply about one answer; a judge that was cut off is asked again, with more room."""
        reply = self._request_reply(written_answer, LONGEST_VERDICT)
        if reply.needs_more_room:
            reply = self._request_reply(written_answer, LONGEST_THOUGHT)
        return reply.text

    def _request_reply(self, written_answer: WrittenAnswer, max_tokens: int) -> JudgeReply:
        """Return what the endpoint replies; ask again after a pause where it is busy."""
        question, gold, answer = written_answer
        prompt = ASK.format(question=question, gold=gold, answer=answer)
        request_body = {
            "model": self.model,
            "temperature": 0,
            "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": prompt}],
        }
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        address = f"{self.url.rstrip('/')}/chat/completions"
        for attempt in range(TRIES):
            is_last = attempt == TRIES - 1
            request = urllib.request.Request(address, json.dumps(request_body).encode(), headers)
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                    return JudgeReply.from_json(response.read())
            except urllib.error.HTTPError as error:
                if error.code not in RETRIED_CODES or is_last:
                    raise DataError(
                        f"the judge refused: HTTP {error.code} {error.reason}", where=address
                    ) from None
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                if is_last:
                    raise DataError(f"the judge gave no answer: {error}", where=address) from None
            time.sleep(FIRST_PAUSE * 2**attempt)
        raise AssertionError("every try returns or raises")


@dataclass(frozen=True)
class JudgedResult:
    """The written answers of one model to one task, by three judges; the scores are of answers with a clear verdict."""

    model: str
    task: str
    protocol: str
    answers: int
    unclear: int  # answers of which the judge said neither correct nor incorrect
    task_score: float  # by the task's own metric
    math_verify_score: float
    judge_score: float

    @property
    def share_verified(self) -> float:
        """What math-verify confirms of the answers that the judge calls correct."""
        return self.math_verify_score / self.judge_score if self.judge_score else math.nan


@dataclass(frozen=True)
class JudgedAnswers(Finding):
    """Table 11: each result by its own metric, by math-verify and by the judge, and the ratio of the last two."""

    judge: str
    results: tuple[JudgedResult, ...]

    def tables(self) -> Sequence[Table]:
        """Return one row per result."""
        table_rows: list[tuple[TableValue, ...]] = [
            (*astuple(result), result.share_verified) for result in self.results
        ]
        # in the order of the fields of ``JudgedResult``, then the ratio
        column_names = (
            "model",
            "task",
            "protocol",
            "answers",
            "unclear",
            "own metric",
            "math-verify",
            "upper bound",
            "ratio",
        )
        table_note = (
            "upper bound: by the judge, who sees question, answer and right answer; ratio: math-verify to that. "
            "unclear: the judge said neither correct nor incorrect; the scores are of the other answers."
        )
        title = f"Written answers by three judges ({self.judge})"
        return [Table(title, column_names, table_rows, table_note)]


def judge_answers(
    evidence: Evidence, judge: AnswerJudge, *, max_answers: int | None = None
) -> JudgedAnswers:
    """Judge the stored written answers of every result (the first ``max_answers`` of each), beside their scores."""
    results = []
    for cell in evidence.cells():
        outcomes = [
            outcome for outcome in evidence.items(cell.key) if "generated" in outcome.detail
        ]
        if outcomes:
            results.append(_judge_result(cell, outcomes[:max_answers], judge))
    if not results:
        raise DataError(
            "no written answers are stored here",
            where=evidence.source,
            hint="run a generation task",
        )
    return JudgedAnswers(judge.model, tuple(results))


def _judge_result(
    cell: CellRecord, outcomes: Sequence[ItemOutcome], judge: AnswerJudge
) -> JudgedResult:
    """Judge the written answers of one result."""
    questions = []
    for outcome in outcomes:
        question = str(outcome.detail.get("question") or outcome.detail["prompt"])
        questions.append((question, outcome.gold, str(outcome.detail["generated"])))
    verdicts = judge.judge(questions)
    scores = []
    for outcome, (_, gold, answer), is_right in zip(outcomes, questions, verdicts, strict=True):
        if is_right is not None:
            verified = verify_answer(outcome.detail.get("metrics") or {}, gold, answer)
            scores.append((outcome.value, verified, float(is_right)))
    task_score, math_verify_score, judge_score = [math.nan] * 3
    if scores:
        task_score, math_verify_score, judge_score = np.mean(scores, axis=0).tolist()
    return JudgedResult(
        model=cell.model,
        task=cell.task,
        protocol=Protocol(cell.protocol).label,
        answers=len(outcomes),
        unclear=len(outcomes) - len(scores),
        task_score=task_score,
        math_verify_score=math_verify_score,
        judge_score=judge_score,
    )
