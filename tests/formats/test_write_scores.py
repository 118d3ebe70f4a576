"""What is written comes back the same; leaderboards rank by mean rank and mark the best."""

from __future__ import annotations

import math
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from potentia.errors import InputError, StoreError
from potentia.formats import import_scores, write_scores, write_tables
from potentia.formats.leaderboard import mean_ranks, render_latex, render_markdown
from potentia.formats.model_names import name_model_by_path
from potentia.formats.read import read_score_files
from potentia.store import Store
from potentia.values.findings import Table
from potentia.values.metric import Metric, Origin
from potentia.values.scores import ScoreMatrix
from potentia.values.seeds import pool_seed_variance
from score_files import read_scores

# Names as people write them, and worse: separators, quotes, slashes, dots, other alphabets.
NAMES = st.text(
    st.characters(
        blacklist_categories=["Cs", "Cc", "Zs", "Zl", "Zp"], blacklist_characters="\ufeff"
    ),
    min_size=1,
    max_size=12,
)
METRICS = (
    Metric("own", True, "task", "percent", 0.25),
    Metric("", False),
    Metric.of("bits_per_byte"),
    Metric.of("wer"),
    Metric("exact_match|strict-match", True, "task", "share"),
)
ORIGINS = (
    None,
    Origin(data="d", shots=0, path="plain"),
    Origin("d", "r", 0, "m", "other.csv", "static"),
)
VALUES = st.floats(allow_nan=False, allow_infinity=False, width=64)


@st.composite
def matrices(draw: st.DrawFn) -> dict[str, ScoreMatrix]:
    models = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    tasks = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    metrics = tuple(
        draw(st.lists(st.sampled_from(METRICS), min_size=len(tasks), max_size=len(tasks)))
    )
    result = {}
    for protocol in draw(st.lists(NAMES, min_size=1, max_size=2, unique=True)):
        shape = (len(models), len(tasks))
        cells = shape[0] * shape[1]
        value = st.one_of(VALUES, st.just(math.nan))
        values = np.array(draw(st.lists(value, min_size=cells, max_size=cells))).reshape(shape)
        stderr = np.abs(
            np.array(draw(st.lists(value, min_size=cells, max_size=cells))).reshape(shape)
        )
        count = st.one_of(st.integers(1, 2**40).map(float), st.just(math.nan))
        n = np.array(draw(st.lists(count, min_size=cells, max_size=cells))).reshape(shape)
        values[0, 0] = draw(VALUES)  # a matrix of gaps alone has nothing to write
        origins, seeds = np.full(shape, None, dtype=object), np.full(shape, None, dtype=object)
        for cell_position in np.ndindex(shape):
            origins[cell_position] = draw(st.sampled_from(ORIGINS))
            seeds[cell_position] = draw(
                st.sampled_from((None, (0.25, 1 / 3), (1e-9, -2.0, 0.1 + 0.2)))
            )
        result[protocol] = ScoreMatrix(
            protocol,
            tuple(models),
            tuple(tasks),
            values,
            stderr,
            n,
            metrics,
            origins=origins,
            seeds=seeds,
        )
    return result


def scores(
    found: dict[str, ScoreMatrix], *, imported: bool = False
) -> dict[tuple[str, str, str], tuple[Any, ...]]:
    """Every score that is there, in a form that can be compared."""
    return {
        (protocol, model, task): (
            float(matrix.values[i, j]),
            # of a huge score a small error is rounding, and none
            None if math.isnan(matrix.stderr[i, j]) else matrix.score(i, j).stderr,
            None if math.isnan(matrix.n[i, j]) else float(matrix.n[i, j]),
            matrix.metrics[j] if np.isfinite(matrix.values[:, j]).any() else None,
            matrix.score(i, j).seeds,
            replace(matrix.origin(i, j), source="here")
            if imported and not matrix.origin(i, j).source
            else matrix.origin(i, j),
        )
        for protocol, matrix in found.items()
        for i, model in enumerate(matrix.models)
        for j, task in enumerate(matrix.tasks)
        if not math.isnan(matrix.values[i, j])
    }


@pytest.mark.parametrize("sent", [METRICS, ORIGINS], ids=["metric", "origin"])
def test_every_field_is_sent_there_and_back(sent: tuple[Any, ...]) -> None:
    """A new field has to be given a value above, or its column would not be tried."""
    records = [record for record in sent if record is not None]
    for field in fields(records[0]):
        values = [getattr(record, field.name) for record in records]
        assert any(value != field.default for value in values), field.name


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(matrices(), st.sampled_from(["csv", "parquet", "lm-eval", "store"]))
def test_scores_survive_the_round_trip(found: dict[str, ScoreMatrix], format: str) -> None:
    if format == "lm-eval":  # which names a model by its path, without the slash at its end
        for matrix in found.values():
            assume(all(name_model_by_path(model) == model for model in matrix.models))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "scores"
        if format == "store":
            with Store.open(target) as store:
                import_scores(store, found, source="here")
                assert import_scores(store, found, source="here").new == 0
        else:
            write_scores(found, target, format)
        # what is read is evidence: the spread over seeds is pooled
        pooled = {protocol: pool_seed_variance(matrix) for protocol, matrix in found.items()}
        assert scores(read_scores(target)) == scores(pooled, imported=format == "store")


@pytest.mark.parametrize("format", ["csv", "parquet", "lm-eval", "store"])
@pytest.mark.parametrize("name", ["a\rb", "a\nb", "a\r\nb", "\rb", "b\r", '"', "=1", "a,b;c"])
def test_names_with_odd_characters_come_back(tmp_path: Path, name: str, format: str) -> None:
    result = {"direct": ScoreMatrix.build([name, "z"], ["t", "u"], [[0.1, 0.2], [0.3, 0.4]])}
    if format == "store":
        with Store.open(tmp_path / "s") as store:
            import_scores(store, result, source="here")
    else:
        write_scores(result, tmp_path / "s", format)
    assert set(read_scores(tmp_path / "s")["direct"].models) == {name, "z"}


def small() -> ScoreMatrix:
    return ScoreMatrix.build(
        ["org/a_1", "b|c", "d"],
        ["x", "wiki"],
        [[0.5, 1.0], [0.75, 0.9], [0.25, math.nan]],
        stderr=[[0.1, math.nan], [0.1, 0.01], [0.1, math.nan]],
        higher_is_better=[True, False],
        protocol="train_before_test",
    )


def test_mean_ranks_share_ties_and_stretch_over_gaps() -> None:
    matrix = ScoreMatrix.build(
        ["a", "b", "c"], ["x", "y"], [[3, 1], [3, math.nan], [1, 2]], higher_is_better=[True, False]
    )
    assert mean_ranks(matrix).tolist() == [(1.5 + 1) / 2, 1.5, (3 + 3) / 2]
    empty = ScoreMatrix.build(["a"], ["x"], [[math.nan]])
    assert math.isnan(mean_ranks(empty)[0])


def test_the_markdown_leaderboard() -> None:
    assert render_markdown(small()) == (
        "### after fine-tuning\n\n"
        "± is one standard error; the 95 % interval reaches 1.96 times as far.\n\n"
        "| # | model | mean rank | x | wiki ↓ |\n"
        "|--:|:--|--:|--:|--:|\n"
        "| 1 | b\\|c | 1.00 | **0.750 ± 0.100** | **0.900 ± 0.010** |\n"
        "| 2 | org/a_1 | 2.50 | 0.500 ± 0.100 | 1.000 |\n"
        "| 3 | d | 3.00 | 0.250 ± 0.100 | – |\n"
    )


def test_the_latex_leaderboard() -> None:
    text = render_latex(small())
    assert r"\# & model & mean rank & x & wiki $\downarrow$ \\" in text
    assert (
        r"1 & b|c & 1.00 & \textbf{0.750\,$\pm$\,0.100} & \textbf{0.900\,$\pm$\,0.010} \\" in text
    )
    assert r"2 & org/a\_1 & 2.50" in text
    assert text.count("{") == text.count("}")
    assert r"\begin{tabular}{rlrrr}" in text


def test_the_format_follows_from_the_name(tmp_path: Path) -> None:
    for name in ("s.csv", "s.parquet", "s.md", "s.tex"):
        assert write_scores(small(), tmp_path / "deep" / name) == [tmp_path / "deep" / name]
    selection = small().select(models=["d"])
    assert write_scores(selection, tmp_path / "s.json") == [tmp_path / "s.json"]
    assert read_scores(tmp_path / "s.json")["train_before_test"].models == ("d",)
    with pytest.raises(InputError, match="one model and one protocol"):
        write_scores(small(), tmp_path / "s.json")
    with pytest.raises(InputError, match="does not say the format"):
        write_scores(small(), tmp_path / "s.xyz")
    with pytest.raises(InputError, match="unknown format 'xml'"):
        write_scores(small(), tmp_path / "s.csv", "xml")
    with pytest.raises(InputError, match="no scores"):
        write_scores({}, tmp_path / "s.csv")
    with pytest.raises(StoreError, match="another file"):
        write_scores(small(), "/proc/s.csv")


def test_an_import_knows_where_it_came_from(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        done = import_scores(store, {"train_before_test": small()}, source="results/scores.csv")
        assert (done.study, done.new, done.known) == ("scores.csv", 5, 0)
        cell = store.cells.read(model="d")[0]
        assert cell.provenance.to_dict() == {"imported_from": "results/scores.csv"}
        assert store.cells.read_items(cell.key) == []


def test_names_that_look_like_formulas_stay_text(tmp_path: Path):
    """A spreadsheet computes a cell that begins with = + - @; what is read back is what was written."""
    names = ["=HYPERLINK(1)", "+1", "-2", "@x", "plain", "'quoted"]
    matrix = ScoreMatrix.build(
        names, ["=cmd|' /C calc'!A0"], [[0.1 * k] for k in range(6)], protocol="direct"
    )
    (file,) = write_scores(matrix, tmp_path / "scores.csv")
    import csv

    with file.open(newline="") as stream:
        cells = [
            value for row in csv.DictReader(stream) for value in (row["model"], row["benchmark"])
        ]
    assert not [value for value in cells if value.startswith(("=", "+", "-", "@"))]
    back = read_score_files(file).scores["direct"]
    assert sorted(back.models) == sorted(names)
    assert back.tasks == matrix.tasks


def test_every_table_as_booktabs_and_csv(tmp_path: Path) -> None:
    table = Table("τ of 50 % & more", ("model", "score"), (("a_b", 0.25), ("c", "0.3 ± 0.1")))
    tex, text = write_tables([table], tmp_path, ["latex", "csv"])
    latex = tex.read_text()
    assert r"\begin{tabular}{lr}" in latex
    assert r"\caption{$\tau$ of 50 \% \& more}" in latex
    assert r"a\_b & 0.250 \\" in latex
    assert r"c & 0.3 $\pm$ 0.1 \\" in latex
    assert text.read_text().splitlines() == ["model,score", "a_b,0.250", "c,0.3 ± 0.1"]
    assert str(table).splitlines()[1:] == ["model  score", "a_b    0.250", "c      0.3 ± 0.1"]
