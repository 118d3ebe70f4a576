"""2,000 damaged files: each is read, or refused with a DataError; nothing else comes out."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import sqlite3
from pathlib import Path

import pytest

from potentia.errors import DataError
from potentia.formats import import_scores, write_scores
from potentia.store import Store
from potentia.values.scores import ScoreMatrix
from score_files import read_scores

PER_LAYOUT = 400
PIECES = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"NaN",
    b"nan",
    b"Infinity",
    b"-1e999",
    b"null",
    b"true",
    b'"',
    b"'",
    b",",
    b",,",
    b";",
    b"\n",
    b"\r",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"0",
    b"-",
    b"1e5",
    b"\xe2\x80\xa8",
    b"score",
    b'"results"',
    b"\\u0000",
    b"\\ud800",
    b"9" * 400,
    b"[" * 2000,
    b"\xef\xbb\xbf",
    b"PAR1",
    b"SQLite format 3\x00",
]


def seeds(folder: Path) -> dict[str, bytes]:
    matrix = ScoreMatrix.build(
        ["org/a", "b"], ["arc_easy", "wiki_2025"], [[0.5, 0.9], [0.25, 0.8]], stderr=[[0.1] * 2] * 2
    )
    write_scores(matrix, folder / "s.csv")
    write_scores(matrix, folder / "s.parquet")
    group = {"alias": "mmlu", "acc,none": 0.5, "acc_stderr,none": 0.1}
    harness = {
        "results": {
            "mmlu": group,
            "mmlu_x": group,
            "gsm8k": {"exact_match,strict-match": 0.1, "alias": "g"},
        },
        "groups": {"mmlu": group},
        "group_subtasks": {"mmlu": ["mmlu_x"], "gsm8k": []},
        "configs": {"mmlu_x": {"num_fewshot": 5}},
        "n-shot": {"mmlu": 5, "gsm8k": 0},
        "n-samples": {"mmlu": {"original": 10, "effective": 10}},
        "higher_is_better": {"mmlu": {"acc": True}},
        "config": {
            "model": "hf",
            "model_args": "pretrained=gpt2,revision=main",
            "num_fewshot": None,
        },
        "model_name": "gpt2",
    }
    old = {
        "results": {
            "harness|arc:challenge|25": {"acc": 0.5},
            "hendrycksTest-law": {"acc": 0.3, "acc_stderr": 0.1},
        }
    }
    paper = {
        "train_before_test": {"mnli": {"a": 0.9}},
        "train_before_test_stderr": {"mnli": {"a": 0.1}},
        "direct_eval": {"mnli": {"a": 0.5}},
    }
    with Store.open(folder / "s.db") as store:
        import_scores(store, {"direct": matrix}, source="here")
    return {
        "s.db": (folder / "s.db").read_bytes(),
        "s.csv": (folder / "s.csv").read_bytes(),
        "s.parquet": (folder / "s.parquet").read_bytes(),
        "new.json": json.dumps(harness).encode(),
        "old.json": json.dumps(old).encode(),
        "paper.json": json.dumps(paper).encode(),
    }


def damage(content: bytes, dice: random.Random) -> bytes:
    """Cut, insert, replace, double or swap something, one to three times."""
    data = bytearray(content)
    for _ in range(dice.randint(1, 3)):
        start = dice.randrange(len(data) + 1)
        end = min(len(data), start + dice.randint(0, 12))
        match dice.randrange(6):
            case 0:
                del data[start:]
            case 1:
                data[start:end] = dice.choice(PIECES)
            case 2:
                data[start:start] = dice.choice(PIECES)
            case 3:
                data[start:end] = bytes(dice.randrange(256) for _ in range(end - start))
            case 4:
                data[start:start] = data[start : start + dice.randint(1, 200)]
            case _:
                del data[start:end]
    return bytes(data)


@pytest.mark.parametrize(
    "name", ["s.csv", "s.parquet", "s.db", "new.json", "old.json", "paper.json"]
)
def test_damaged_files_never_crash(tmp_path: Path, name: str) -> None:
    content = seeds(tmp_path)[name]
    dice = random.Random(name)
    path = tmp_path / name
    refused = 0
    for number in range(PER_LAYOUT):
        data = damage(content, dice)
        path.write_bytes(data)
        try:
            for matrix in read_scores(path).values():
                assert matrix.shape[0] > 0
        except DataError as error:
            refused += str(path) in str(error)
        except Exception as error:
            raise AssertionError(
                f"{type(error).__name__} on damaged file {number}: {data[:300]!r}"
            ) from error
    assert refused > PER_LAYOUT // 8


VALUES = [
    None,
    True,
    3,
    -1,
    0.5,
    10**400,
    "",
    "x",
    "N/A",
    [],
    [1],
    {},
    {"a": 1},
    float("nan"),
    float("inf"),
]


@pytest.mark.parametrize("name", ["new.json", "old.json", "paper.json"])
def test_wrong_values_in_sound_json_never_crash(tmp_path: Path, name: str) -> None:
    content = seeds(tmp_path)[name]
    dice = random.Random(name)
    path = tmp_path / name
    for _ in range(PER_LAYOUT):
        tree = json.loads(content)
        for _ in range(dice.randint(1, 2)):
            node = tree
            while True:
                spot = dice.choice(list(node) if isinstance(node, dict) else range(len(node)))
                deeper = node[spot]
                if not isinstance(deeper, (dict, list)) or not deeper or dice.random() < 0.3:
                    node[spot] = copy.deepcopy(dice.choice(VALUES))
                    break
                node = deeper
        path.write_text(json.dumps(tree))
        with contextlib.suppress(DataError):
            read_scores(path)


@pytest.mark.parametrize(
    "column", ["scores.value", "scores.n", "cells.model", "cells.task", "cells.protocol"]
)
@pytest.mark.parametrize("value", ["'text'", "x'ff00'", "1e300"])
def test_wrong_values_in_a_store_never_crash(tmp_path: Path, column: str, value: str) -> None:
    path = tmp_path / "wrong.db"
    path.write_bytes(seeds(tmp_path)["s.db"])
    table, name = column.split(".")
    raw = sqlite3.connect(path)
    number = "id" if table == "cells" else "cell"
    assert raw.execute(f"UPDATE {table} SET {name} = {value} WHERE {number} = 1").rowcount == 1
    raw.commit()
    raw.close()
    with contextlib.suppress(DataError):
        read_scores(path)
