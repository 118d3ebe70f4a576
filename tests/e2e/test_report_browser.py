"""The report and the board in a real browser: Chromium through Playwright."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny
from made_store import EVIL, STUDY, make_store, tune
from potentia.show import write_report

pytestmark = pytest.mark.browser
POTENTIA = str(Path(sys.executable).with_name("potentia"))
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "300", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None:
        if os.environ.get("POTENTIA_REQUIRE_SYSTEM") == "1":
            pytest.fail("Chromium is required and not installed")
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=FLAGS)
        yield browser
        browser.close()


def watched(chromium, width: int, scheme: str) -> Iterator:
    """A page that fails the test on any console error, script error, dialog or request to elsewhere."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True)
    made = context.new_page()
    trouble: list[str] = []
    made.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
    made.on("pageerror", lambda e: trouble.append(str(e)))
    made.on("dialog", lambda d: (trouble.append(f"dialog {d.message}"), d.dismiss()))
    made.on("request", lambda r: None if _local(r.url) else trouble.append(f"request {r.url}"))
    yield made
    assert trouble == []
    context.close()


@pytest.fixture
def page(chromium) -> Iterator:
    yield from watched(chromium, 1440, "light")


@pytest.fixture(params=[(1440, "light"), (390, "dark")], ids=["wide-light", "phone-dark"])
def any_page(request: pytest.FixtureRequest, chromium) -> Iterator:
    yield from watched(chromium, *request.param)


def _local(url: str) -> bool:
    return url.startswith(("file:", "blob:", "data:", "http://127.0.0.1"))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("browser")
    return write_report(make_store(folder / "made.db"), folder / "report.html").as_uri()


def until(page, expression: str, seconds: float = 30) -> None:
    """Wait for an expression to be true; the page's own policy forbids what Playwright's waiting would evaluate."""
    from playwright.sync_api import Error

    def holds() -> bool:
        try:
            return bool(page.evaluate(expression))
        except Error as error:  # the board loads itself anew once its findings are ready
            if "navigation" not in str(error):
                raise
            return False

    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"still not: {expression}"
        page.wait_for_timeout(100)


def settle(page, section: str) -> None:
    """Scroll a section into view and wait for its first figure."""
    page.evaluate("id => document.getElementById(id).scrollIntoView({behavior: 'instant'})", section)
    page.wait_for_selector(f"#{section} .plot[data-drawn]", timeout=30_000)


def column(page, place: int) -> list[str]:
    return page.locator(f"#matrix tbody tr > :nth-child({place})").all_inner_texts()


def no_sideways_scroll(page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def serious(page) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{v['id']}: {v['help']}: {[n['target'] for n in v['nodes']][:3]}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]


# --- the report ---


def test_the_report_opens_quickly_and_fits(any_page, report: str):
    page = any_page
    began = time.monotonic()
    page.goto(report, wait_until="load")
    loaded = time.monotonic() - began
    assert loaded < 2 * float(os.environ.get("POTENTIA_SLOW_MACHINE", "2"))
    assert page.locator("#answer .headline").inner_text()
    for section in ("ranks", "agreement", "evidence", "structure"):
        settle(page, section)
    assert no_sideways_scroll(page)


def test_matrix_toggles_sorts_and_filters(any_page, report: str):
    page = any_page
    page.goto(report)
    first = column(page, 3)
    page.locator("#matrix .segmented label", has_text=re.compile("^direct$")).click()
    assert column(page, 3) != first
    page.locator("#matrix .segmented label", has_text="gain").click()
    assert any(text.startswith(("+", "-", "0")) for text in column(page, 3))
    page.locator("#matrix .segmented label", has_text="train-before-test").click()
    page.locator("#matrix thead th.task button").first.click()
    values = [float(text.split("\n")[0]) for text in column(page, 3)]
    assert values == sorted(values, reverse=True)
    page.locator("#matrix thead th.task button").first.click()
    values = [float(text.split("\n")[0]) for text in column(page, 3)]
    assert values == sorted(values)
    page.locator("#matrix [data-control=name]").fill("beta")
    assert [text.strip() for text in column(page, 1)] == ["beta-7b"]
    page.locator("#matrix [data-control=name]").fill("")
    page.locator("#matrix [data-control=family]").select_option("greek")
    assert page.locator("#matrix tbody tr").count() == 3
    page.locator("#matrix [data-control=family]").select_option("")
    assert page.locator("#matrix td.failed, #matrix td.missing").count() == 1


def test_failed_cells_say_why(page, report: str):
    page.goto(report)
    page.locator("#matrix .segmented label", has_text=re.compile("^direct$")).click()
    assert page.locator("#matrix td.failed span[title]").get_attribute("title") == "failed: it broke: <b>badly</b>"


def test_predicted_cells_are_hatched_and_say_so(page, report: str):
    page.goto(report)
    page.locator("#completed tbody tr").first.wait_for()
    hatched = page.locator("#completed td.predicted")
    assert hatched.count() == 1
    assert "repeating-linear-gradient" in hatched.evaluate("td => getComputedStyle(td).backgroundImage")
    assert re.search(r"predicted 0\.\d+.*95 % interval 0\.\d+ to [01]\.\d+", hatched.inner_text().replace("\n", " "))
    assert page.locator("#matrix td.predicted").count() == 0
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download the completed matrix as CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8"))))
    assert [row["kind"] for row in rows].count("predicted") == 1
    assert len(rows) == 12


def test_hover_highlights_one_model(page, report: str):
    page.goto(report)
    settle(page, "ranks")
    page.locator("[data-bump-model]").select_option("org/beta-7b")
    faint = page.locator("#fig-bump .scatterlayer .trace").evaluate_all("nodes => nodes.map(n => n.style.opacity)")
    assert faint.count("1") == 1 or faint.count("1") == 2  # the model, and the unseen trace that carries the names
    assert faint.count("0.12") >= 3
    page.locator("[data-bump-model]").select_option("")
    box = page.locator("#fig-bump .scatterlayer .trace .point").first
    box.scroll_into_view_if_needed()
    place = box.bounding_box()
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    until(page, "document.getElementById('fig-bump').dataset.highlighted")
    page.locator("[data-bump-choice]").select_option(index=1)
    until(page, "document.getElementById('fig-bump').dataset.shown === '1'")
    assert "arc_easy" in page.locator("#fig-bump h3").inner_text()


def test_evidence_by_task_and_pair(page, report: str):
    page.goto(report)
    settle(page, "evidence")
    page.locator("[data-pairs=task]").select_option("1")
    until(page, "document.querySelector('[data-pairs=title]').textContent.includes('boolq')")
    page.locator("[data-pairs=first]").select_option(label="org/alpha-7b")
    page.locator("[data-pairs=second]").select_option(label=EVIL)
    detail = page.locator("[data-pairs=detail]")
    assert EVIL in detail.inner_text()
    assert detail.locator("tbody tr").count() == 3
    page.locator("#fig-evidence details summary").click()
    page.locator("#fig-evidence details tbody tr").first.wait_for()
    assert page.locator("#fig-evidence details tbody tr").count() == 6


def test_drill_down_from_a_score_to_its_items(page, report: str):
    page.goto(report)
    link = page.locator("#matrix tbody tr", has_text="alpha-7b").locator("td.score a").first
    shown = link.inner_text()
    link.click()
    detail = page.locator("[data-cell=detail]")
    detail.locator("h3").wait_for()
    assert shown in detail.locator(".headline").inner_text()
    detail.locator(".plot[data-drawn]").first.wait_for(timeout=30_000)
    assert detail.locator(".item").count() == 10
    assert "</script><script>alert(2)</script>" in detail.locator(".item .prompt").first.inner_text()
    detail.locator("select").select_option("wrong")
    assert detail.locator(".mark.right").count() == 0
    detail.locator("input[type=search]").fill("no such text")
    until(page, "document.querySelector('[data-cell=detail] [role=status]').textContent.startsWith('0–0 of 0')")
    detail.locator("input[type=search]").fill("")
    detail.locator("select").select_option("all")
    detail.get_by_role("button", name="later →").click()
    until(page, "document.querySelector('[data-cell=detail] [role=status]').textContent.startsWith('11–20')")


@pytest.mark.parametrize("format", ["csv", "png", "svg"])
def test_figures_can_be_taken_away(page, report: str, format: str):
    page.goto(report)
    settle(page, "agreement")
    figure = page.locator("#agreement figure").first
    with page.expect_download() as taken:
        figure.locator(f"[data-download={format}]").click()
    content = Path(taken.value.path()).read_bytes()
    assert taken.value.suggested_filename.endswith(f".{format}")
    if format == "csv":
        rows = list(csv.reader(io.StringIO(content.decode())))
        assert len(rows) == 4
        assert all(len(row) == len(rows[0]) for row in rows)
    else:
        assert content.startswith(b"\x89PNG" if format == "png" else b"<svg")
    figure.locator("details summary").click()
    figure.locator("details tbody tr").first.wait_for()  # the table is made when its box opens
    assert figure.locator("details tbody tr").count() == 3


def test_the_theme_changes_and_is_kept(page, report: str):
    page.goto(report)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    settle(page, "agreement")
    page.locator("[data-theme-toggle]").click()
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert after != before
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after


def test_keyboard_reaches_everything(page, report: str):
    page.goto(report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("#matrix thead th.task button").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')") == "descending"
    page.locator("#matrix .segmented input:checked").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#matrix .segmented input:checked").get_attribute("value") == "direct"


def test_nothing_serious_for_accessibility(any_page, report: str):
    page = any_page
    page.goto(report)
    for section in ("ranks", "agreement", "evidence", "structure"):
        settle(page, section)
    page.evaluate("document.getElementById('cells').scrollIntoView({behavior: 'instant'})")
    page.locator("#cells .item").first.wait_for(timeout=30_000)
    assert serious(page) == []


@pytest.mark.shared
def test_the_published_scores_load_quickly_and_fit(any_page, shared_data: Path, tmp_path: Path):
    page = any_page
    path = write_report(shared_data / "published" / "train_before_test_scores.csv", tmp_path / "r.html")
    page.goto(path.as_uri(), wait_until="load")
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert loaded < 2000 * float(os.environ.get("POTENTIA_SLOW_MACHINE", "2"))
    for section in ("ranks", "agreement", "evidence"):
        settle(page, section)
    assert no_sideways_scroll(page)
    assert page.locator("#matrix tbody tr").count() == 61
    overlaps = page.evaluate(
        """() => [...document.querySelectorAll('#fig-evidence .ytick text, #fig-bump .ytick text')]
            .map(t => t.getBoundingClientRect()).filter((b, k, all) => k && b.top < all[k - 1].bottom - 2
                && b.bottom > all[k - 1].top + 2).length"""
    )
    assert overlaps == 0


# --- the board ---


class Serving:
    """A running ``potentia serve``."""

    def __init__(self, store: Path) -> None:
        self.process = subprocess.Popen(
            [POTENTIA, "serve", str(store), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line
        self.address = found.group()
        urllib.request.urlopen(f"{self.address}/api/studies", timeout=120).close()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = Serving(make_store(tmp_path_factory.mktemp("served") / "made.db"))
    urllib.request.urlopen(f"{running.address}/api/studies/{STUDY}/findings", timeout=180).close()
    yield running.address
    running.stop()


@pytest.mark.parametrize(
    "section", ["", "/scores", "/predicted", "/ranks", "/agreement", "/evidence", "/structure", "/cells", "/how"]
)
def test_every_page_of_the_board_works(any_page, served: str, section: str):
    page = any_page
    page.goto(f"{served}/studies/{STUDY}{section}", wait_until="load")
    first = page.locator("main .plot:visible")
    if first.count():
        first.first.scroll_into_view_if_needed()
        page.wait_for_selector(".plot[data-drawn]", timeout=30_000)
    assert no_sideways_scroll(page)
    assert serious(page) == []


def test_the_board_pages_through_all_items(page, served: str):
    page.goto(f"{served}/studies/{STUDY}/scores")
    page.locator("#matrix tbody td.score a").first.click()
    page.locator("#cell-panel .item").first.wait_for()
    assert "of 60 items" in page.locator("#cell-panel [role=status]").inner_text()
    page.get_by_role("button", name="later →").click()
    until(page, "document.querySelector('#cell-panel [role=status]').textContent.startsWith('11–20')")
    page.locator("#cell-panel input[type=search]").fill("(59)")
    until(page, "document.querySelector('#cell-panel [role=status]').textContent.startsWith('1–1 of 1')")
    assert serious(page) == []


def test_the_board_tells_who_may_be_best_as_cells_come_in(page, tmp_path: Path):
    models = ("org/a", "org/b", "org/c")
    store = make_store(
        tmp_path / "open.db", models=models, untuned=frozenset({("org/c", "arc_easy"), ("org/c", "piqa")})
    )
    serving = Serving(store)
    try:
        page.goto(f"{serving.address}/studies/{STUDY}")
        until(page, "document.querySelectorAll('#outlook .rung').length === 3", 60)
        assert "7 of 9 tuned cells" in page.locator("#outlook").inner_text()
        assert serious(page) == []
        tune(store, "org/c", "arc_easy", right=2)
        until(page, "document.querySelector('#outlook')?.innerText.includes('8 of 9 tuned cells')", 90)
    finally:
        serving.stop()


def test_the_board_during_a_real_run(page, tmp_path: Path):
    for k in range(2):
        tiny.save_model(tmp_path / f"m{k}", seed=k)
    tiny.save_questions(tmp_path / "colours.jsonl", n=400)
    store = tmp_path / "live.db"
    run = subprocess.Popen(
        [POTENTIA, "run", "--models", "./m0", "./m1", "--tasks", "colours.jsonl", "--epochs", "4",
         "--learning-rates", "1e-3", "3e-3", "1e-2", "--store", str(store), "--device", "cpu"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        cwd=tmp_path,
    )  # fmt: skip
    serving = None
    try:
        deadline = time.monotonic() + 120
        while not _has_study(store) and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        serving = Serving(store)
        key = _study_key(store)
        page.goto(f"{serving.address}/studies/{key}")
        until(page, "document.querySelector('[data-live=link]').textContent === 'live'", 60)
        until(page, "document.querySelector('[data-live=state]').classList.contains('on')", 60)
        page.locator(".row-card").first.wait_for(timeout=60_000)
        page.locator(".lane svg polyline").first.wait_for(timeout=120_000, state="attached")
        until(page, "Number(document.getElementById('board')?.dataset.done) === 4", 180)
        assert run.wait(timeout=120) == 0, run.stderr.read()
        until(page, "!document.querySelector('[data-live=state]').classList.contains('on')", 90)
        page.locator("#answer .headline").wait_for(timeout=120_000)
        assert serious(page) == []
    finally:
        if run.poll() is None:
            run.terminate()
            run.wait(timeout=60)
        if serving is not None:
            serving.stop()


def _has_study(store: Path) -> bool:
    return store.exists() and bool(_studies(store))


def _study_key(store: Path) -> str:
    return _studies(store)[0]


def _studies(store: Path) -> list[str]:
    from potentia.errors import StoreError
    from potentia.store import Store

    try:
        with Store.open(store, readonly=True) as opened:
            return [record.key for record in opened.studies()]
    except StoreError:  # its tables are being made
        return []
