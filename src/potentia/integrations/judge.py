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
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from potentia.errors import DataError
from potentia.evidence import Evidence
from potentia.integrations.verdict import parse_verdict
from potentia.study import content_key
from potentia.tasks import verify_answer
from potentia.values.findings import Cell, Finding, Table
from potentia.values.protocol import Protocol

ASK = (
    "Question:\n{question}\n\nRight answer:\n{gold}\n\nAnswer to judge:\n{answer}\n\n"
    "Does the answer to judge give the right answer, in whatever form? Reply with one word: correct or incorrect."
)
TRIES = 4
FIRST_PAUSE = 1.0  # seconds after the first failure; each next is twice as long
REQUESTS_AT_ONCE = 8
TIMEOUT = 120  # seconds for one reply
LONGEST_VERDICT = 16  # tokens
RETRIED_CODES = (429, 500, 502, 503, 504)


@dataclass
class AnswerJudge:
    """An endpoint (``http://host/v1``), the model to ask there, and the file that remembers its replies."""

    url: str
    model: str
    memory: Path
    key: str | None = field(default=None, repr=False)
    question_count: int = 0  # questions that were put so far

    def judge(self, items: Sequence[tuple[str, str, str]]) -> list[bool | None]:
        """Return whether each (question, gold, answer) is right, None where the judge does not say; asks only once."""
        keys = []
        for question, gold, answer in items:
            keys.append(
                content_key(model=self.model, ask=ASK, question=question, gold=gold, answer=answer)
            )
        replies = self._read_memory()
        pending = {}
        for key, item in zip(keys, items, strict=True):
            if key not in replies:
                pending[key] = item
        with (
            ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool,
            self.memory.open("a", encoding="utf-8") as file,
        ):
            for key, reply in zip(
                pending, pool.map(self._ask_endpoint, pending.values()), strict=True
            ):
                replies[key] = reply
                file.write(json.dumps({"key": key, "reply": reply}) + "\n")
                file.flush()
                self.question_count += 1
        return [parse_verdict(replies[key]) for key in keys]

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

    def _ask_endpoint(self, item: tuple[str, str, str]) -> str:
        """Return the reply about one answer; ask again after a pause where the endpoint is busy."""
        question, gold, answer = item
        text = ASK.format(question=question, gold=gold, answer=answer)
        body = {
            "model": self.model,
            "temperature": 0,
            "max_tokens": LONGEST_VERDICT,
            "messages": [{"role": "user", "content": text}],
        }
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        address = f"{self.url.rstrip('/')}/chat/completions"
        for attempt in range(TRIES):
            is_last = attempt == TRIES - 1
            request = urllib.request.Request(address, json.dumps(body).encode(), headers)
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
                    content = json.loads(reply.read())["choices"][0]["message"]["content"]
            except urllib.error.HTTPError as error:
                if error.code not in RETRIED_CODES or is_last:
                    raise DataError(
                        f"the judge refused: HTTP {error.code} {error.reason}", where=address
                    ) from None
            except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
                if is_last:
                    raise DataError(f"the judge gave no answer: {error}", where=address) from None
            else:
                return str(content)
            time.sleep(FIRST_PAUSE * 2**attempt)
        raise AssertionError("every try returns or raises")


@dataclass(frozen=True)
class JudgedAnswers(Finding):
    """Table 11: each cell by its own metric, by math-verify and by the judge, and the ratio of the last two."""

    judge: str
    rows: tuple[tuple[str, str, str, int, int, float, float, float], ...]

    def tables(self) -> Sequence[Table]:
        """Return one row per cell."""
        rows: list[tuple[Cell, ...]] = []
        for row in self.rows:
            verified = row[6]
            upper_bound = row[7]
            rows.append((*row, verified / upper_bound if upper_bound else math.nan))
        columns = (
            "model",
            "task",
            "protocol",
            "answers",
            "unclear",
            "current",
            "math-verify",
            "upper bound",
            "ratio",
        )
        note = (
            "upper bound: by the judge, who sees question, answer and right answer; ratio: math-verify to that. "
            "unclear: the judge said neither correct nor incorrect; the scores are of the other answers."
        )
        title = f"Written answers by three judges ({self.judge})"
        return [Table(title, columns, tuple(rows), note)]


def judge_answers(
    evidence: Evidence, judge: AnswerJudge, *, max_answers: int | None = None
) -> JudgedAnswers:
    """Judge the stored written answers of every cell (the first ``most`` of each), beside the scores they have."""
    rows = []
    for cell in evidence.cells():
        items = [item for item in evidence.items(cell.key) if "generated" in item.detail][
            :max_answers
        ]
        if not items:
            continue
        questions = []
        for item in items:
            question = str(item.detail.get("question") or item.detail["prompt"])
            questions.append((question, item.gold, str(item.detail["generated"])))
        verdicts = judge.judge(questions)
        scores = []
        for item, (_, gold, answer), is_right in zip(items, questions, verdicts, strict=True):
            if is_right is not None:
                verified = verify_answer(item.detail.get("metrics") or {}, gold, answer)
                scores.append((item.value, verified, float(is_right)))
        means = np.mean(scores, axis=0).tolist() if scores else [math.nan] * 3
        protocol = Protocol(cell.protocol).label
        unclear = len(items) - len(scores)
        rows.append((cell.model, cell.task, protocol, len(items), unclear, *means))
    if not rows:
        raise DataError(
            "no written answers are stored here",
            where=evidence.source,
            hint="run a generation task",
        )
    return JudgedAnswers(judge.model, tuple(rows))
