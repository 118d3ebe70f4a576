"""The board's pages and API: the store's data, paged, escaped, read-only."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from made_store import DOCUMENT, EVIL, MODELS, STUDY, make_store
from potentia.evidence import read
from potentia.show import ReportOptions, make_report
from potentia.show.board.app import create_app
from potentia.show.board.board_state import StudyWatch
from potentia.show.board.snapshot import SnapshotCache
from potentia.store import Store

SECTIONS = (
    "answer",
    "scores",
    "predicted",
    "ranks",
    "agreement",
    "evidence",
    "structure",
    "cells",
    "how",
)


def handlers(page: str) -> list[str]:
    """The event handlers that a browser would see in a page."""
    results: list[str] = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attrs: results.extend(
        name for name, _ in attrs if name.startswith("on")
    )  # type: ignore[method-assign]
    reader.feed(page)
    return results


@pytest.mark.parametrize(
    "path", ["/", f"/studies/{STUDY}", *(f"/studies/{STUDY}/{name}" for name in SECTIONS)]
)
def test_every_page_opens_and_escapes(board: TestClient, path: str):
    answer = board.get(path)
    assert answer.status_code == 200
    assert EVIL not in answer.text
    assert "<script>" not in answer.text
    assert not handlers(answer.text)


def test_pages_show_what_the_report_shows(board: TestClient, store: Path):
    data = make_report(read(store, study="made"), items=0)
    result = board.get(f"/api/studies/{STUDY}/answer").json()
    assert result["headline"]
    for name, finding in data.findings_by_name().items():
        assert board.get(f"/api/studies/{STUDY}/findings/{name}").json() == json.loads(
            json.dumps(finding.to_dict())
        )
    scores = board.get("/api/studies/made/scores/direct").json()
    assert scores["models"] == list(data.evidence.scores["direct"].models)


def test_the_board_predicts_as_the_report_does(board: TestClient, store: Path):
    done = make_report(read(store, study="made"), items=0).completion
    assert done is not None
    result = board.get(f"/api/studies/{STUDY}/outlook").json()
    assert result == json.loads(json.dumps(done.to_dict()))
    page = board.get(f"/studies/{STUDY}").text
    assert f"best with probability {done.p_best.max():.2f}, predicted" in page
    assert f'href="/studies/{STUDY}/predicted"' in page


def test_the_board_predicts_with_history_where_it_is_given(store: Path, tmp_path: Path):
    past = make_store(tmp_path / "past.db", models=tuple(f"org/old-{k}b" for k in range(5)), seed=1)
    app = create_app(str(store), executor=ThreadPoolExecutor(1), history=(str(past),))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        result = client.get(f"/api/studies/{STUDY}/outlook").json()
        assert result["history"] == 5
        assert "5 models of other studies" in client.get(f"/studies/{STUDY}").text
        done = make_report(
            read(store), items=0, options=ReportOptions(history=read(past))
        ).completion
        assert done is not None
        assert result == json.loads(json.dumps(done.to_dict()))


def test_a_study_with_nothing_left_has_no_outlook(tmp_path: Path):
    store = make_store(tmp_path / "whole.db", models=("org/a", "org/b"))
    with TestClient(
        create_app(str(store), executor=ThreadPoolExecutor(1)), base_url="http://127.0.0.1"
    ) as client:
        assert client.get(f"/api/studies/{STUDY}/outlook").status_code == 404
        assert 'id="outlook"' not in client.get(f"/studies/{STUDY}").text


def test_studies_and_live_state(board: TestClient):
    (study,) = board.get("/api/studies").json()
    assert (study["name"], study["asked"], study["done"], study["failed"]) == ("made", 24, 22, 1)
    assert study["seconds"] == 33.0
    state = board.get(f"/api/studies/{STUDY}").json()
    assert state["running"] == 0
    assert len(state["events"]) == 23
    assert state["events"][0]["id"] > state["events"][-1]["id"]


def test_cells_are_paged_and_filtered(board: TestClient):
    all_entries = [
        entry
        for page in range(4)
        for entry in board.get(f"/api/studies/{STUDY}/cells?page={page}&size=7").json()["entries"]
    ]
    assert len({entry["key"] for entry in all_entries}) == 22
    filtered = board.get(
        f"/api/studies/{STUDY}/cells", params={"protocol": "direct", "model": MODELS[0]}
    ).json()
    assert filtered["total"] == 3
    assert {entry["model"] for entry in filtered["entries"]} == {MODELS[0]}


def test_a_cell_with_lanes_and_items(board: TestClient):
    asked = {"protocol": "train_before_test", "model": EVIL, "task": "boolq"}
    key = board.get(f"/api/studies/{STUDY}/cells", params=asked).json()["entries"][0]["key"]
    cell = board.get(f"/api/cells/{key}").json()
    assert cell["model"] == EVIL
    assert cell["lanes"][0]["selected"]
    assert cell["provenance"]["versions"]["potentia"]
    page = board.get(f"/studies/{STUDY}/cells/{key}")
    assert page.status_code == 200
    assert EVIL not in page.text
    items = board.get(f"/api/cells/{key}/items", params={"size": 200}).json()
    assert items["total"] == 60
    assert DOCUMENT in items["entries"][0]["prompt"]
    split = [
        board.get(f"/api/cells/{key}/items", params={"outcome": o}).json()["total"]
        for o in ("right", "wrong")
    ]
    assert sum(split) == 60
    assert board.get(f"/api/cells/{key}/items", params={"query": "(59)"}).json()["total"] == 1


def test_a_table_leads_to_the_first_fold_of_a_task_in_folds(tmp_path: Path):
    folds = ("tickets#1/2", "tickets#2/2")
    store = make_store(tmp_path / "folds.db", models=("a/one", "a/two"), tasks=folds)
    app = create_app(str(store), executor=ThreadPoolExecutor(1))
    with TestClient(app, base_url="http://127.0.0.1", headers={"accept": "text/html"}) as client:
        address = f"/studies/{STUDY}/cell?model=a/two&task=tickets&protocol=direct"
        found = client.get(address)
        assert found.status_code == 200
        assert "tickets#1/2" in found.text
        assert client.get(address.replace("task=tickets", "task=other")).status_code == 404


def test_what_is_not_there_is_404(board: TestClient):
    for path in (
        "/nothing",
        "/studies/none",
        f"/studies/{STUDY}/none",
        f"/studies/{STUDY}/cells/none",
        "/assets/../x",
    ):
        assert board.get(path).status_code == 404, path
    for path in (
        "/api/none",
        "/api/studies/none",
        "/api/cells/none",
        "/api/cells/none/items",
        "/api/studies/x%00y",
    ):
        answer = board.get(path)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"] == "application/json"


def test_nothing_can_be_written(board: TestClient, store: Path):
    before = hashlib.sha256(store.read_bytes()).hexdigest()
    for method in ("post", "put", "patch", "delete"):
        for path in ("/", "/api/studies", f"/api/studies/{STUDY}", "/api/cells/x"):
            assert getattr(board, method)(path).status_code == 405, (method, path)
    assert hashlib.sha256(store.read_bytes()).hexdigest() == before


def test_every_answer_has_the_security_headers(board: TestClient):
    for path in ("/", f"/studies/{STUDY}/scores", "/api/studies", "/nothing", "/assets/report.css"):
        headers = board.get(path).headers
        policy = headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_no_inline_script_or_handler_in_any_page(board: TestClient):
    for name in ("", "/scores", "/evidence", "/cells"):
        text = board.get(f"/studies/{STUDY}{name}").text
        for tag in re.findall(r"<script[^>]*>", text):
            assert "src=" in tag or 'type="application/json"' in tag, tag
        assert not handlers(text)


def test_the_board_says_how_old_its_answer_is(board: TestClient):
    board.get(f"/api/studies/{STUDY}/findings")
    match = re.search(
        r"The answer so far, from 22 of 24 results, made (\d+ s|\d+:\d+ min) ago",
        board.get(f"/studies/{STUDY}").text,
    )
    assert match
    made = board.get(f"/api/studies/{STUDY}/findings").json()["made"]
    assert 0 <= time.time() - made < 600


def test_assets_are_packed_and_kept(board: TestClient):
    answer = board.get("/assets/report.css")
    assert answer.headers["content-encoding"] == "gzip"
    assert "immutable" in answer.headers["cache-control"]
    assert "--ink" in answer.text


# --- the API against its own description ---


def test_the_description_covers_the_api_and_nothing_answers_5xx(board: TestClient):
    description = board.get("/openapi.json").json()
    paths = [path for path in description["paths"] if not path.endswith("/stream")]
    assert len(paths) >= 13
    texts = st.one_of(
        st.text(max_size=20),
        st.sampled_from(
            [
                STUDY,
                "made",
                "direct",
                "train_before_test",
                "..",
                "\0",
                "%00",
                "' OR 1=1 --",
                "é",
                "🙂",
                EVIL,
            ]
        ),
    )
    numbers = st.one_of(
        st.integers(-(2**70), 2**70), st.integers(0, 300), st.text(max_size=5), st.none()
    )
    key = board.get(f"/api/studies/{STUDY}/cells?size=1").json()["entries"][0]["key"]

    @settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def ask(choices: st.DataObject) -> None:
        path = choices.draw(st.sampled_from(paths))
        operation = description["paths"][path]["get"]
        query = {}
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path":
                known = (
                    st.sampled_from([key, STUDY])
                    if parameter["name"] in ("key", "study")
                    else texts
                )
                value = choices.draw(st.one_of(texts, known))
                from urllib.parse import quote

                path = path.replace(f"{{{parameter['name']}}}", quote(value, safe="") or "-")
            elif choices.draw(st.booleans()):
                kind = json.dumps(parameter["schema"])
                value = choices.draw(numbers if "integer" in kind else texts)
                if value is not None:
                    query[parameter["name"]] = str(value)
        answer = board.get(path, params=query)
        assert answer.status_code < 500, (path, query, answer.text)
        if answer.status_code == 200 and path.startswith("/api"):
            answer.json()

    ask()


# --- live ---


def test_the_stream_tells_new_states(tmp_path: Path):
    path = make_store(tmp_path / "live.db", models=MODELS[:2], tasks=("boolq",))

    async def follow() -> list[dict]:
        with Store.open(path, readonly=True) as reading, Store.open(path) as writing:
            stream = StudyWatch(reading, reading.studies.read()[0]).stream()
            first = await anext(stream)
            writing.events.save_progress(
                STUDY,
                "row",
                {"phase": "tuning", "done": 3, "total": 9, "at": time.time(), "began": 1.0},
            )
            second = await anext(stream)
            await stream.aclose()
            return [json.loads(text.partition("data: ")[2]) for text in (first, second)]

    before, after = asyncio.run(follow())
    assert before["running"] == 0
    assert after["running"] == 1
    assert after["rows"][0]["phase"] == "tuning"


def test_a_row_that_went_silent_does_not_run(tmp_path: Path):
    path = make_store(tmp_path / "live.db", models=MODELS[:2], tasks=("boolq",))
    with Store.open(path) as store:
        store.events.save_progress(
            STUDY, "row", {"phase": "tuning", "done": 3, "total": 9, "at": time.time() - 3600}
        )
        assert StudyWatch(store, store.studies.read()[0]).current_state()["running"] == 0


def test_time_left_is_by_cells_and_by_nothing_else_that_is_told(tmp_path: Path):
    """Ends of rows, waves and the like were counted as cells: a study of one task was said to take half its time."""
    untuned = frozenset((model, "boolq") for model in MODELS)
    path = make_store(tmp_path / "live.db", tasks=("boolq",), untuned=untuned)  # 4 of 8 cells
    with Store.open(path) as store:
        for model in MODELS:
            store.events.append(STUDY, "row", {"row": model, "seconds": 25.0, "tally": {}})
        now = time.time()
        store.events.save_progress(
            STUDY, "row", {"phase": "tuning", "done": 3, "total": 9, "at": now, "began": now - 100}
        )
        assert StudyWatch(store, store.studies.read()[0]).current_state()["left"] == pytest.approx(
            100, rel=0.05
        )


def test_snapshots_are_made_once_and_not_too_often(store: Path):
    async def ask() -> tuple:
        snapshots = SnapshotCache(str(store), ThreadPoolExecutor(1))
        first = await asyncio.gather(*(snapshots.get(STUDY, (22, 1)) for _ in range(20)))
        again = await snapshots.get(STUDY, (23, 1))
        return first, again

    first, again = asyncio.run(ask())
    assert len({id(snapshot) for snapshot in first}) == 1
    assert again is first[0], "a newer one must wait its turn"


def test_a_study_without_scores_says_so(tmp_path: Path):
    with Store.open(tmp_path / "new.db") as store:
        store.studies.open("new", STUDY, {"models": ["a"], "tasks": ["b"]})
    app = create_app(str(tmp_path / "new.db"), executor=ThreadPoolExecutor(1))
    with TestClient(app, base_url="http://127.0.0.1", headers={"accept": "text/html"}) as client:
        assert client.get(f"/api/studies/{STUDY}/findings").json()["names"] == []
        page = client.get(f"/studies/{STUDY}")
        assert page.status_code == 200
        assert "No ranking yet" in page.text
        assert client.get(f"/studies/{STUDY}/scores").status_code == 404
        assert client.get("/").status_code == 200


def test_several_studies_on_one_store(tmp_path: Path):
    path = make_store(tmp_path / "two.db", models=MODELS[:2], tasks=("boolq",))
    with Store.open(path) as store:
        store.studies.open("other", "b" * 32, {})
    app = create_app(str(path), executor=ThreadPoolExecutor(1))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert {study["name"] for study in client.get("/api/studies").json()} == {"made", "other"}
        assert client.get("/api/studies/other").json()["done"] == 0


def test_a_study_that_began_this_second_is_there(tmp_path: Path):
    path = make_store(tmp_path / "two.db", models=MODELS[:2], tasks=("boolq",))
    with TestClient(
        create_app(str(path), executor=ThreadPoolExecutor(1)), base_url="http://127.0.0.1"
    ) as client:
        assert len(client.get("/api/studies").json()) == 1
        with Store.open(path) as store:
            store.studies.open("begun", "b" * 32, {})
        assert client.get("/api/studies/begun").status_code == 200
        assert client.get("/api/studies/nowhere").status_code == 404


def test_prometheus_reads_the_counts(board: TestClient):
    answer = board.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    import re

    line = re.compile(r'(# (HELP|TYPE) \w+ .+|\w+\{(\w+="([^"\\\n]|\\.)*",?)+\} [-+0-9.e]+)')
    lines = answer.text.splitlines()
    assert [text for text in lines if not line.fullmatch(text)] == []
    key = board.get("/api/studies").json()[0]
    done = next(text for text in lines if 'state="done"' in text and key["key"] in text)
    assert float(done.split()[-1]) == key["done"] > 0


def test_lanes_are_paged_where_they_lie(board: TestClient):
    from made_store import STUDY

    whole = board.get(f"/api/studies/{STUDY}/lanes?size=200").json()
    assert whole["total"] == len(whole["entries"]) > 3
    pages = [
        board.get(f"/api/studies/{STUDY}/lanes?size=2&page={page}").json() for page in range(3)
    ]
    assert [lane for page in pages for lane in page["entries"]] == whole["entries"][:6]
    assert {page["total"] for page in pages} == {whole["total"]}


def test_home_tells_how_far_a_study_is_and_who_leads(board: TestClient):
    result = board.get(f"/api/studies/{STUDY}/answer").json()
    page = board.get("/").text
    assert 'aria-valuemax="24" aria-valuenow="22"' in page
    assert f"So far: {result['headline']}" in unescape(page)


def test_the_answer_so_far_stands_above_the_answer(board: TestClient):
    board.get(f"/api/studies/{STUDY}/answer")
    page = board.get(f"/studies/{STUDY}").text
    assert 0 < page.index("The answer so far, from 22 of 24 results") < page.index('id="answer"')
    assert page.index('id="answer"') < page.index('id="board"'), "the page opens with the answer"
