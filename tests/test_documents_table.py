"""The table of the documents' methods stays true: every command, function and report section is there."""

from __future__ import annotations

import importlib
import inspect
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import typer

import potentia
from potentia.cli.app import app
from potentia.cli.old_names import NEW_COMMANDS
from potentia.extensions import ExtensionKind, load_extensions
from potentia.papers import reproduce_bose, reproduce_proxy
from potentia.papers.printed import ReproducedNumber, rounds_to
from potentia.papers.task_training.evaluations import EvaluationTree
from potentia.papers.task_training.published_scores import PublishedScores
from potentia.papers.task_training.reproduction import reproduce_task_training
from potentia.papers.train_before_test.reproduction import reproduce_train_before_test
from potentia.show import sections

PAGE = Path(__file__).parents[1] / "docs" / "documents.md"
METHODS, _, _REST = PAGE.read_text("utf-8").partition("## Every numbered item")
_ITEMS_WITH_TALLY, _, SLIPS = _REST.partition("## Slips of the papers")
TALLY, _, _ITEMS = _ITEMS_WITH_TALLY.partition("### ")
ITEMS = f"### {_ITEMS}"  # a section for each document
MEASUREMENTS = PAGE.parent / "measurements.md"


def rows_of(text: str, first: str) -> list[list[str]]:
    return [
        [cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(f"| {first}")
    ]


ROWS = rows_of(METHODS, "document")
NUMBERED = {  # how many figures, tables and algorithms each document numbers; its numbered equations
    "Train-before-test": {"figure": 15, "table": 8, "algorithm": 3},
    "Training on the test task": {"figure": 20, "table": 5, "equation": 6},
    "Proxy tasks": {"figure": 1, "table": 10, "algorithm": 1},
    "BOSE": {"figure": 5, "table": 12},
}


@pytest.mark.parametrize("document", NUMBERED)
def test_every_numbered_item_has_a_state(document: str):
    (part,) = [part for part in ITEMS.split("### ") if part.startswith(document)]
    result: dict[str, list[int]] = {}
    for item, _, state in rows_of(part, "item"):
        kind = ""
        for word in re.findall(r"[a-z]+|\d+", item.replace("§ 3.", "").replace("§ 4.", "")):
            kind = word.removesuffix("s") if word.isalpha() else kind
            if word.isdigit() and kind in NUMBERED[document]:
                result.setdefault(kind, []).append(int(word))
        assert re.match(r"\d+ of \d+ agree|method|given|unreachable: ", state), state
    assert {kind: sorted(numbers) for kind, numbers in result.items()} == {
        kind: list(range(1, last + 1)) for kind, last in NUMBERED[document].items()
    }


def test_the_page_adds_up():
    agreeing = compared = 0
    items_by_state: dict[str, int] = {}
    for item, _, state in rows_of(ITEMS, "item"):
        counts = re.match(r"(\d+) of (\d+) agree", state)
        if counts is not None:
            agreeing += int(counts[1])
            compared += int(counts[2])
        kind = ""
        word = "agree" if counts is not None else re.split(r"\W", state)[0]
        for part in re.findall(r"[a-z]+|\d+", item.replace("§ 3.", "").replace("§ 4.", "")):
            kind = part.removesuffix("s") if part.isalpha() else kind
            if part.isdigit() and kind in ("figure", "table", "algorithm", "equation"):
                items_by_state[word] = items_by_state.get(word, 0) + 1
    assert (
        f"In all, {agreeing} of {compared} numbers and claims agree.** Of the other {compared - agreeing} "
        in TALLY
    )
    text = " ".join(TALLY.split())
    assert f"Of {sum(items_by_state.values())} numbered figures" in text
    assert (
        f"{items_by_state['agree']} have such numbers, {items_by_state['method']} are methods, "
        f"{items_by_state['given']} are lists, and {items_by_state['unreachable']} are unreachable"
    ) in text


def count_stated(document: str) -> tuple[int, int]:
    """Return how many numbers agree and how many are compared, by the states of a document's items."""
    (part,) = [part for part in ITEMS.split("### ") if part.startswith(document)]
    counts = [re.match(r"(\d+) of (\d+) agree", row[2]) for row in rows_of(part, "item")]
    found = [count for count in counts if count is not None]
    return sum(int(count[1]) for count in found), sum(int(count[2]) for count in found)


def test_the_tally_by_command_is_the_sum_of_the_states():
    tally = {row[0].split()[1]: row[1] for row in rows_of(TALLY, "command")}
    assert set(tally) == set(COMMANDS.values())
    for document, command in COMMANDS.items():
        agreeing, compared = count_stated(document)
        assert tally[command] == f"{agreeing} of {compared}", command


def test_the_measurements_say_the_same_of_the_first_paper():
    agreeing, compared = count_stated("Train-before-test")
    text = " ".join(MEASUREMENTS.read_text("utf-8").split())
    assert (
        f"compares {compared} printed numbers with the published scores: {agreeing} agree" in text
    )


@pytest.mark.parametrize("page", [PAGE.parents[1] / "README.md", *sorted(PAGE.parent.glob("*.md"))])
def test_no_page_cites_a_command_that_moved(page: Path):
    """`potentia tasks list` looked like `potentia tasks NAME`, so that the test of commands took it for true."""
    text = page.read_text("utf-8")
    for words in NEW_COMMANDS:
        old_command = f"potentia {' '.join(words)}"
        assert not re.search(rf"(?<!from ){re.escape(old_command)}(?![\w-])", text), old_command


def test_every_document_and_analysis_is_in_the_table():
    assert {row[0] for row in ROWS} == {"train-before-test", "test task", "proxies", "BOSE"}
    groups = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands = [row[2].split()[1:3] for row in ROWS if row[2].startswith("potentia ")]
    for group, name in (words for words in commands if words[0] in ("analyze", "papers")):
        assert name in groups[group].commands
    result = {words[1] for words in commands if len(words) > 1}
    assert {"rankings", "test-task", "checkpoints", "proxy"} <= result


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_a_row_names_things_that_are_there(row: list[str]):
    assert len(row) == 6
    assert all(row)
    command = typer.main.get_command(app)
    for word in row[2].split()[1:]:
        if command.name == "reproduce":  # which document is its argument
            break
        command = command.commands[word]  # type: ignore[attr-defined]
    module, _, name = row[3].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
    registered = {one.title for one in load_extensions(ExtensionKind.SECTION).values()}
    built_in = f'"{row[4]}"' in inspect.getsource(sections)
    assert row[4] == "–" or row[4] in registered or built_in


# --- states, as `potentia papers reproduce` prints them ------------------------------------------------------------

COMMANDS = {  # the argument of `potentia papers reproduce`
    "Train-before-test": "train-before-test",
    "Training on the test task": "test-task",
    "Proxy tasks": "proxy",
    "BOSE": "bose",
}
TEXT = frozenset({("text", 0)})  # a number of the text, of no figure or table


def items_in(text: str) -> frozenset[tuple[str, int]]:
    """Return the figures and tables that a text names: "figures 6 and 8, table 8"."""
    items = set()
    kind = ""
    for word in re.findall(r"[a-z]+|\d+", text.lower().partition(":")[0]):
        if word.isalpha():
            kind = word.removesuffix("s") if word not in ("and", "to") else kind
        elif kind in ("figure", "table"):
            items.add((kind, int(word)))
    return frozenset(items) or TEXT


def places_in(text: str) -> set[tuple[str, str]]:
    """Return the figures, tables, sections and appendices that a text names: "appendix C", "tables 3 and 4"."""
    places = set()
    kind = ""
    for word in re.findall(r"[A-Za-z]+(?:\.\d+)*|\d+(?:\.\d+)*", text):
        if word.lower() in ("appendix", "appendices"):
            kind = "appendix"
        elif word.lower().removesuffix("s") in ("figure", "table", "section"):
            kind = word.lower().removesuffix("s")
        elif kind and re.fullmatch(r"\d+(?:\.\d+)*|[A-G](?:\.\d+)*", word):
            places.add((kind, word))
        elif word not in ("and", "to"):
            kind = ""
    return places


def decimals_in(text: str) -> set[str]:
    """Return the numbers with a decimal point, without those of sections and names ("2.2", "Qwen 1.5")."""
    plain_text = text.replace("Qwen 1.5", "")
    return set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", plain_text)) - {
        number for _, number in places_in(text)
    }


def percentages_in(text: str) -> set[str]:
    """Return the whole numbers before a "%", also both of "19 and 33 %"."""
    found = re.findall(r"(?<![\d.])(?:(\d+) and )?(\d+) %", text)
    return {number for pair in found for number in pair if number}


def tells(line: ReproducedNumber, number: str) -> bool:
    """Whether a line of `reproduce` has the number: as ours, as printed, or in its remark; also as a share of one."""
    values = [float(word) for word in re.findall(r"\d+(?:\.\d+)?", f"{line.printed} {line.remark}")]
    values.append(line.ours)
    return any(rounds_to(value, number) or rounds_to(100 * value, number) for value in values)


def assert_told(text: str, numbers: set[str], lines: list[ReproducedNumber]) -> None:
    """Fail where none of the lines has a number of the text."""
    for number in numbers:
        assert any(tells(line, number) for line in lines), (text, number)


def reproduce(document: str, published: Path, evaluations: Path) -> Any:
    if document == "Train-before-test":
        scores = potentia.read(str(published / "train_before_test_scores.csv")).scores
        return reproduce_train_before_test(scores, resamples=20)
    if document == "Training on the test task":
        table = PublishedScores.from_table(published / "test_task_training_scores.csv")
        tree = EvaluationTree.read(evaluations)
        return reproduce_task_training(table, evaluations=tree, draws=0)
    return reproduce_proxy() if document == "Proxy tasks" else reproduce_bose()


@pytest.fixture(scope="module")
def reproductions(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `potentia papers reproduce` computes of every document."""
    published = shared_data / "published"
    evaluations = tmp_path_factory.mktemp("evaluations")
    with tarfile.open(published / "test_task_evaluations.tar.xz") as archive:
        archive.extractall(evaluations, filter="data")
    return {document: reproduce(document, published, evaluations) for document in NUMBERED}


@pytest.mark.shared
@pytest.mark.parametrize("document", NUMBERED)
def test_the_states_are_what_reproduce_prints(document: str, reproductions: dict[str, Any]):
    paper = reproductions[document]
    lines = [line for line in paper.lines() if line.agrees is not None or line.needs]
    needing = {items_in(line.place) for line in lines if line.needs}  # XGBoost, where it is missing
    unreachable = set()
    reasons = ""
    for missing in getattr(paper, "missing", ()):
        unreachable |= items_in(missing.figure)
        reasons += f"{missing.reason} "
    (part,) = [part for part in ITEMS.split("### ") if part.startswith(document)]
    counted = 0
    for item, _, state in rows_of(part, "item"):
        items = items_in(item)
        printed = [line for line in lines if items_in(line.place) & items]
        agreeing = sum(line.agrees for line in printed)
        counted += len(printed)
        if printed and not any(places & items for places in needing):
            assert state.startswith(f"{agreeing} of {len(printed)} agree"), (item, state, agreeing)
        elif not printed:
            assert not re.match(r"\d+ of", state), (item, state)
        assert_told(state, decimals_in(state), printed)
        if state.startswith("unreachable") and document == "Training on the test task":
            assert items <= unreachable, item
            for file_name in re.findall(r"`([^`]*/[^`]*)`", state):
                assert file_name in reasons, (item, file_name)
    for remark in re.findall(r"\(([^()]*figure \d+[^()]*)\)", part.partition("| item")[0]):
        near_lines = [line for line in lines if places_in(line.place) & places_in(remark)]
        assert_told(remark, decimals_in(remark), near_lines)
    assert counted == len(lines), "a number that no row counts, or two do"


@pytest.mark.shared
@pytest.mark.parametrize("document", NUMBERED)
def test_the_tally_says_what_follows_from_the_facts_alone(
    document: str, reproductions: dict[str, Any]
):
    by_facts = [line for line in reproductions[document].lines() if line.from_facts]
    compared = [line for line in by_facts if line.agrees is not None]
    expected = f"{sum(line.agrees for line in compared)} of {len(compared)}" if compared else "–"
    tally = {row[0].split()[1]: row[2] for row in rows_of(TALLY, "command")}
    assert tally[COMMANDS[document]] == expected


def test_the_table_of_the_real_study_is_what_rankings_print():
    examples = PAGE.parents[1] / "examples" / "real-models.csv"
    scoreboard = potentia.rankings(str(examples)).tables()[0]
    labels = ["before fine-tuning", "5-shot", "after fine-tuning"]
    columns = [scoreboard.columns.index(label) for label in labels]
    model_column = scoreboard.columns.index("model")
    printed = {}
    for row in scoreboard.rows:
        printed[row[model_column]] = [row[column].partition(" ")[0] for column in columns]
    page = (PAGE.parent / "reproduce.md").read_text("utf-8")
    table = {row[0]: row[1:] for row in rows_of(page, "model") if row[0] in printed}
    assert table == printed
    chances = [row[scoreboard.columns.index("P(first)")] for row in scoreboard.rows[:2]]
    assert f"({chances[0]}; its own copy {chances[1]})" in page


@pytest.mark.shared
@pytest.mark.parametrize("document", NUMBERED)
def test_the_slips_are_in_the_output_of_their_command(document: str, reproductions: dict[str, Any]):
    """Every number that a slip tells stands in the lines of `potentia papers reproduce` about the places it names."""
    lines = reproductions[document].lines()
    command = COMMANDS[document]
    commands = (f"reproduce {command}", f"potentia papers {command}")
    slips = [row[1] for row in rows_of(SLIPS, "paper") if row[2].startswith(commands)]
    assert slips
    for slip in slips:
        near_lines = [line for line in lines if places_in(line.place) & places_in(slip)]
        assert_told(slip, decimals_in(slip) | percentages_in(slip), near_lines)
