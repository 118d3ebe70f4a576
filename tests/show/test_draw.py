"""Every chart type in every format, and labels that never collide at 61 models."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects
import pytest

from potentia.errors import InputError
from potentia.show import draw, draw_all, interactive
from potentia.show import matplotlib_figures as paper
from potentia.show.palette import COLOURS, by_position
from potentia.values.findings import Bars, Bump, Chart, Heatmap, Line, Plot, Points, short_names

MODELS = tuple(f"organisation/A-Rather-Long-Name-{i}-Instruct" for i in range(61))
RNG = np.random.default_rng(0)
SPREAD = RNG.normal(size=61)

CHARTS: dict[str, Chart] = {
    "heatmap": Heatmap("heat", "A title", "A caption.", MODELS[:5], MODELS[:7], RNG.normal(size=(5, 7)), unit="τ"),
    "gapped": Heatmap("gap", "Gaps", "", ("a",), ("b", "c"), np.array([[np.nan, 0.5]]), diverging=True, digits=None),
    "bars": Bars("bars", "Bars", "Two series.", MODELS, {"one": tuple(SPREAD), "two": tuple(SPREAD + 1)},
                 low={"one": tuple(SPREAD - 0.1)}, high={"one": tuple(SPREAD + 0.2)}, y_label="τ"),
    "lying bars": Bars("lying", "Bars", "", MODELS, {"one": tuple(SPREAD)}, horizontal=True),
    "scatter": Plot("plot", "Scatter", "With a fit.",
                    points=(Points("a", tuple(10.0 ** (20 + SPREAD)), tuple(SPREAD), MODELS),),
                    lines=(Line("fit", (1e19, 1e22), (-1.0, 1.0), low=(-1.5, 0.5), high=(-0.5, 1.5), dashed=True),),
                    x_label="FLOPs", log_x=True),
    "row of points": Plot("dots", "Dots", "", points=(Points("a", tuple(map(float, range(1, 62))), tuple(SPREAD),
                          MODELS, low=tuple(SPREAD - 1), high=tuple(SPREAD + 1)),)),
    "bump": Bump("bump", "Bump", "Ranks.", MODELS, ("nq_open", "arc_challenge"),
                 np.stack([np.arange(1, 62), RNG.permutation(61) + 1], axis=1),
                 groups=tuple(f"family {i % 10}" for i in range(61))),
}  # fmt: skip
MAGIC = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("format", ["svg", "png"])
def test_every_chart_in_a_paper_format(name, format):
    assert draw(CHARTS[name], format).startswith(MAGIC[format])


def test_pdf_is_the_same_every_time():
    first, second = (draw(CHARTS["heatmap"], "pdf") for _ in range(2))
    assert first.startswith(MAGIC["pdf"])
    assert first == second


@pytest.mark.parametrize("name", CHARTS)
def test_plotly_takes_every_interactive_figure(name):
    figure = interactive(CHARTS[name])
    json.dumps(figure, allow_nan=False)
    plotly.graph_objects.Figure(figure)  # validates every attribute
    assert figure["layout"]["title"]["text"] == CHARTS[name].title


def test_html_needs_no_network():
    page = draw(CHARTS["heatmap"], "html").decode()
    assert "A title" in page
    assert '<script src="http' not in page


@pytest.mark.parametrize("name", ["bars", "lying bars", "scatter", "row of points", "bump"])
def test_labels_do_not_collide_at_61_models(name):
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with rc_context(paper.STYLE):
        figure = paper._DRAWERS[type(CHARTS[name])](CHARTS[name])
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        axes = figure.axes[0]
        shown = {text.split("/")[-1] for text in MODELS}
        texts = [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()]
        boxes = [t.get_window_extent(canvas.get_renderer()) for t in texts if any(s in t.get_text() for s in shown)]
    assert len(boxes) >= (122 if name == "bump" else 5 if name == "scatter" else 61)
    for i, one in enumerate(boxes):
        for two in boxes[i + 1 :]:
            overlap = min(one.x1, two.x1) - max(one.x0, two.x0), min(one.y1, two.y1) - max(one.y0, two.y0)
            assert min(overlap) <= 1.0  # pixels of line spacing


def test_files_are_named_after_their_charts(tmp_path):
    odd = Bars("few_shot:5 against/direct", "Bars", "", ("a",), {"s": (1.0,)})
    written = draw_all([odd], tmp_path / "new", ("svg", "png"))
    assert [p.name for p in written] == ["few_shot-5-against-direct.svg", "few_shot-5-against-direct.png"]
    assert all(p.stat().st_size for p in written)


def test_unknown_format_and_chart():
    with pytest.raises(InputError, match="no figure format 'bmp'"):
        draw(CHARTS["bars"], "bmp")
    with pytest.raises(InputError, match="no drawing"):
        draw(Chart("x", "y", "z"), "png")
    with pytest.raises(InputError, match="no drawing"):
        interactive(Chart("x", "y", "z"))


def test_names_lose_their_organisation_only_where_that_is_safe():
    assert short_names(("a/x", "b/y")) == ["x", "y"]
    assert short_names(("a/x", "b/x", "c/z")) == ["a/x", "b/x", "z"]
    assert by_position((1.0, 2.0), ("a", "b"))
    assert not by_position((1.0, 3.0), ("a", "b"))
    assert not by_position((), ())


def test_colours_differ_in_lightness_for_any_eye():
    """Under simulated deuteranopia (Machado) every two of the first six colours stay apart."""
    matrix = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
    seen = [matrix @ [int(c[k : k + 2], 16) / 255 for k in (1, 3, 5)] for c in COLOURS[:6]]
    apart = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[i + 1 :]]
    assert min(apart) > 0.12
