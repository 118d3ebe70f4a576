"""How the report looks in a real browser: nothing collides, nothing is cut, what is compared is on one scale."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from test_report_browser import chromium, no_sideways_scroll, page, settle, until, watched  # noqa: F401

from made_store import make_store
from potentia.analysis.rankings import map_evidence
from potentia.formats import write_scores
from potentia.show import read_report, write_report
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
    settle(page, "agreement")
    for name in ("direct", "train_before_test"):
        figure = f"#fig-agreement-{name}-kendall"
        page.locator(figure).scroll_into_view_if_needed()
        page.wait_for_selector(f"{figure} .plot[data-drawn]")
        assert overlaps(page, f"{figure} .xtick text", "x") == 0
        assert overlaps(page, f"{figure} .ytick text", "y") == 0


def test_heat_maps_that_are_compared_stand_side_by_side_on_one_scale(page, large: str):  # noqa: F811
    page.goto(large)
    settle(page, "agreement")
    boxes, scales = [], []
    for name in ("direct", "train_before_test"):
        figure = page.locator(f"#fig-agreement-{name}-kendall")
        figure.scroll_into_view_if_needed()
        page.wait_for_selector(f"#fig-agreement-{name}-kendall .plot[data-drawn]")
        boxes.append(figure.bounding_box())
        scales.append(figure.locator(".plot").evaluate("p => [p.data[0].zmin, p.data[0].zmax, p.data[0].colorscale]"))
    tops = page.evaluate(
        "[...document.querySelectorAll('[id^=fig-agreement-][id$=-kendall]:not(.wide)')].map(f => f.offsetTop)"
    )
    assert len(tops) == 2
    assert tops[0] == tops[1]
    assert abs(boxes[0]["width"] - boxes[1]["width"]) < 2
    assert scales[0] == scales[1]


def test_no_row_of_figures_has_a_hole(page, large: str):  # noqa: F811
    page.goto(large)
    holes = page.evaluate("""() => [...document.querySelectorAll('.figures')].filter(g => g.offsetParent).flatMap(g => {
        const rows = new Map();
        for (const f of g.children) rows.set(f.offsetTop, (rows.get(f.offsetTop) || 0) + f.offsetWidth);
        return [...rows].filter(([, width]) => width < 0.95 * g.clientWidth - 25).map(([top]) => g.innerText);
    })""")
    assert holes == []


def test_the_first_twenty_of_61_are_told_apart_by_colour(page, large: str):  # noqa: F811
    page.goto(large)
    page.locator("#matrix tbody tr").first.wait_for()
    colours = page.evaluate("""() => [...document.querySelectorAll('#matrix tbody tr')].slice(0, 20).map(row =>
        getComputedStyle(row.querySelector('td.score')).backgroundColor)""")
    alpha = [float(c.rstrip(")").split(",")[-1]) for c in colours]
    assert len(set(colours)) >= 15
    assert max(alpha) - min(alpha) > 0.15


def test_the_bump_chart_is_whole_on_a_phone(phone, large: str):
    phone.goto(large)
    settle(phone, "ranks")
    box = phone.evaluate("""() => {
        const plot = document.querySelector('#fig-bump .plot'), scroll = plot.parentElement;
        const frame = scroll.getBoundingClientRect();
        const out = [...plot.querySelectorAll('.ytick text, .y2tick text, .xtick text')]
            .map(t => t.getBoundingClientRect())
            .filter(b => b.left < frame.left - 1 || b.right > frame.right + 1).length;
        return [scroll.scrollWidth - scroll.clientWidth, out, plot.querySelectorAll('.scatterlayer .trace').length];
    }""")
    assert box[0] <= 0
    assert box[1] == 0
    assert box[2] == MODELS + 1
    assert no_sideways_scroll(phone)


def test_scores_and_ranks_stand_side_by_side_with_their_axes(page, large: str):  # noqa: F811
    page.goto(large)
    ladder = page.locator("#answer .ladder")
    first = ladder.locator(".rung").first
    assert first.locator(".bar.ranks .dot").count() == first.locator(".bar.scores .dot").count() == 1
    assert first.locator(".bar.scores .ring").count() == 1
    ranks, scores = (ladder.locator(".axes .scale").nth(k).locator("i").all_inner_texts() for k in (0, 1))
    assert ranks[0] == "1"
    assert ranks[-1] == "61"
    assert float(scores[0]) < float(scores[-1])
    before, after = first.locator(".numbers").inner_text().splitlines()[0].split(" → ")
    left, right = (first.locator(f".bar.scores .{k}").bounding_box()["x"] for k in ("ring", "dot"))
    assert (float(before) < float(after)) == (left < right)
    page.locator("[data-show-rest]").click()
    assert ladder.locator(".rung:visible").count() == MODELS


def test_names_are_short_and_never_broken(page, phone, large: str):  # noqa: F811
    for view in (page, phone):
        view.goto(large)
        lines = view.evaluate(
            """() => [...document.querySelectorAll('#answer .whole, #answer .rung .who span:last-child')]
                .filter(n => n.offsetParent).map(n => n.getClientRects().length)"""
        )
        assert len(lines) > 10
        assert set(lines) == {1}
        assert "organisation/" not in view.locator("#answer .headline").inner_text()


def test_points_have_their_names_on_hover(page, tmp_path: Path):  # noqa: F811
    store = make_store(tmp_path / "made.db")
    facts = tmp_path / "facts.csv"
    facts.write_text("name,parameters_b,tokens_b\norg/alpha-7b,1,1000\norg/beta-7b,2,1000\norg/gamma-1b,3,2000\n")
    page.goto(write_report(store, tmp_path / "r.html", facts=facts).as_uri())
    settle(page, "structure")
    spot = page.locator("[id^=fig-compute] .scatterlayer .point").first
    spot.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    box = spot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("[id^=fig-compute] .hoverlayer .hovertext").first.wait_for()
    assert "-7b" in (page.locator("[id^=fig-compute] .hoverlayer").first.text_content() or "")


@pytest.mark.parametrize("kind", ["items", "errors"])
def test_the_page_compares_two_models_as_python_does(page, tmp_path: Path, many: Path, kind: str):  # noqa: F811
    source = make_store(tmp_path / "made.db") if kind == "items" else many
    data = read_report(source)
    page.goto(write_report(source, tmp_path / "r.html").as_uri())
    settle(page, "evidence")
    with page.expect_download() as taken:
        page.locator("[data-pairs-download=csv]").click()
    rows = list(csv.DictReader(io.StringIO(Path(taken.value.path()).read_text())))
    matrix = data.evidence.planned["train_before_test"]
    shown = list(dict.fromkeys(name for row in rows for name in (row["first"], row["second"])))
    found = map_evidence(matrix.select(models=shown), data.evidence.outcomes.get("train_before_test"))
    table = found.table()
    assert len(rows) == len(table.rows)
    for row, expected in zip(rows, table.rows, strict=True):
        given = dict(zip(table.columns, expected, strict=True))
        assert (row["first"], row["second"]) == (given["first"].lstrip("'"), given["second"]) or "<" in row["second"]
        assert [int(row[k]) for k in ("wins", "losses", "ties")] == [given[k] for k in ("wins", "losses", "ties")]
        assert float(row["mean difference"]) == pytest.approx(given["mean difference"], abs=2e-5)
        assert float(row["p"]) == pytest.approx(given["p"], rel=0.02, abs=1e-12)
        assert float(row["detectable"]) == pytest.approx(given["detectable"], rel=1e-3)


def test_a_long_table_grows_while_one_scrolls(page, tmp_path: Path):  # noqa: F811
    stream = np.random.default_rng(0)
    matrix = ScoreMatrix.build([f"m{k:03d}" for k in range(300)], ["a", "b", "c"], stream.random((300, 3)),
                               stderr=np.full((300, 3), 0.01))  # fmt: skip
    write_scores({"direct": matrix}, tmp_path / "scores.csv")
    page.goto(write_report(tmp_path / "scores.csv", tmp_path / "r.html").as_uri())
    rows = page.locator("#matrix tbody tr")
    rows.first.wait_for()
    assert rows.count() < 150
    assert "300 of 300 models" in page.locator("#matrix [data-count]").inner_text()
    for _ in range(8):
        page.locator("#matrix .scroll").evaluate("b => { b.scrollTop = b.scrollHeight; }")
        page.wait_for_timeout(60)
    until(page, "document.querySelectorAll('#matrix tbody tr').length === 300")
    page.locator("[data-control=name]").fill("m299")
    assert rows.count() == 1
