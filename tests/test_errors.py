"""Hints of errors: what a name that is not there is answered with."""

import pytest

import potentia
from potentia.analysis.wording import format_p_value
from potentia.errors import InputError, suggest_names


def test_the_nearest_names_come_first_and_a_cut_list_says_so():
    tasks = [f"task_{number}" for number in range(23)] + ["boolq"]
    hint = suggest_names("bolq", tasks)
    assert hint.startswith("did you mean boolq? There are 24: boolq, ")
    assert hint.endswith(", …")


def test_a_short_list_is_whole():
    assert suggest_names("zzz", ["mnli", "qqp"]) == "there are: mnli, qqp"
    assert suggest_names("zzz", []) == "there are none"


def test_a_model_is_found_without_its_organisation():
    models = [f"other/model-{number}" for number in range(60)] + ["google/gemma-2-9b"]
    assert suggest_names("gemma-2-9x", models).startswith(
        "did you mean google/gemma-2-9b? There are 61"
    )


@pytest.fixture
def scores(tmp_path):
    lines = ["model,task,score,metric"]
    for model in range(6):
        for task in ("boolq", "piqa", "sciq"):
            lines.append(f"m{model},{task},{0.5 + 0.05 * model},acc")
        lines.append(f"m{model},wiki_2025,{1 - 0.05 * model},bits_per_byte")
    path = tmp_path / "scores.csv"
    path.write_text("\n".join(lines))
    return path


def test_an_unknown_task_is_answered_with_the_nearest(scores):
    with pytest.raises(InputError) as error:
        potentia.find_benchmark(str(scores), "bolq")
    assert error.value.hint == "did you mean boolq? There are: boolq, piqa, sciq"


def test_a_perplexity_corpus_is_not_judged_and_that_is_said(scores):
    with pytest.raises(InputError, match="wiki_2025 is a perplexity corpus; only tasks are judged"):
        potentia.find_benchmark(str(scores), "wiki_2025")


def test_a_p_value_at_the_floor_of_its_permutations_is_a_bound():
    assert format_p_value(0.0018587, least=2 / 1076) == "p ≤ 0.002"
    assert format_p_value(0.0037, least=2 / 1076) == "p = 0.004"
    assert format_p_value(0.00099, least=2 / 2001) == "p < 0.001"
