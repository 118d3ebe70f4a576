"""YAML from anyone: what is refused, with its line, at once and in little memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from potentia.errors import StudyError
from potentia.files import read_yaml
from potentia.study import read_study
from speed import loop_seconds

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [a]\ntasks: [b]\nmodels: [c]\n", "study.yaml:3: the key `models` is given twice"),
        (
            "models: [a]\ntasks: [b]\ntuning: {epochs: 1, epochs: 2}\n",
            "study.yaml:3: the key `epochs` is given twice",
        ),
        ("models: &m [a, *m]\n", "an alias that holds itself"),
        (BOMB, "values, its aliases written out"),
        (MERGED, "values, its aliases written out"),
        ("models: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("models: " + "[" * 60 + "]" * 60, "study.yaml:1: not valid YAML: it is nested too deeply"),
        ("models:\n" + "- " * 5000, "nested too deeply"),
        ("".join(" " * n + "a:\n" for n in range(500)), "nested too deeply"),
        ('models: ["\\ud800"]', "half of a Unicode character"),
        ('models: ["a\\0b"]', "a NUL character"),
        ("models: [2024-13-45]", "cannot read the study file"),
        ("models: [a]\ntasks: [b]\ntuning: {alpha: .inf}", "study.yaml:3"),
        ("1: 2", "keys are words"),
        ("x" * (2 * 2**20 + 1), "larger than 2 MiB"),
    ],
)
def test_it_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str):
    file = tmp_path / "study.yaml"
    file.write_text(text)
    began = time.process_time()
    with pytest.raises(StudyError) as refused:
        read_study(file)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 500
    assert time.process_time() - began < 250 * loop_seconds()


def test_a_path_that_is_none_is_told(tmp_path: Path):
    for path in (tmp_path / ("x" * 5000), tmp_path / "a\0b", tmp_path):
        with pytest.raises(StudyError, match=r"cannot read the study file|not a plain file"):
            read_study(path)


def test_aliases_within_reason_are_read(tmp_path: Path):
    file = tmp_path / "f.yaml"
    file.write_text("base: &b {x: 1}\nuse: {<<: *b, y: 2}\nagain: *b\n")
    value, _ = read_yaml(file, description="it")
    assert value == {"base": {"x": 1}, "use": {"x": 1, "y": 2}, "again": {"x": 1}}


def test_a_flag_that_is_no_text_is_told():
    with pytest.raises(StudyError, match="not Unicode text"):
        read_study(None, {"models": ["a"], "tasks": ["b"], "name": "\udcff"})
