"""A language model as the loose judge of written answers: the upper bound of BOSE's table 11.

An extraction rule misjudges answers to prompts that it was not made for, and math-verify those without a formula. One
that sees the question (not the prompt), the answer and the right answer depends on neither; the share of its verdicts
that math-verify confirms says how well answers keep to the form. Any OpenAI-compatible endpoint will do. Nothing is
asked unless a user names one, and no verdict is asked for twice: they are kept in a file beside the store.
"""

from __future__ import annotations

import json
import math
import re
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
from potentia.study import content_key
from potentia.tasks import verify_answer
from potentia.values.findings import Cell, Finding, Table
from potentia.values.protocol import Protocol

ASK = (
    "Question:\n{question}\n\nRight answer:\n{gold}\n\nAnswer to judge:\n{answer}\n\n"
    "Does the answer to judge give the right answer, in whatever form? Reply with one word: correct or incorrect."
)
_VERDICT = re.compile(r"\b(incorrect|correct|yes|no)\b", re.IGNORECASE)
TRIES, WAIT, AT_ONCE = 4, 1.0, 8


@dataclass
class AnswerJudge:
    """An endpoint (``http://host/v1``), the model to ask there, and the file that remembers its verdicts."""

    url: str
    model: str
    memory: Path
    key: str | None = field(default=None, repr=False)
    asked: int = 0

    def judge(self, items: Sequence[tuple[str, str, str]]) -> list[bool | None]:
        """Return whether each (question, gold, answer) is right, None where the judge does not say; asks only once."""
        keys = [
            content_key(model=self.model, ask=ASK, question=q, gold=g, answer=a)
            for q, g, a in items
        ]
        known = self._remembered()
        new = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
        with ThreadPoolExecutor(AT_ONCE) as pool, self.memory.open("a", encoding="utf-8") as file:
            for key, verdict in zip(new, pool.map(self._ask, new.values()), strict=True):
                known[key] = verdict
                file.write(json.dumps({"key": key, "right": verdict}) + "\n")
                file.flush()
                self.asked += 1
        return [known[key] for key in keys]

    def _remembered(self) -> dict[str, bool | None]:
        found: dict[str, bool | None] = {}
        for line in self.memory.read_text("utf-8").splitlines() if self.memory.exists() else ():
            try:
                told = json.loads(line)
                found[str(told["key"])] = told["right"]
            except (ValueError, KeyError, TypeError):
                continue  # half a line of a run that was killed
        return found

    def _ask(self, item: tuple[str, str, str]) -> bool | None:
        question, gold, answer = item
        text = ASK.format(question=question, gold=gold, answer=answer)
        turns = [{"role": "user", "content": text}]
        body = {"model": self.model, "temperature": 0, "max_tokens": 16, "messages": turns}
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.key}"} if self.key else {}
        )
        place = f"{self.url.rstrip('/')}/chat/completions"
        for attempt in range(TRIES):
            request = urllib.request.Request(place, json.dumps(body).encode(), headers)
            try:
                with urllib.request.urlopen(request, timeout=120) as reply:
                    said = str(json.loads(reply.read())["choices"][0]["message"]["content"])
            except urllib.error.HTTPError as error:
                if error.code not in (429, 500, 502, 503, 504) or attempt == TRIES - 1:
                    raise DataError(
                        f"the judge refused: HTTP {error.code} {error.reason}", where=place
                    ) from None
            except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
                if attempt == TRIES - 1:
                    raise DataError(f"the judge gave no answer: {error}", where=place) from None
            else:
                verdict = _VERDICT.search(said)
                return None if verdict is None else verdict[1].casefold() in ("correct", "yes")
            time.sleep(WAIT * 2**attempt)
        raise AssertionError("every try returns or raises")


@dataclass(frozen=True)
class JudgedAnswers(Finding):
    """Table 11: each cell by its own metric, by math-verify and by the judge, and the ratio of the last two."""

    judge: str
    rows: tuple[tuple[str, str, str, int, int, float, float, float], ...]

    def tables(self) -> Sequence[Table]:
        """Return one row per cell."""
        rows: list[tuple[Cell, ...]] = [
            (*row, row[6] / row[7] if row[7] else math.nan) for row in self.rows
        ]
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
        return [
            Table(f"Written answers by three judges ({self.judge})", columns, tuple(rows), note)
        ]


def judge_answers(
    evidence: Evidence, judge: AnswerJudge, *, most: int | None = None
) -> JudgedAnswers:
    """Judge the stored written answers of every cell (the first ``most`` of each), beside the scores they have."""
    rows = []
    for cell in evidence.cells():
        items = [item for item in evidence.items(cell.key) if "generated" in item.detail][:most]
        if not items:
            continue
        asked = [
            (
                str(item.detail.get("question") or item.detail["prompt"]),
                item.gold,
                str(item.detail["generated"]),
            )
            for item in items
        ]
        scores = [
            (
                item.value,
                verify_answer(item.detail.get("metrics") or {}, item.gold, answer),
                float(right),
            )
            for item, (_, _, answer), right in zip(items, asked, judge.judge(asked), strict=True)
            if right is not None
        ]
        means = np.mean(scores, axis=0).tolist() if scores else [math.nan] * 3
        counts = len(items), len(items) - len(scores)
        rows.append((cell.model, cell.task, Protocol(cell.protocol).label, *counts, *means))
    if not rows:
        raise DataError(
            "no written answers are stored here",
            where=evidence.source,
            hint="run a generation task",
        )
    return JudgedAnswers(judge.model, tuple(rows))
