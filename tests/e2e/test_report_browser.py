"""The report and the board in a real browser: Chromium through Playwright."""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny
from made_store import EVIL, STUDY, make_store, tune
from potentia.run import RunResult, run_study
from potentia.show import write_report
from potentia.store import Store
from potentia.store.lanes import Lanes
from potentia.study import make_study
from speed import PATIENCE

pytestmark = pytest.mark.browser
POTENTIA = str(Path(sys.executable).with_name("potentia"))
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "300",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    binary = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if binary is None:
        if os.environ.get("POTENTIA_REQUIRE_SYSTEM") == "1":
            pytest.fail("Chromium is required and not installed")
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=binary, args=FLAGS, timeout=1000 * PATIENCE
        )
        yield browser
        browser.close()


def watched(chromium, width: int, scheme: str) -> Iterator:
    """A page that fails the test on any console error, script error, dialog or request to elsewhere."""
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
    )
    context.set_default_timeout(1000 * PATIENCE)
    new_page_made = context.new_page()
    trouble: list[str] = []
    new_page_made.on(
        "console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None
    )
    new_page_made.on("pageerror", lambda e: trouble.append(str(e)))
    new_page_made.on("dialog", lambda d: (trouble.append(f"dialog {d.message}"), d.dismiss()))
    new_page_made.on(
        "request", lambda r: None if _local(r.url) else trouble.append(f"request {r.url}")
    )
    yield new_page_made
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


def until(page, expression: str) -> None:
    """Wait for an expression to be true; the page's own policy forbids what Playwright's waiting would evaluate.

    The board loads itself anew once its findings are ready: a document that is still being read has no elements yet.
    """
    from playwright.sync_api import Error

    condition = f"document.readyState !== 'loading' && ({expression})"

    def holds() -> bool:
        try:
            return bool(page.evaluate(condition))
        except Error as error:  # the document went away meanwhile
            if "navigation" not in str(error):
                raise
            return False

    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"still not: {expression}"
        page.wait_for_timeout(100)


def open_section(page, section: str):
    """Open a section as a reader does: once more where drawings above it moved it away under the pointer."""
    box = page.locator(f"#{section} > details")
    for _ in range(3):
        if box.get_attribute("open") is None:
            box.locator("> summary").click()
    return box


def unfold(page, *sections: str) -> None:
    """Open sections and wait until their first drawing is in sight."""
    for section in sections:
        box = open_section(page, section)
        if box.locator("> .figures").count() == 0:  # those of a few models are folded
            box.locator("> details.more > summary").first.click()
        page.locator(f"#{section} svg.chart").first.wait_for()


def column(page, position: int) -> list[str]:
    return page.locator(f"#matrix tbody tr:visible > :nth-child({position})").all_inner_texts()


def no_sideways_scroll(page) -> bool:
    return page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )


def serious(page) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    result = Axe().run(page).response["violations"]
    return [
        f"{v['id']}: {v['help']}: {[n['target'] for n in v['nodes']][:3]}"
        for v in result
        if v["impact"] in ("serious", "critical")
    ]


LOOP = "() => { let ones = 0; for (let k = 0; k < 1e8; k++) ones += k & 1; return ones }"


def loading_work(page, address: str) -> float:
    """Load a page; return the processor time of its main thread, in loops of a script (some 0.03 s each)."""
    page.goto("about:blank")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def thread_seconds() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime")

    page.goto(address, wait_until="load")
    loaded = thread_seconds()
    page.evaluate(LOOP)
    return loaded / (thread_seconds() - loaded)


# --- the report ---


def test_results_of_a_task_in_folds_are_shown_fold_by_fold(page, tmp_path: Path):
    folds = tuple(f"tickets#{fold}/3" for fold in (1, 2, 3))
    store = make_store(tmp_path / "folds.db", models=("org/alpha-7b", "org/beta-7b"), tasks=folds)
    page.goto(write_report(store, tmp_path / "folds.html").as_uri())
    open_section(page, "cells")
    page.locator("#cells .panel h3").wait_for()
    names = page.locator("#cells [data-cell=task] option").all_inner_texts()
    assert names == [f"tickets (fold {fold} of 3)" for fold in (1, 2, 3)]
    page.locator("#cells [data-cell=task]").select_option(folds[1])
    until(page, "document.querySelector('#cells .panel h3').innerText.includes('fold 2 of 3')")
    # a link of a table names the whole task
    page.evaluate("location.hash = '#cell=org%2Fbeta-7b/tickets/direct'")
    until(page, "document.querySelector('#cells .panel h3').innerText.includes('beta-7b')")
    assert "tickets (fold 1 of 3)" in page.locator("#cells .panel h3").inner_text()


def test_the_report_opens_quickly_and_fits(any_page, report: str):
    page = any_page
    assert loading_work(page, report) < 30
    assert page.locator("#answer .headline").inner_text()
    assert no_sideways_scroll(page)
    unfold(page, "ranks", "agreement", "evidence", "structure")
    assert no_sideways_scroll(page)


def test_the_first_screen_of_a_phone_holds_the_answer(chromium, report: str):
    """Headline, and the first three models with rank and score, before any scrolling; nothing is cut at its end."""
    for page in watched(chromium, 390, "light"):
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(report)
        places = [
            page.locator("#answer .headline"),
            *(page.locator("#answer .rung").nth(k) for k in range(3)),
        ]
        for place in places:
            box = place.bounding_box()
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 844
        ends = page.evaluate("""() => [...document.querySelectorAll('#answer .name')].map(n => {
            const row = n.closest('.who').getBoundingClientRect();
            return n.scrollWidth <= n.clientWidth + 1 && n.getBoundingClientRect().right <= row.right + 1;
        })""")
        assert ends
        assert all(ends)
        marks = page.evaluate("""() => [...document.querySelectorAll('.standings:not(.outlook) .axes .scale i')]
            .filter(i => i.offsetParent).map(i => i.getBoundingClientRect()).sort((a, b) => a.left - b.left)
            .filter((b, k, all) => k && b.left < all[k - 1].right + 2).length""")
        assert marks == 0, "labels of an axis touch"


def test_without_a_script_there_are_tables_and_charts(chromium, report: str):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report)
    page.locator("#scores > details > summary").click()
    rows = page.locator("#matrix .view:visible tbody tr")
    assert rows.count() == 4
    assert re.match(r"0\.\d{3}", rows.first.locator("td.score").first.inner_text())
    page.locator(
        "#matrix label", has_text=re.compile("^before fine-tuning$")
    ).click()  # another protocol, without a script
    assert page.locator("#matrix .view:visible table").get_attribute("data-protocol") == "direct"
    unfold(page, "agreement")
    assert page.locator("#agreement svg.chart rect").first.is_visible()
    page.locator("#agreement details.tables > summary").click()
    assert page.locator("#agreement details.tables tbody tr").first.is_visible()
    context.close()


def count_pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page[^s]", pdf))


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_paper_has_the_answer_the_scores_and_how_they_were_made(
    chromium, report: str, script: bool
):
    """Without background graphics, and with all sections folded when the reader prints."""
    context = chromium.new_context(java_script_enabled=script)
    page = context.new_page()
    page.goto(report)
    page.emulate_media(media="print")
    sections = page.locator("main > section")
    printed = [
        sections.nth(number).get_attribute("id")
        for number in range(sections.count())
        if sections.nth(number).is_visible()
    ]
    assert printed == ["answer", "scores", "how"]
    assert page.locator("#scores table.scores").first.bounding_box()["height"] > 20
    assert 2 <= count_pages(page.pdf(format="A4", print_background=False)) <= 8
    context.close()


def test_every_section_is_printed_where_that_is_asked_for(page, report: str):
    page.goto(report)
    page.evaluate("window.print = () => window.dispatchEvent(new Event('beforeprint'))")
    page.locator("[data-print-all]").click()
    page.emulate_media(media="print")
    charts = page.locator("section:not(#cells) svg.chart")
    for number in range(charts.count()):
        height = charts.nth(number).bounding_box()["height"]
        assert height > 20, f"chart {number} of {charts.count()} is not printed"
    adjust = page.evaluate(
        "getComputedStyle(document.querySelector('#answer .dot')).printColorAdjust"
    )
    assert adjust == "exact", "tuned dots are printed in colour"
    assert charts.count() > 8
    all_pages = count_pages(page.pdf(format="A4", print_background=False))
    assert all_pages >= 5
    page.goto(f"{report}?print=all")
    assert count_pages(page.pdf(format="A4", print_background=False)) == all_pages


def test_matrix_toggles_sorts_and_filters(any_page, report: str):
    page = any_page
    page.goto(report)
    page.locator("#scores > details > summary").click()
    first = column(page, 3)
    page.locator("#matrix .tabs label", has_text=re.compile("^before fine-tuning$")).click()
    assert column(page, 3) != first
    page.locator("#matrix .tabs label", has_text="gain").click()
    assert any(text.startswith(("+", "-", "0")) for text in column(page, 3))
    page.locator("#matrix .tabs label", has_text=re.compile("^after fine-tuning$")).click()
    page.locator("#matrix .view:visible thead th.task button").first.click()
    values = [float(text.split("\n")[0]) for text in column(page, 3)]
    assert values == sorted(values, reverse=True)
    page.locator("#matrix .view:visible thead th.task button").first.click()
    values = [float(text.split("\n")[0]) for text in column(page, 3)]
    assert values == sorted(values)
    page.locator("#matrix [data-control=name]").fill("beta")
    assert [text.strip() for text in column(page, 1)] == ["beta-7b"]
    page.locator("#matrix [data-control=name]").fill("")
    page.locator("#matrix [data-control=family]").select_option("greek")
    assert page.locator("#matrix tbody tr:visible").count() == 3
    page.locator("#matrix [data-control=family]").select_option("")
    assert page.locator("#matrix td.failed:visible, #matrix td.missing:visible").count() == 1


def test_failed_cells_say_why(page, report: str):
    page.goto(report)
    assert (
        page.locator("#matrix td.failed span[title]").get_attribute("title")
        == "failed: it broke: <b>badly</b>"
    )


def test_predicted_cells_are_hatched_and_say_so(page, report: str):
    page.goto(report)
    page.locator("#predicted > details > summary").click()
    hatched = page.locator("#completed td.predicted")
    assert hatched.count() == 1
    assert "repeating-linear-gradient" in hatched.evaluate(
        "td => getComputedStyle(td).backgroundImage"
    )
    assert re.search(
        r"predicted, 95 % interval 0\.\d+ to [01]\.\d+", hatched.get_attribute("title")
    )
    assert page.locator("#matrix td.predicted").count() == 0
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download the completed matrix as CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8"))))
    assert [row["kind"] for row in rows].count("predicted") == 1
    assert len(rows) == 12


def test_hover_highlights_one_model(page, report: str):
    page.goto(report)
    unfold(page, "ranks")
    track = page.locator("#fig-bump-all-tasks g.track").nth(1)
    track.locator("text").first.hover()
    opacity = "nodes => nodes.map(n => getComputedStyle(n).opacity)"
    faint = page.locator("#fig-bump-all-tasks g.track").evaluate_all(opacity)
    assert faint.count("1") == 1
    assert len(faint) == 4


def test_evidence_of_a_pair(page, report: str):
    page.goto(report)
    unfold(page, "evidence")
    page.locator(".pairs").scroll_into_view_if_needed()
    page.locator("[data-pairs=detail] table").wait_for()
    page.locator("[data-pairs=first]").select_option(label="org/alpha-7b")
    page.locator("[data-pairs=second]").select_option(label=EVIL)
    detail = page.locator("[data-pairs=detail]")
    assert EVIL in detail.inner_text()
    assert detail.locator("tbody tr").count() == 3
    signs = [
        float(text.replace("−", "-"))
        for text in detail.locator("tbody td:nth-child(2)").all_inner_texts()
        if text != "–"
    ]
    page.locator("[data-pairs=first]").select_option(label=EVIL)
    page.locator("[data-pairs=second]").select_option(label="org/alpha-7b")
    turned = [
        float(text.replace("−", "-"))
        for text in detail.locator("tbody td:nth-child(2)").all_inner_texts()
        if text != "–"
    ]
    assert turned == [-value for value in signs]


def test_drill_down_from_a_score_to_its_items(page, report: str):
    page.goto(report)
    page.locator("#scores > details > summary").click()
    link = (
        page.locator("#matrix .view:visible tbody tr", has_text="alpha-7b")
        .locator("td.score a")
        .first
    )
    shown = link.inner_text()
    link.click()
    detail = page.locator("[data-cell=detail]")
    detail.locator("h3").wait_for()
    assert shown in detail.locator(".headline").inner_text()
    assert detail.locator("svg.chart path").count() >= 2
    curve = detail.locator("svg.chart").first
    assert "on validation" in curve.locator("text[transform]").text_content(), "the axis has a name"
    ends = curve.evaluate("""svg => [...svg.querySelectorAll('line.error')].flatMap(line =>
        [line.y1.baseVal.value, line.y2.baseVal.value])""")
    ticks = curve.evaluate(
        "svg => [...svg.querySelectorAll('line.grid')].map(line => line.y1.baseVal.value)"
    )
    assert min(ticks) <= min(ends)
    assert max(ends) <= max(ticks)
    assert detail.locator(".item").count() == 10
    assert (
        "</script><script>alert(2)</script>" in detail.locator(".item .prompt").first.inner_text()
    )
    detail.locator("select").select_option("wrong")
    assert detail.locator(".mark.right").count() == 0
    detail.locator("input[type=search]").fill("no such text")
    until(
        page,
        "document.querySelector('[data-cell=detail] [role=status]').textContent.startsWith('0–0 of 0')",
    )
    detail.locator("input[type=search]").fill("")
    detail.locator("select").select_option("all")
    detail.get_by_role("button", name="later →").click()
    until(
        page,
        "document.querySelector('[data-cell=detail] [role=status]').textContent.startsWith('11–20')",
    )


@pytest.mark.parametrize("format", ["png", "svg"])
def test_figures_can_be_taken_away(page, report: str, format: str):
    page.goto(report)
    unfold(page, "agreement")
    with page.expect_download() as taken:
        page.locator("#agreement figure").first.locator(f"[data-picture={format}]").click()
    content = Path(taken.value.path()).read_bytes()
    assert taken.value.suggested_filename.endswith(f".{format}")
    assert content.startswith(b"\x89PNG" if format == "png" else b"<svg")
    assert len(content) > 3000


def test_tables_can_be_taken_away(page, report: str):
    page.goto(report)
    unfold(page, "agreement")
    page.locator("#agreement details.tables > summary").click()
    with page.expect_download() as taken:
        page.locator("#agreement [data-csv]").first.click()
    rows = list(csv.reader(io.StringIO(Path(taken.value.path()).read_text())))
    assert len(rows) > 1
    assert all(len(row) == len(rows[0]) for row in rows)


def test_the_theme_changes_and_is_kept(page, report: str):
    page.goto(report)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
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
    page.locator("#scores > details > summary").focus()
    page.keyboard.press("Enter")
    page.locator("#matrix thead th.task button").first.focus()
    page.keyboard.press("Enter")
    assert (
        page.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')")
        == "descending"
    )
    page.locator("#matrix .tabs input:checked").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#matrix .tabs input:checked").get_attribute("id") == "matrix-view-direct"


def test_nothing_serious_for_accessibility(any_page, report: str):
    page = any_page
    page.goto(report)
    unfold(page, "ranks", "agreement", "evidence", "structure")
    for section in ("scores", "predicted", "how", "cells"):
        open_section(page, section)
    page.locator("#cells .item").first.wait_for()
    assert serious(page) == []


@pytest.fixture(scope="module")
def published(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    scores = shared_data / "published" / "train_before_test_scores.csv"
    return write_report(scores, tmp_path_factory.mktemp("published") / "r.html").as_uri()


@pytest.mark.shared
def test_the_published_scores_load_quickly_and_fit(any_page, published: str):
    page = any_page
    assert loading_work(page, published) < 60
    unfold(page, "ranks", "agreement", "evidence")
    assert no_sideways_scroll(page)
    assert page.locator("#matrix .view").first.locator("tbody tr").count() == 61
    overlaps = page.evaluate(
        """() => [...document.querySelectorAll('#fig-bump-all-tasks text[text-anchor=end]')]
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
        match = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert match, line
        self.address = match.group()
        urllib.request.urlopen(f"{self.address}/api/studies", timeout=PATIENCE).close()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = Serving(make_store(tmp_path_factory.mktemp("served") / "made.db"))
    urllib.request.urlopen(
        f"{running.address}/api/studies/{STUDY}/findings", timeout=PATIENCE
    ).close()
    yield running.address
    running.stop()


@pytest.mark.parametrize("section", ["", "/cells"])
def test_the_boards_own_pages_work(any_page, served: str, section: str):
    board_page(any_page, served, section)


@pytest.mark.parametrize(
    "section", ["/scores", "/predicted", "/ranks", "/agreement", "/evidence", "/structure", "/how"]
)
def test_every_section_works_on_the_board(chromium, served: str, section: str):
    """On a phone in the dark; wide and in the light they are the report's."""
    for page in watched(chromium, 390, "dark"):
        board_page(page, served, section)


def board_page(page, served: str, section: str) -> None:
    page.goto(f"{served}/studies/{STUDY}{section}", wait_until="load")
    if section in ("/ranks", "/agreement", "/evidence", "/structure"):
        unfold(page, section[1:])
    assert no_sideways_scroll(page)
    assert serious(page) == []


def test_the_board_pages_through_all_items(page, served: str):
    page.goto(f"{served}/studies/{STUDY}/scores")
    page.locator("#matrix tbody td.score a").first.click()
    page.locator("#cell-panel .item").first.wait_for()
    assert "of 60 examples" in page.locator("#cell-panel [role=status]").inner_text()
    page.get_by_role("button", name="later →").click()
    until(
        page, "document.querySelector('#cell-panel [role=status]').textContent.startsWith('11–20')"
    )
    page.locator("#cell-panel input[type=search]").fill("(59)")
    until(
        page,
        "document.querySelector('#cell-panel [role=status]').textContent.startsWith('1–1 of 1')",
    )
    assert serious(page) == []


def test_the_board_tells_who_may_be_best_as_cells_come_in(page, tmp_path: Path):
    """A quarter more cells are told as soon as the worker had a rest; fewer would be told a minute later."""
    open_cells = [
        (model, task) for model in ("org/c", "org/b") for task in ("arc_easy", "boolq")
    ] + [("org/c", "piqa")]
    models = ("org/a", "org/b", "org/c")
    store = make_store(tmp_path / "open.db", models=models, untuned=frozenset(open_cells))
    serving = Serving(store)
    try:
        page.goto(f"{serving.address}/studies/{STUDY}")
        until(page, "document.querySelectorAll('#outlook .rung').length === 3")
        assert "4 of 9 fine-tuned results" in page.locator("#outlook").inner_text()
        assert serious(page) == []
        for cell in open_cells[:4]:
            tune(store, *cell, right=2)
        until(
            page,
            "document.querySelector('#outlook')?.innerText.includes('8 of 9 fine-tuned results')",
        )
    finally:
        serving.stop()


def hold_back(monkeypatch: pytest.MonkeyPatch, *, after: int) -> threading.Event:
    """Let a run wait, once it has saved its fine-tunings so many times, until the event that is returned is set."""
    released, saved, save = threading.Event(), itertools.count(1), Lanes.save

    def save_and_wait(self: Lanes, *arguments: object, **options: object) -> object:
        answer = save(self, *arguments, **options)
        if next(saved) == after:
            assert released.wait(PATIENCE)
        return answer

    monkeypatch.setattr(Lanes, "save", save_and_wait)
    return released


def test_the_board_during_a_real_run(page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny.save_model(tmp_path / "m0", seed=0)
    tiny.save_questions(tmp_path / "colours.jsonl", n=60)
    watched_long_enough = hold_back(monkeypatch, after=6)
    store = tmp_path / "live.db"
    Store.open(store).close()
    tuning = {"epochs": 3, "learning_rates": [1e-3, 3e-3]}
    study = make_study(
        {
            "models": [str(tmp_path / "m0")],
            "tasks": [str(tmp_path / "colours.jsonl")],
            "tuning": tuning,
            "device": "cpu",
            "store": str(store),
        }
    )
    ended: list[RunResult] = []
    run = threading.Thread(target=lambda: ended.append(run_study(study)))
    serving = Serving(store)  # before the run has begun
    try:
        run.start()
        deadline = time.monotonic() + PATIENCE
        while not (keys := _studies(store)) and run.is_alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        page.goto(f"{serving.address}/studies/{keys[0]}")
        until(page, "document.querySelector('[data-live=link]').textContent === 'live'")
        until(page, "document.querySelector('[data-live=state]').classList.contains('on')")
        page.locator(".row-card").first.wait_for()
        page.locator(".lane svg path").first.wait_for(state="attached")
        watched_long_enough.set()
        until(page, "Number(document.getElementById('board')?.dataset.done) === 2")
        run.join(PATIENCE)
        assert ended[0].failed == 0
        until(page, "!document.querySelector('[data-live=state]').classList.contains('on')")
        page.locator("#answer .headline").wait_for()
        assert serious(page) == []
    finally:
        watched_long_enough.set()
        serving.stop()
        run.join(PATIENCE)


def _studies(store: Path) -> list[str]:
    with Store.open(store, readonly=True) as opened:
        return [record.key for record in opened.studies.read()]
