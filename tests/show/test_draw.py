"""Every chart type in every format, and labels that never collide at 61 models."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from potentia.errors import InputError
from potentia.show import draw, draw_all
from potentia.show.charts import stand_in_row
from potentia.show.drawing import inline_svg
from potentia.show.page import asset
from potentia.show.svg import FONT_SIZE, estimate_width, make_scale, shorten_names
from potentia.values.findings import Bars, Bump, Chart, Heatmap, Line, Plot, Points, short_names
from potentia.values.wording import set_signs

MODELS = tuple(f"organisation/A-Rather-Long-Name-{i}-Instruct" for i in range(61))
RNG = np.random.default_rng(0)
SPREAD = RNG.normal(size=61)

CHARTS: dict[str, Chart] = {
    "heatmap": Heatmap(
        "heat", "A title", "A caption.", MODELS[:5], MODELS[:7], RNG.normal(size=(5, 7)), unit="τ"
    ),
    "gapped": Heatmap(
        "gap",
        "Gaps",
        "",
        ("a",),
        ("b", "c"),
        np.array([[np.nan, 0.5]]),
        diverging=True,
        digits=None,
    ),
    "bars": Bars(
        "bars",
        "Bars",
        "Two series.",
        MODELS,
        {"one": tuple(SPREAD), "two": tuple(SPREAD + 1)},
        low={"one": tuple(SPREAD - 0.1)},
        high={"one": tuple(SPREAD + 0.2)},
        y_label="τ",
    ),
    "one series": Bars("lying", "Bars", "", MODELS, {"one": tuple(SPREAD)}),
    "scatter": Plot(
        "plot",
        "Scatter",
        "With a fit.",
        points=(Points("a", tuple(10.0 ** (20 + SPREAD)), tuple(SPREAD), MODELS),),
        lines=(
            Line("fit", (1e19, 1e22), (-1.0, 1.0), low=(-1.5, 0.5), high=(-0.5, 1.5), dashed=True),
        ),
        x_label="FLOPs",
        log_x=True,
    ),
    "row of points": Plot(
        "dots",
        "Dots",
        "",
        points=(
            Points(
                "a",
                tuple(map(float, range(1, 62))),
                tuple(SPREAD),
                MODELS,
                low=tuple(SPREAD - 1),
                high=tuple(SPREAD + 1),
            ),
        ),
    ),
    "bump": Bump(
        "bump",
        "Bump",
        "Ranks.",
        MODELS,
        ("nq_open", "arc_challenge"),
        np.stack([np.arange(1, 62), RNG.permutation(61) + 1], axis=1),
        groups=tuple(f"family {i % 10}" for i in range(61)),
    ),
}
MAGIC = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<svg"}


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("format", ["svg", "png"])
def test_every_chart_in_a_paper_format(name, format):
    assert draw(CHARTS[name], format).startswith(MAGIC[format])


def test_pictures_are_the_same_every_time():
    for format in ("svg", "png"):
        first, second = (draw(CHARTS["heatmap"], format) for _ in range(2))
        assert first == second
    assert draw(CHARTS["heatmap"], "pdf").startswith(MAGIC["pdf"])


@pytest.mark.parametrize("name", CHARTS)
def test_the_page_has_the_same_drawing_as_the_file(name):
    page, width = inline_svg(CHARTS[name])
    ET.fromstring(page)
    alone = draw(CHARTS[name], "svg", titles=False).decode()
    assert page.partition(">")[2].removesuffix("</svg>") in alone
    assert (
        "style=" not in page.partition(">")[2]
    )  # colours are classes: light, dark and paper share the drawing
    assert "nan" not in re.sub(r"<title>.*?</title>", "", page)
    assert width < 1200 or name == "gapped"


def test_titles_can_be_left_out():
    assert b">A title</text>" in draw(CHARTS["heatmap"], "svg")
    assert b">A title</text>" not in draw(CHARTS["heatmap"], "svg", titles=False)


def test_numbers_are_told_by_the_pointer():
    chart = CHARTS["heatmap"]
    page = inline_svg(chart)[0]
    assert (
        f"<title>{MODELS[0]}, {MODELS[0]}: {set_signs(f'{chart.values[0, 0]:.3f}')}</title>" in page
    )
    assert f"{MODELS[3]}: rank nq_open 4, arc_challenge" in inline_svg(CHARTS["bump"])[0]


def _boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """Where the names of models stand, by the widths that the drawing reckons with."""
    boxes = []
    for node in ET.fromstring(svg).iter("text"):
        text = (node.text or "").strip()
        if "x" not in node.attrib or "Rather" not in text:
            continue
        wide = estimate_width(text, FONT_SIZE - 2 if node.get("class") == "small" else FONT_SIZE)
        x, y = float(node.attrib["x"]), float(node.attrib["y"])
        left_edge = x - wide if node.get("text-anchor") == "end" else x
        boxes.append((left_edge, y - 5, left_edge + wide, y + 5))
    return boxes


@pytest.mark.parametrize("name", ["bars", "one series", "scatter", "row of points", "bump"])
def test_labels_do_not_collide_at_61_models(name):
    svg, width = inline_svg(CHARTS[name])
    boxes = _boxes(svg)
    assert len(boxes) >= (122 if name == "bump" else 5 if name == "scatter" else 61)
    for i, first in enumerate(boxes):
        assert first[0] >= -1
        assert first[2] <= width + 1
        for second in boxes[i + 1 :]:
            overlap = (
                min(first[2], second[2]) - max(first[0], second[0]),
                min(first[3], second[3]) - max(first[1], second[1]),
            )
            assert min(overlap) <= 0


def test_long_names_lose_their_middle():
    names = [
        "TinyLlama-1.1B-Chat-v1.0-a-long-suffix",
        "TinyLlama-1.1B-Chat-v1.0-a-long-suffix+exposed",
        "short",
    ]
    shown = shorten_names(names, 26)
    assert shown[2] == "short"
    assert shown[1].endswith("fix+exposed")
    assert len(set(shown)) == 3
    assert shorten_names(["a" * 40 + "b" * 40, "a" * 41 + "b" * 40], 20) == [
        "a" * 40 + "b" * 40,
        "a" * 41 + "b" * 40,
    ]


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ((0.0, 1.0), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((1.0, 12.0), ["0", "5", "10", "15"]),
        ((0.31, 0.34), ["0.310", "0.320", "0.330", "0.340"]),
        ((-0.02, 0.05), ["-0.02", "0.00", "0.02", "0.04", "0.06"]),
        ((3.0, 3.0), ["3.0", "3.5"]),
    ],
)
def test_scales_end_at_round_marks(values, marks):
    scale = make_scale(values, 0, 100)
    assert [float(text) for _, text in scale.marks] == [float(m) for m in marks]
    assert scale.low <= values[0] <= values[1] <= scale.high


def test_a_logarithmic_scale_is_marked_at_powers():
    assert [text for _, text in make_scale((1e19, 1e22), 0, 1, is_logarithmic=True).marks] == [
        "10¹⁹",
        "10²⁰",
        "10²¹",
        "10²²",
    ]
    assert [text for _, text in make_scale((2.0, 30.0), 0, 1, is_logarithmic=True).marks] == [
        "2",
        "5",
        "10",
        "20",
    ]


def test_files_are_named_after_their_charts(tmp_path):
    odd = Bars("few_shot:5 against/direct", "Bars", "", ("a",), {"s": (1.0,)})
    written = draw_all([odd], tmp_path / "new", ("svg", "png"))
    assert [p.name for p in written] == [
        "few_shot-5-against-direct.svg",
        "few_shot-5-against-direct.png",
    ]
    assert all(p.stat().st_size for p in written)


def test_unknown_format_and_chart():
    with pytest.raises(InputError, match="no figure format 'bmp'"):
        draw(CHARTS["bars"], "bmp")
    with pytest.raises(InputError, match="no drawing"):
        draw(Chart("x", "y", "z"), "png")


def test_names_lose_their_organisation_only_where_that_is_safe():
    assert short_names(("a/x", "b/y")) == ["x", "y"]
    assert short_names(("a/x", "b/x", "c/z")) == ["a/x", "b/x", "z"]
    assert stand_in_row((1.0, 2.0), ("a", "b"))
    assert not stand_in_row((1.0, 3.0), ("a", "b"))
    assert not stand_in_row((), ())


def test_colours_differ_in_lightness_for_any_eye():
    """Under simulated deuteranopia (Machado) every two of the first six colours stay apart."""
    matrix = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
    colours = re.findall(r"--c\d: (#\w{6})", asset("report.css"))
    seen = [matrix @ [int(c[k : k + 2], 16) / 255 for k in (1, 3, 5)] for c in colours[:6]]
    apart = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[i + 1 :]]
    assert min(apart) > 0.12


def test_the_legend_has_the_dashes_of_its_line():
    lines = (
        Line("plain", (0.0, 1.0), (0.0, 1.0)),
        Line("dashed", (0.0, 1.0), (1.0, 0.0), dashed=True),
    )
    svg, _ = inline_svg(Plot("lines", "Lines", "", lines=lines))
    assert svg.count('stroke-dasharray="6 4"') == 2, "the line and its entry"


def test_what_the_colours_mean_is_not_cut():
    words = "1  share won − lost"
    chart = Heatmap(
        "map",
        "Map",
        "",
        ("a", "b"),
        ("a", "b"),
        np.array([[np.nan, 1.0], [-1.0, np.nan]]),
        low=-1.0,
        high=1.0,
        diverging=True,
        digits=None,
        unit="share won − lost",
    )
    svg, width = inline_svg(chart)
    start = re.search(rf'<text x="([\d.]+)"[^>]*>{words}<', svg)
    assert start is not None
    assert float(start[1]) + estimate_width(words) <= width


def test_agreement_below_zero_has_a_colour_of_its_own():
    chart = Heatmap(
        "tau",
        "τ",
        "",
        ("a", "b"),
        ("x", "y"),
        np.array([[1.0, -0.5], [0.0, 0.5]]),
        low=-1.0,
        high=1.0,
    )
    drawn = inline_svg(chart)[0]
    assert re.findall(r'class="down" fill-opacity="[\d.]+"><title>(.*?)</title>', drawn) == [
        "a, y: −0.500"
    ]
