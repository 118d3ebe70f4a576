"""The judge of written answers, against a real server on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tiny
from potentia.errors import DataError
from potentia.evidence import read
from potentia.integrations import judge as judging
from potentia.integrations.judge import AnswerJudge, judge_answers
from potentia.run import run_study
from potentia.study import make_study


@pytest.fixture
def server() -> Iterator[tuple[str, list[Any]]]:
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, self.headers.get("Authorization"), body))
            if len(seen) == 1:  # busy at first
                self.send_error(503)
                return
            text = body["messages"][0]["content"]
            word = (
                "Correct."
                if "what is the cat" in text
                else "incorrect"
                if "dog" in text
                else "who knows"
            )
            reply = json.dumps({"choices": [{"message": {"content": word}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}/v1", seen
    made.shutdown()
    made.server_close()


def test_written_answers_are_judged_once_and_remembered(
    server: tuple[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(judging, "FIRST_PAUSE", 0.01)
    url, seen = server
    rows = [
        {"prompt": f"what is the {'cat' if k % 2 else 'dog'} {k} ?", "completion": "red"}
        for k in range(40)
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tiny.save_model(tmp_path / "base")
    body = {
        "models": [{"name": "base", "path": str(tmp_path / "base")}],
        "store": str(tmp_path / "s.db"),
        "tasks": [{"name": "own", "file": str(tmp_path / "own.jsonl")}],
        "protocols": ["direct"],
        "answer_tokens": 4,
    }
    assert run_study(make_study(body)).failed == 0
    evidence = read(tmp_path / "s.db")
    (cell,) = evidence.cells()
    items = evidence.items(cell.key)
    cats = sum("cat" in item.detail["question"] for item in items) / len(items)
    found = judge_answers(
        evidence, AnswerJudge(url, "big", tmp_path / "memory.jsonl", key="secret")
    )
    assert found.rows[0][7] == pytest.approx(cats)
    path, key, sent = seen[-1]
    assert (path, key, sent["model"], sent["temperature"]) == (
        "/v1/chat/completions",
        "Bearer secret",
        "big",
        0,
    )
    assert len(seen) == len(items) + 1, "one was asked again after HTTP 503"
    (tmp_path / "memory.jsonl").open("a").write('{"key": "half')
    again = AnswerJudge(url, "big", tmp_path / "memory.jsonl")
    assert judge_answers(evidence, again).rows == found.rows
    assert (again.question_count, len(seen)) == (0, len(items) + 1), "all remembered"
    told = repr(AnswerJudge(url, "big", tmp_path / "m", key="secret"))
    assert "secret" not in told + (tmp_path / "memory.jsonl").read_text()
    unsure = AnswerJudge(url, "big", tmp_path / "m.jsonl")
    assert unsure.judge([("bird?", "red", "blue"), ("dog?", "red", "blue")]) == [None, False]
    assert AnswerJudge(url, "big", tmp_path / "m.jsonl").judge([("bird?", "red", "blue")]) == [
        None
    ], "remembered too"
    with pytest.raises(DataError, match="no answer"):
        AnswerJudge("http://127.0.0.1:9", "big", tmp_path / "m.jsonl").judge(
            [("cat?", "red", "blue")]
        )
