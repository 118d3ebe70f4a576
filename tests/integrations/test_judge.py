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
    requests_seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests_seen.append((self.path, self.headers.get("Authorization"), body))
            if len(requests_seen) == 1:  # busy at first
                self.send_error(503)
                return
            text = body["messages"][0]["content"]
            thought = "<think>Both say red" if "owl" in text else None
            if body["max_tokens"] > 1_000 and thought:
                thought += ".</think>\n\ncorrect"
            finish_reason = "stop"
            if thought or "newt" in text:
                word = thought
            elif "what is the cat" in text:
                word = "Correct."
            elif "dog" in text:
                word = "incorrect"
            elif "crow" in text and body["max_tokens"] < 1_000:
                word = "The answer is correct, as far as the first"
                finish_reason = "length"
            elif "crow" in text:
                word = (
                    "The answer is correct, as far as the first digit goes. The last is not right."
                )
            else:
                word = "who knows"
            choice = {"message": {"content": word}, "finish_reason": finish_reason}
            reply = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None:
            pass

    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http_server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http_server.server_port}/v1", requests_seen
    http_server.shutdown()
    http_server.server_close()


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
    answers = judge_answers(
        evidence, AnswerJudge(url, "big", tmp_path / "memory.jsonl", key="secret")
    )
    assert answers.results[0].judge_score == pytest.approx(cats)
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
    assert judge_answers(evidence, again).results == answers.results
    assert (again.question_count, len(seen)) == (0, len(items) + 1), "all remembered"
    result = repr(AnswerJudge(url, "big", tmp_path / "m", key="secret"))
    assert "secret" not in result + (tmp_path / "memory.jsonl").read_text()
    unsure = AnswerJudge(url, "big", tmp_path / "m.jsonl")
    assert unsure.judge([("bird?", "red", "blue"), ("dog?", "red", "blue")]) == [None, False]
    assert AnswerJudge(url, "big", tmp_path / "m.jsonl").judge([("bird?", "red", "blue")]) == [
        None
    ], "remembered too"
    with pytest.raises(DataError, match="no answer"):
        AnswerJudge("http://127.0.0.1:9", "big", tmp_path / "m.jsonl").judge(
            [("cat?", "red", "blue")]
        )


def test_a_judge_that_thinks_aloud_is_given_room(
    server: tuple[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(judging, "FIRST_PAUSE", 0.01)
    url, seen = server
    judge = AnswerJudge(url, "thinker", tmp_path / "memory.jsonl")
    assert judge.judge([("owl?", "red", "red")]) == [True], "its first reply ended in its thought"
    assert [body["max_tokens"] for _, _, body in seen] == [16, 16, judging.LONGEST_THOUGHT]
    assert judge.judge([("newt?", "red", "red")]) == [None], (
        "its reply has no text, as a parsed thought leaves none"
    )
    asked = len(seen)
    assert judge.judge([("owl?", "red", "red"), ("newt?", "red", "red")]) == [True, None]
    assert len(seen) == asked


def test_a_reply_that_was_cut_off_is_asked_for_again(
    server: tuple[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The part that fits into 16 tokens calls the answer correct; what follows takes it back."""
    monkeypatch.setattr(judging, "FIRST_PAUSE", 0.01)
    url, seen = server
    judge = AnswerJudge(url, "talker", tmp_path / "memory.jsonl")
    assert judge.judge([("dog?", "red", "red")]) == [False]
    asked = len(seen)
    assert judge.judge([("crow?", "red", "rod")]) == [None]
    assert [body["max_tokens"] for _, _, body in seen[asked:]] == [16, judging.LONGEST_THOUGHT]
    assert "The last is not right" in (tmp_path / "memory.jsonl").read_text()
