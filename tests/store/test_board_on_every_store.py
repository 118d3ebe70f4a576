"""Report and board read SQLite and PostgreSQL alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.testclient import TestClient

from made_store import STUDY, make_store
from potentia.show import write_report
from potentia.show.board.app import create_app
from potentia.store import Store


def test_report_and_board(store_url: str, tmp_path: Path):
    make_store(store_url)
    with Store.open(store_url) as store:
        store.studies.open("other", "b" * 32, {})
    text = write_report(store_url, tmp_path / "report.html", study="made").read_text()
    assert "most likely the best of 4 models after the same fine-tuning" in text
    app = create_app(store_url, executor=ThreadPoolExecutor(1))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert {study["name"]: study["done"] for study in client.get("/api/studies").json()} == {
            "made": 22,
            "other": 0,
        }
        for path in ("", "/scores", "/evidence", "/cells", "/how"):
            assert client.get(f"/studies/{STUDY}{path}").status_code == 200
        cells = client.get(f"/api/studies/{STUDY}/cells", params={"page": 1, "size": 10}).json()
        assert (cells["total"], len(cells["entries"])) == (22, 10)
        key = cells["entries"][0]["key"]
        assert (
            client.get(f"/api/cells/{key}/items", params={"query": "which"}).json()["total"] == 60
        )
        for odd in ("%00", "a%00b", "%F0%9F%99%82", "'--"):
            assert client.get(f"/api/studies/{odd}/cells").status_code == 404
            assert client.get(f"/api/cells/{odd}").status_code == 404
            asked = 422 if "%00" in odd else 200  # no name holds that character
            assert client.get(f"/api/studies/{STUDY}/cells?model={odd}").status_code == asked
            assert client.get(f"/api/studies/{STUDY}/lanes?model={odd}").status_code == asked
