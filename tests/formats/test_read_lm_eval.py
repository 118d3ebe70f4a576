"""lm-eval's results: today's format, that of version 0.3, the old leaderboard's, groups and folders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from potentia.errors import DataError
from potentia.formats import read_score_files
from score_files import read_scores


def today(**results: dict[str, Any]) -> dict[str, Any]:
    return {
        "results": results,
        "group_subtasks": {name: [] for name in results},
        "configs": {name: {"task": name, "num_fewshot": 0} for name in results},
        "versions": dict.fromkeys(results, 1.0),
        "n-shot": dict.fromkeys(results, 0),
        "higher_is_better": {name: {"acc": True, "acc_norm": True} for name in results},
        "n-samples": {name: {"original": 2376, "effective": 100} for name in results},
        "config": {"model": "hf", "model_args": "pretrained=EleutherAI/pythia-70m,dtype=float32"},
        "model_name": "EleutherAI/pythia-70m",
    }


def arc(acc: float = 0.4, norm: float = 0.45) -> dict[str, Any]:
    return {
        "alias": "arc",
        "acc,none": acc,
        "acc_stderr,none": 0.05,
        "acc_norm,none": norm,
        "acc_norm_stderr,none": 0.06,
    }


def save(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_todays_format(tmp_path: Path) -> None:
    wiki = {
        "alias": "wikitext",
        "word_perplexity,none": 40.0,
        "word_perplexity_stderr,none": "N/A",
        "bits_per_byte,none": 1.1,
        "bits_per_byte_stderr,none": "N/A",
    }
    content = today(
        arc_easy=arc(),
        wikitext=wiki,
        boolq={"alias": "boolq", "acc,none": 0.6, "acc_stderr,none": 0.01},
    )
    content["higher_is_better"]["wikitext"] = {"bits_per_byte": False, "word_perplexity": False}
    matrix = read_scores(save(tmp_path / "results.json", content))["direct"]
    assert matrix.models == ("EleutherAI/pythia-70m",)
    assert matrix.tasks == ("arc_easy", "wikitext", "boolq")
    assert matrix.values.tolist() == [[0.45, 1.1, 0.6]]
    assert matrix.stderr[0, 0] == 0.06
    assert math.isnan(matrix.stderr[0, 1])
    assert matrix.n.tolist() == [[100.0] * 3]
    assert matrix.higher_is_better == (True, False, True)
    other = read_scores(tmp_path / "results.json", metric="acc")["direct"]
    assert (other.tasks, other.values.tolist()) == (("arc_easy", "boolq"), [[0.4, 0.6]])


def test_a_filter_belongs_to_the_metric(tmp_path: Path) -> None:
    gsm = {
        "alias": "gsm8k",
        "exact_match,strict-match": 0.1,
        "exact_match_stderr,strict-match": 0.01,
        "exact_match,flexible-extract": 0.2,
        "exact_match_stderr,flexible-extract": 0.02,
    }
    path = save(tmp_path / "results.json", today(gsm8k=gsm, other=gsm))
    result = read_scores(path)["direct"]
    assert result.values.tolist() == [
        [0.2, 0.1]
    ]  # the paper's filter for gsm8k, the strict one elsewhere
    assert result.stderr.tolist() == [[0.02, 0.01]]
    strict = read_scores(path, metric="exact_match,strict-match")["direct"]
    assert strict.values.tolist() == [[0.1, 0.1]]


def test_version_0_3(tmp_path: Path) -> None:
    content = {
        "results": {
            "arc_easy": {"acc": 0.4, "acc_stderr": 0.05, "acc_norm": 0.45, "acc_norm_stderr": 0.06}
        },
        "versions": {"arc_easy": 0},
        "config": {
            "model": "hf-causal",
            "model_args": "pretrained=gpt2,revision=step1000",
            "num_fewshot": 5,
        },
    }
    scores = read_scores(save(tmp_path / "old.json", content))
    assert scores["few_shot:5"].models == ("gpt2@step1000",)
    assert scores["few_shot:5"].values.tolist() == [[0.45]]


def test_old_mmlu_is_the_mean_of_its_subjects(tmp_path: Path) -> None:
    subjects = {f"hendrycksTest-{i}": {"acc": i / 10, "acc_stderr": 0.03} for i in (2, 4)}
    path = save(
        tmp_path / "old.json", {"results": subjects, "config": {"model_args": "pretrained=gpt2"}}
    )
    matrix = read_scores(path)["direct"]
    assert matrix.tasks == ("mmlu",)
    assert matrix.values[0, 0] == pytest.approx(0.3)
    assert matrix.stderr[0, 0] == pytest.approx(math.sqrt(2) * 0.03 / 2)
    assert len(read_scores(path, subtasks=True)["direct"].tasks) == 2


def test_the_old_leaderboards_names(tmp_path: Path) -> None:
    content = {
        "config_general": {"model_name": "org/model"},
        "results": {
            "harness|arc:challenge|25": {"acc": 0.5, "acc_stderr": 0.1},
            "harness|winogrande|0": {"acc": 0.6, "acc_stderr": 0.1},
            "all": {"acc": 0.55, "acc_stderr": 0.1},
        },
    }
    scores = read_scores(save(tmp_path / "results.json", content))
    assert {name: matrix.tasks for name, matrix in scores.items()} == {
        "few_shot:25": ("arc_challenge",),
        "direct": ("winogrande",),
    }


def mmlu() -> dict[str, Any]:
    def score(value: float) -> dict[str, Any]:
        return {"alias": "x", "acc,none": value, "acc_stderr,none": 0.01}

    content = today(
        mmlu=score(0.5), mmlu_stem=score(0.4), mmlu_algebra=score(0.35), boolq=score(0.6)
    )
    content["groups"] = {"mmlu": score(0.5), "mmlu_stem": score(0.4)}
    content["group_subtasks"] = {"mmlu": ["mmlu_stem"], "mmlu_stem": ["mmlu_algebra"], "boolq": []}
    return content


def test_a_group_speaks_for_its_members(tmp_path: Path) -> None:
    path = save(tmp_path / "results.json", mmlu())
    matrix = read_scores(path)["direct"]
    assert matrix.tasks == ("mmlu", "boolq")
    assert set(read_scores(path, subtasks=True)["direct"].tasks) == {"mmlu_algebra", "boolq"}


def test_shots_and_size_of_a_group_are_its_members(tmp_path: Path) -> None:
    content = mmlu()
    content["n-shot"] = {"mmlu_algebra": 5, "boolq": 0}
    content["configs"] = {}
    content["n-samples"] = {"mmlu_algebra": {"original": 100, "effective": 50}}
    scores = read_scores(save(tmp_path / "results.json", content))
    assert scores["few_shot:5"].tasks == ("mmlu",)
    assert scores["few_shot:5"].n.tolist() == [[50.0]]
    assert scores["direct"].tasks == ("boolq",)


def test_a_group_without_a_score_leaves_its_members(tmp_path: Path) -> None:
    content = mmlu()
    content["results"]["mmlu"] = {"alias": "mmlu", " ": " "}
    content["groups"] = {}
    assert read_scores(save(tmp_path / "results.json", content))["direct"].tasks == (
        "mmlu_stem",
        "boolq",
    )


def test_groups_that_contain_each_other_end(tmp_path: Path) -> None:
    content = mmlu()
    content["group_subtasks"]["mmlu_algebra"] = ["mmlu"]
    assert "boolq" in read_scores(save(tmp_path / "results.json", content))["direct"].tasks


def test_a_folder_of_results(tmp_path: Path) -> None:
    save(tmp_path / "EleutherAI__pythia-70m" / "results_2026-01-01.json", today(arc_easy=arc()))
    second = today(arc_easy=arc(0.5, 0.55))
    second["model_name"] = "gpt2"
    save(tmp_path / "gpt2" / "results_2026-01-01.json", second)
    save(tmp_path / "gpt2" / "results_copy.json", second)
    (tmp_path / "gpt2" / "samples_arc_easy.jsonl").write_text("not scores")
    save(tmp_path / "settings.json", {"not": "scores"})
    matrix = read_scores(tmp_path)["direct"]
    assert matrix.models == ("EleutherAI/pythia-70m", "gpt2")
    assert matrix.values.tolist() == [[0.45], [0.55]]
    rerun = today(arc_easy=arc(0.6, 0.65))
    rerun["model_name"] = "gpt2"
    save(tmp_path / "gpt2" / "results_2026-02-02.json", rerun)
    with pytest.raises(
        DataError, match=r"two direct scores of gpt2 on arc_easy .*2026-01-01.*2026-02-02"
    ):
        read_scores(tmp_path)


def test_a_model_without_a_name_takes_the_folders(tmp_path: Path) -> None:
    content = today(arc_easy=arc())
    del content["model_name"], content["config"]
    path = save(tmp_path / "org__model" / "results.json", content)
    assert read_scores(path)["direct"].models == ("org/model",)


def test_model_arguments_may_be_an_object(tmp_path: Path) -> None:
    content = today(arc_easy=arc())
    del content["model_name"]
    content["config"] = {"model": "hf", "model_args": {"pretrained": "gpt2", "peft": "my/adapter"}}
    assert read_scores(save(tmp_path / "results.json", content))["direct"].models == (
        "gpt2+my/adapter",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda c: c["results"]["arc_easy"].update({"acc_norm,none": "high"}),
            "the text 'high' stands where acc_norm",
        ),
        (
            lambda c: c["results"]["arc_easy"].update({"acc_norm,none": float("nan")}),
            "results.arc_easy.acc_norm: the score is",
        ),
        (
            lambda c: c["results"]["arc_easy"].update({"acc_norm_stderr,none": -1}),
            "standard error is negative",
        ),
        (
            lambda c: c["results"].update({"arc_easy": 0.5}),
            "results.arc_easy: the entry is not an object",
        ),
        (
            lambda c: c["results"].update({"arc_easy": {"alias": "arc"}}),
            "results.arc_easy: the entry has no metric",
        ),
        (lambda c: c.update({"results": []}), "results is not an object"),
        (lambda c: c.update({"results": {}}), "the results are empty"),
        (lambda c: c.update({"group_subtasks": 3}), "group_subtasks is not an object"),
        (lambda c: c.update({"config": "hf"}), "config is not an object"),
    ],
)
def test_a_fault_names_its_place(tmp_path: Path, change: Any, words: str) -> None:
    content = today(arc_easy=arc())
    change(content)
    path = save(tmp_path / "results.json", content)
    with pytest.raises(DataError) as caught:
        read_scores(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/fast/rolmedo/gemma-7b/snapshots/model/", "/fast/rolmedo/gemma-7b"),
        ("/", "/"),
        ("/fast/models/new-1e//mmluaux/baichuan2-7b/", "/fast/models/new-1e/mmluaux/baichuan2-7b"),
        ("/fast/models/gemma-7b//step_1000", "/fast/models/gemma-7b@1000"),
        ("runs/a/gemma-7b/checkpoint-500", "runs/a/gemma-7b@500"),
        (
            "/home/someone/.cache/huggingface/hub/models--google--gemma-7b/snapshots/0123456789abcdef",
            "google/gemma-7b",
        ),
        ("EleutherAI/pythia-70m", "EleutherAI/pythia-70m"),
        ("gpt2", "gpt2"),
        ("someone/model", "someone/model"),
        ("/data/model", "/data"),
        ("/model", "/model"),
        ("./model", "./model"),
        ("~/models/base", "~/models/base"),
    ],
)
def test_a_model_known_by_a_path_has_the_name_of_its_nearest_telling_folder(
    tmp_path: Path, path: str, name: str
) -> None:
    content = today(arc_easy=arc())
    del content["model_name"]
    content["config"]["model_args"] = f"pretrained={path},trust_remote_code=True"
    assert read_scores(save(tmp_path / "results.json", content))["direct"].models == (name,)


def save_by_path(file: Path, weights: str, **results: dict[str, Any]) -> Path:
    """Write a file as lm-eval does for weights in a folder: it names the model by its path alone."""
    content = today(**results)
    del content["model_name"]
    content["config"]["model_args"] = f"pretrained={weights},trust_remote_code=True"
    return save(file, content)


def test_one_model_known_by_two_paths_of_a_folder_is_one_model(tmp_path: Path) -> None:
    """As in the authors' ``base``: gemma-7b lies in two folders, the other models in one of them."""
    base = tmp_path / "base"
    boolq = {"acc,none": 0.7}
    save_by_path(base / "gemma-7b-arc_easy.json", "/fast/me/models/gemma-7b/", arc_easy=arc())
    save_by_path(base / "gemma-7b-boolq.json", "/fast/me/gemma-7b/snapshots/model/", boolq=boolq)
    save_by_path(base / "llama-7b-arc_easy.json", "/fast/me/models/llama-7b/", arc_easy=arc())
    score_files = read_score_files(base)
    matrix = score_files.scores["direct"]
    assert set(matrix.models) == {"/fast/me/models/gemma-7b", "/fast/me/models/llama-7b"}
    assert matrix.arrange(["/fast/me/models/gemma-7b"], ["boolq"])[0][0, 0] == 0.7
    (note,) = score_files.notes
    assert note == (
        "/fast/me/gemma-7b counts as /fast/me/models/gemma-7b: "
        f"the files of {base} call both gemma-7b"
    )


def test_models_of_two_folders_or_of_other_file_names_stay_apart(tmp_path: Path) -> None:
    boolq = {"acc,none": 0.7}
    save_by_path(tmp_path / "base/gemma-7b-arc_easy.json", "/base/gemma-7b/", arc_easy=arc())
    save_by_path(tmp_path / "e3/gemma-7b-boolq.json", "/tuned/e3/gemma-7b/", boolq=boolq)
    save_by_path(tmp_path / "runs/first-arc_easy.json", "/runs/a/olmo-1b/", arc_easy=arc())
    save_by_path(tmp_path / "runs/second-boolq.json", "/runs/b/olmo-1b/", boolq=boolq)
    score_files = read_score_files(tmp_path)
    assert set(score_files.scores["direct"].models) == {
        "/base/gemma-7b",
        "/tuned/e3/gemma-7b",
        "/runs/a/olmo-1b",
        "/runs/b/olmo-1b",
    }
    assert score_files.notes == ()


def test_where_the_path_tells_nothing_the_name_of_the_file_does(tmp_path: Path) -> None:
    """Several models from one place, and a place that is no model's."""
    for model in ("gemma-7b", "llama-7b"):
        path = tmp_path / "shared" / f"{model}-arc_easy.json"
        save_by_path(path, "/data/project/latest/", arc_easy=arc())
    score_files = read_score_files(tmp_path / "shared")
    assert score_files.scores["direct"].models == ("gemma-7b", "llama-7b")
    assert score_files.notes == (
        f"models of {tmp_path / 'shared'} are called as its files are: /data/project is the path of several",
    )
    alone = tmp_path / "alone" / "gemma-7b-arc_easy.json"
    save_by_path(alone, "/fast/snapshots/model/", arc_easy=arc())
    assert read_scores(alone)["direct"].models == ("gemma-7b",)
    assert read_scores(alone.parent)["direct"].models == ("gemma-7b",)


def test_a_file_of_another_name_keeps_the_path(tmp_path: Path) -> None:
    path = save_by_path(tmp_path / "results.json", "/fast/snapshots/model/", arc_easy=arc())
    assert read_scores(path)["direct"].models == ("/fast",)


def test_one_nan_costs_itself_and_not_the_folder(tmp_path: Path) -> None:
    for model, value in (("gemma-7b", 0.4), ("llama-7b", math.nan)):
        content = today(arc_easy=arc(norm=value), boolq={"acc,none": 0.7})
        del content["model_name"]
        content["config"]["model_args"] = f"pretrained=/fast/{model}/snapshots/model/"
        save(tmp_path / f"{model}-arc.json", content)
    score_files = read_score_files(tmp_path)
    matrix = score_files.scores["direct"]
    assert matrix.models == ("/fast/gemma-7b", "/fast/llama-7b")
    assert math.isnan(matrix.arrange(["/fast/llama-7b"], ["arc_easy"])[0][0, 0])
    assert matrix.arrange(["/fast/llama-7b"], ["boolq"])[0][0, 0] == 0.7
    (note,) = score_files.notes
    assert note.startswith("1 score is missing or NaN and left out: ")
    assert "llama-7b-arc.json, results.arc_easy.acc_norm" in note


def test_a_folder_with_nothing_but_nan_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.json", today(arc_easy=arc(norm=math.nan)))
    with pytest.raises(DataError, match="there are no scores in it"):
        read_score_files(tmp_path)
