from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import potentia

REAL_MODELS = Path(__file__).parents[1] / "examples" / "real-models.csv"


@pytest.mark.parametrize("name", [name for name in dir(potentia) if not name.startswith("_")])
def test_every_public_name_is_there(name: str):
    assert getattr(potentia, name) is not None


def test_the_names_that_the_documents_use_are_there():
    """The list was once emptied by a tool that tidies imports, and nothing noticed."""
    root = Path(__file__).parents[1]
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    blocks = [
        block
        for page in pages
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    ]
    used = {
        name for block in blocks for name in re.findall(r"\bpotentia\.(\w+)\b(?!\.db)", block)
    } - {"db"}
    assert {
        "read",
        "rankings",
        "find_test_task",
        "find_stability",
        "find_proxies",
        "ProxyOptions",
    } <= used
    assert {name for name in used if not hasattr(potentia, name)} == set()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        _ = potentia.nothing_of_the_kind


def test_import_is_light():
    code = "import sys, potentia; sys.exit(1 if {'torch', 'numpy', 'transformers', 'pandas'} & set(sys.modules) else 0)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_module_is_had_without_the_rest():
    code = "import sys; from potentia import processes; sys.exit('potentia.api' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_analysis_takes_what_read_takes(tmp_path: Path):
    table = tmp_path / "scores.csv"
    rows = [
        f"m{model},t{task},{0.5 + model / 10 + task / 100:.3f}"
        for model in range(3)
        for task in range(3)
    ]
    table.write_text("\n".join(["model,benchmark,score", *rows]))
    evidence = potentia.read(table)
    options = potentia.RankingOptions()
    first = str(potentia.find_rankings(evidence, options))
    assert str(potentia.find_rankings(str(table), options)) == first
    assert str(potentia.find_rankings(evidence.to_frame()[["model", "task", "score"]], options))
    assert str(potentia.find_rankings(evidence.scores, options))


@pytest.mark.parametrize("source", [3, None, [1], object()])
def test_what_cannot_be_read_is_an_input_error(source: object):
    for use in (potentia.read, potentia.find_rankings, potentia.find_test_task):
        with pytest.raises(potentia.InputError, match="scores cannot be read from"):
            use(source)  # type: ignore[operator]


@pytest.mark.slow
def test_a_type_checker_sees_the_public_names(tmp_path: Path):
    """Everything from ``potentia`` was Any: a wrong argument passed a strict check."""
    code = "import potentia\nreveal_type(potentia.read)\npotentia.no_such_name\n"
    file = tmp_path / "use.py"
    file.write_text(code)
    command = [sys.executable, "-m", "mypy", str(file)]  # shares the cache of `make lint`
    result = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert "-> potentia.evidence.evidence.Evidence" in result
    assert 'has no attribute "no_such_name"' in result


def write_scores(path: Path) -> Path:
    rows = [
        f"{model},t{task},{0.5 + place / 10 + task / 100:.3f},0.01"
        for place, model in enumerate(("a", "b", "run@1000", "run@2000", "run@4000"))
        for task in range(3)
    ]
    path.write_text("\n".join(["model,benchmark,score,stderr", *rows]))
    return path


def test_python_has_the_names_of_the_commands(tmp_path: Path):
    table = write_scores(tmp_path / "scores.csv")
    for source in (table, str(table), potentia.read(table), potentia.read(table).to_frame()):
        assert potentia.rankings(source).scoreboard.headline()
        assert potentia.compare(source, "a", "b").sentences()
        assert "improve" in potentia.checkpoints(source).headline()
        assert potentia.benchmark(source, "t1").tables()
    assert potentia.report(table, tmp_path / "r.html").stat().st_size > 10_000


def test_what_a_notebook_shows_is_short(tmp_path: Path):
    evidence = potentia.read(write_scores(tmp_path / "scores.csv"))
    picture = potentia.rankings(evidence).aggregate["direct"].plot()
    assert repr(picture) == "Drawing('Rank by each way of aggregating: before fine-tuning')"
    assert repr(potentia.make_report(evidence)) == f"ReportData({evidence!r})"
    study = potentia.make_study({"models": ["a", "b"], "tasks": ["arc_easy"], "name": "first"})
    assert repr(study) == "Study('first', 2 models × 1 task × 2 protocols)"


def test_every_finding_is_a_frame_and_has_a_short_repr(tmp_path: Path):
    result = potentia.rankings(write_scores(tmp_path / "scores.csv"))
    for finding in (result, *result.findings_by_name().values()):
        assert len(repr(finding)) <= 200
        assert repr(finding).startswith(type(finding).__name__)
        if finding.tables():
            frame = finding.to_frame()
            assert all(column.isidentifier() and column.islower() for column in frame.columns)
            assert len(frame) == len(finding.tables()[0].rows)
    with pytest.raises(LookupError, match="no table 'nothing'"):
        result.to_frame("nothing")


NUMBER = re.compile(r"[<>+−-]?\s?\d[\d.,]*\s?(%|±|\(|to|–|of|$)")


def shows_number(text: str) -> bool:
    """Whether a cell is a number in words, and no sentence or name."""
    return NUMBER.match(text) is not None and len(text.split()) < 7


def test_what_a_frame_shows_as_a_number_is_a_number():
    """An interval, a share, a rank with its range: each part has a column of its own, to sort and to plot."""
    source = str(REAL_MODELS)
    rankings = potentia.rankings(source)
    first, second = list(rankings.scoreboard.names)[:2]
    findings = rankings.findings_by_name()
    findings["compare"] = potentia.compare(source, first, second)
    findings["benchmark"] = potentia.benchmark(source, rankings.scoreboard.tasks[0])
    for name, finding in findings.items():
        for number in range(len(finding.tables())):
            frame = finding.to_frame(number)
            for column in frame.columns:
                texts = [cell for cell in frame[column] if isinstance(cell, str)]
                assert not any(shows_number(text) for text in texts), (name, column, texts[:3])


def test_the_scoreboard_and_a_pair_are_frames_of_numbers():
    rankings = potentia.rankings(str(REAL_MODELS))
    frame = rankings.to_frame()
    expected = ["rank", "rank_low", "rank_high", "p_first", "direct", "direct_low", "direct_high"]
    assert set(expected) <= set(frame.columns)
    assert all(frame[column].dtype.kind in "if" for column in expected)
    first, second = list(rankings.scoreboard.names)[:2]
    pair = potentia.compare(str(REAL_MODELS), first, second).to_frame()
    assert set(pair["significant"].dropna()) <= {True, False}
    assert (pair["low"] <= pair["difference"]).all()
    assert (pair["difference"] <= pair["high"]).all()


def test_swapped_arguments_are_noticed_and_the_order_is_said(tmp_path: Path):
    """The command line takes the source last, Python first."""
    table = write_scores(tmp_path / "scores.csv")
    with pytest.raises(ValueError, match="in Python the source comes first"):
        potentia.compare("a", "b", str(table))


def test_rankings_have_a_headline(tmp_path: Path):
    rankings = potentia.rankings(write_scores(tmp_path / "scores.csv"))
    assert rankings.headline() == rankings.scoreboard.headline()
    assert rankings.sentences()[0] == rankings.headline()


def test_every_public_function_says_its_parameters_and_gives_an_example():
    import inspect

    for name in ("rankings", "compare", "benchmark", "checkpoints", "exposure", "report"):
        text = inspect.getdoc(getattr(potentia, name)) or ""
        assert "Args:" in text, name
        assert "Example:" in text, name
    for name in ("evaluate", "select"):
        assert "Args:" in (inspect.getdoc(getattr(potentia, name)) or "")
    for name in potentia.api.__all__:
        value = getattr(potentia, name)
        if inspect.isfunction(value):
            kinds = {p.kind for p in inspect.signature(value).parameters.values()}
            assert inspect.Parameter.VAR_KEYWORD not in kinds, name


@pytest.mark.parametrize("name", sorted(potentia.api.__all__))
def test_every_public_function_has_its_arguments_and_an_example(name: str) -> None:
    function = getattr(potentia, name)
    if not inspect.isfunction(function):
        return
    text = inspect.getdoc(function) or ""
    described = re.findall(r"^ +\*?(\w+): ", text.split("Args:")[-1], flags=re.MULTILINE)
    parameters = list(inspect.signature(inspect.unwrap(function)).parameters)
    assert described[: len(parameters)] == parameters
    assert ">>> " in text.split("Example:")[-1]


def test_what_is_read_says_its_size_and_not_its_arrays(tmp_path: Path) -> None:
    table = tmp_path / "scores.csv"
    table.write_text("model,arc_easy,boolq\na,0.5,0.6\nb,0.4,\n")
    evidence = potentia.read(table)
    matrix = "ScoreMatrix('direct', 2 models × 2 tasks, 1 missing)"
    assert repr(evidence) == f"Evidence('scores.csv': {matrix})"


def test_a_model_is_found_by_the_name_that_tables_show(tmp_path: Path) -> None:
    """Tables say "a" of org/a, and --model a was answered with "no model 'a'"."""
    table = tmp_path / "scores.csv"
    table.write_text("model,arc_easy\norg/a,0.5\norg/b,0.4\nx/c,0.3\ny/c,0.2\n")
    evidence = potentia.read(table, models=["A", "org/b"])
    assert list(evidence.models) == ["org/a", "org/b"]
    with pytest.raises(potentia.InputError, match="no model 'c'"):
        potentia.read(table, models=["c"])
