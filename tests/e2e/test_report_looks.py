"""How the report looks in a real browser: nothing collides, nothing is cut, what is compared is on one scale."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from test_report_browser import chromium, no_sideways_scroll, page, unfold, watched  # noqa: F401

from potentia.formats import write_scores
from potentia.show import write_report
from potentia.values.scores import ScoreMatrix

pytestmark = pytest.mark.browser
MODELS, TASKS = 61, 27


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores of 61 models on 27 tasks, of real length of name, without and with tuning."""
    stream = np.random.default_rng(4)
    models = [f"organisation/Family{k % 7}-{k}B-Instruct-v{k % 3}" for k in range(MODELS)]
    tasks = [f"commonsense_qa_{k:02d}" for k in range(TASKS)]
    skill = np.linspace(0.9, 0.3, MODELS)[:, None] - 0.05 * stream.random(TASKS)[None, :]
    scores = {}
    for protocol, noise in (("direct", 0.15), ("train_before_test", 0.02)):
        values = np.clip(skill + noise * stream.standard_normal(skill.shape), 0.02, 0.98)
        error = np.sqrt(values * (1 - values) / 1000)
        scores[protocol] = ScoreMatrix.build(models, tasks, values, stderr=error, protocol=protocol)
    folder = tmp_path_factory.mktemp("many")
    write_scores(scores, folder / "scores.csv")
    return folder / "scores.csv"


@pytest.fixture(scope="module")
def large(many: Path) -> str:
    return write_report(many, many.with_name("report.html")).as_uri()


@pytest.fixture
def phone(chromium):  # noqa: F811
    yield from watched(chromium, 390, "dark")


OVERLAPS = """([selector, side]) => {
    const boxes = [...document.querySelectorAll(selector)].map(t => t.getBoundingClientRect()).filter(b => b.width);
    const [from, to] = side === 'x' ? ['left', 'right'] : ['top', 'bottom'];
    boxes.sort((a, b) => a[from] - b[from]);
    return [boxes.length, boxes.filter((b, k) => k && b[from] < boxes[k - 1][to] - 1.5).length];
}"""


def overlaps(page, selector: str, side: str) -> int:  # noqa: F811
    count, found = page.evaluate(OVERLAPS, [selector, side])
    assert count > 10, "there are labels to look at"
    return found


def test_labels_of_27_tasks_do_not_collide_in_half_width(page, large: str):  # noqa: F811
    page.goto(large)
    unfold(page, "agreement")
    for name in ("direct", "train_before_test"):
        figure = f"#fig-agreement-{name}-kendall"
        assert overlaps(page, f"{figure} text[text-anchor=end][x]", "y") == 0
        assert overlaps(page, f"{figure} text[transform]", "x") == 0


def test_heat_maps_that_are_compared_stand_side_by_side_on_one_scale(page, large: str):  # noqa: F811
    page.goto(large)
    unfold(page, "agreement")
    figures = [
        page.locator(f"#fig-agreement-{name}-kendall") for name in ("direct", "train_before_test")
    ]
    boxes = [figure.bounding_box() for figure in figures]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert abs(boxes[0]["width"] - boxes[1]["width"]) < 2
    ends = [figure.locator("text.muted").all_inner_texts() for figure in figures]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 2


def test_the_first_twenty_of_61_are_told_apart_by_colour(page, large: str):  # noqa: F811
    page.goto(large)
    page.locator("#scores > details > summary").click()
    colours = page.evaluate("""() => [...document.querySelectorAll('#matrix tbody tr')].slice(0, 20).map(row =>
        getComputedStyle(row.querySelector('td.score')).backgroundColor)""")
    alpha = [float(c.rstrip(")").split(",")[-1]) for c in colours]
    assert len(set(colours)) >= 15
    assert max(alpha) - min(alpha) > 0.15


def test_the_bump_chart_is_whole_on_a_phone(phone, large: str):
    phone.goto(large)
    unfold(phone, "ranks")
    box = phone.evaluate("""() => {
        const svg = document.querySelector('#fig-bump-all-tasks svg'), frame = svg.getBoundingClientRect();
        const out = [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect())
            .filter(b => b.left < frame.left - 1 || b.right > frame.right + 1).length;
        return [out, svg.querySelectorAll('g.track').length];
    }""")
    assert box == [0, MODELS]
    assert no_sideways_scroll(phone)


def test_scores_and_ranks_stand_side_by_side_with_their_axes(page, large: str):  # noqa: F811
    page.goto(large)
    ladder = page.locator("#answer .ladder").first
    first = ladder.locator(".rung").first
    assert (
        first.locator(".bar.ranks .dot").count() == first.locator(".bar.scores .dot").count() == 1
    )
    assert first.locator(".bar.scores .ring").count() == 1
    ranks, scores = (
        ladder.locator(".axes .scale").nth(k).locator("i").all_inner_texts() for k in (0, 1)
    )
    assert ranks[0] == "1"
    assert ranks[-1] == "61"
    assert float(scores[0]) < float(scores[-1])
    before, after = first.locator(".numbers").inner_text().splitlines()[0].split(" → ")
    left, right = (first.locator(f".bar.scores .{k}").bounding_box()["x"] for k in ("ring", "dot"))
    assert (float(before) < float(after)) == (left < right)
    page.locator("#answer .standings details > summary").click()
    assert page.locator("#answer .rung:visible").count() == MODELS


COPY_NAMES = """(selector) => [...document.querySelectorAll(selector)].filter(n => n.checkVisibility()).map(n => {
    const range = document.createRange();
    range.selectNodeContents(n);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return getSelection().toString();
})"""


def test_names_are_short_whole_and_copied_as_they_are(page, phone, large: str):  # noqa: F811
    """Halves of a name, cut in the middle, were copied as two lines."""
    for view in (page, phone):
        view.goto(large)
        view.locator("#scores > details > summary").click()
        for selector in ("#answer .rung .name", "#matrix th.model"):
            names = view.evaluate(COPY_NAMES, selector)
            assert len(names) >= 10
            assert {
                name for name in names if not re.fullmatch(r"(Family[\w.-]+|model)", name)
            } == set()
        assert "organisation/" not in view.locator("#answer .headline").inner_text()


@pytest.fixture
def tablet(chromium):  # noqa: F811
    yield from watched(chromium, 768, "light")


def test_a_tablet_shows_the_first_section_and_ticks_that_do_not_collide(tablet, large: str):
    tablet.goto(large)
    first_link = tablet.locator("header.top nav a").first.bounding_box()
    navigation = tablet.locator("header.top nav").bounding_box()
    assert first_link["x"] >= navigation["x"], "the first section is not cut off"
    for axis in ("nth-child(2)", "nth-child(3)"):
        ticks = f".ladder .axes .scale:{axis} i"
        boxes = [box.bounding_box() for box in tablet.locator(ticks).all() if box.is_visible()]
        boxes.sort(key=lambda box: box["x"])
        for left, right in itertools.pairwise(boxes):
            assert left["x"] + left["width"] <= right["x"] + 1
    assert no_sideways_scroll(tablet)
