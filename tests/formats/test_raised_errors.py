"""A standard error that is smaller than the number of examples allows is raised, and that is said."""

import json

import pytest

from potentia import read


def write_results(folder, stderr, examples=500):
    for model in ("m1", "m2"):
        (folder / model).mkdir()
        result = {
            "results": {"arc_easy": {"acc,none": 0.6, "acc_stderr,none": stderr, "alias": "a"}},
            "configs": {"arc_easy": {"task": "arc_easy", "output_type": "multiple_choice"}},
            "n-samples": {"arc_easy": {"original": examples, "effective": examples}},
            "model_name": model,
            "config": {"model": "hf", "model_args": f"pretrained={model}"},
        }
        (folder / model / "results_2026-01-01T00-00-00.json").write_text(json.dumps(result))


def raised_notes(folder):
    return [note for note in read(folder).notes if "raised" in note]


def test_errors_that_are_too_small_are_noted(tmp_path):
    write_results(tmp_path, stderr=0.002)
    said = "standard errors of 2 scores raised to what their number of examples allows"
    assert raised_notes(tmp_path) == [said]


@pytest.mark.parametrize("stderr", [0.0219, 0.02193, 0.04])
def test_errors_that_are_right_rounded_or_larger_are_not(tmp_path, stderr):
    write_results(tmp_path, stderr=stderr)
    assert raised_notes(tmp_path) == []
