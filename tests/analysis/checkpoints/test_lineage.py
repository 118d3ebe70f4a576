import pytest

from potentia.analysis.checkpoints import (
    Checkpoint,
    named_checkpoints,
    pair_models,
    read_checkpoints,
    read_pairs,
)
from potentia.errors import DataError
from potentia.facts import models


def test_names_of_a_study_say_series_and_step():
    checkpoints = named_checkpoints(["org/run@1000", "run@step20", "plain", "a@b"])
    assert checkpoints == {
        "org/run@1000": Checkpoint("org/run", 1000.0),
        "run@step20": Checkpoint("run", 20.0),
    }


def test_a_table_says_steps_or_tokens(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("model,series,step,tokens\na,r,10,1e9\nb,r,20,2e9\n")
    assert read_checkpoints(path) == (
        {"a": Checkpoint("r", 10.0), "b": Checkpoint("r", 20.0)},
        "steps",
    )
    assert read_checkpoints(path, "tokens")[0]["b"] == Checkpoint("r", 2e9)
    path.write_text("model,tokens\na,5\n")
    assert read_checkpoints(path) == ({"a": Checkpoint("series", 5.0)}, "tokens")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("series,step\nr,1\n", "column model is missing"),
        ("model,series\na,r\n", "column tokens is missing"),
        ("model,step\na,many\n", "'many' is not a number"),
        ("model,step\n,3\n", "a name is empty"),
    ],
)
def test_bad_tables_are_named_with_their_place(tmp_path, text, complaint):
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=complaint):
        read_checkpoints(path)


def test_pairs_come_from_facts_from_the_study_or_from_a_table(tmp_path):
    names = [
        "Qwen/Qwen2-7B-Instruct",
        "Qwen/Qwen2-7B",
        "mine",
        "mine-chat",
        "EleutherAI/pythia-12b",
    ]
    assert pair_models(names, models()) == {"Qwen/Qwen2-7B": "Qwen/Qwen2-7B-Instruct"}
    assert pair_models(names, models(), {"mine-chat": "mine"})["mine"] == "mine-chat"
    path = tmp_path / "pairs.csv"
    path.write_text("base,instruct\nx,y\n")
    assert read_pairs(path) == {"x": "y"}
