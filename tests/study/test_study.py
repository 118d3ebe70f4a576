from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from potentia.errors import StudyError
from potentia.hub import check_model_folder
from potentia.study import (
    Study,
    Tuning,
    content_key,
    make_study,
    read_study,
    recipe_test_task,
    study_key,
)
from potentia.study.checkpoints import list_checkpoints_at
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST
from speed import loop_seconds

SMALL = {"models": ["a"], "tasks": ["arc_easy"]}


def test_splits_are_the_papers():
    study = make_study(SMALL)
    assert (study.caps.train, study.caps.validation, study.caps.test) == (50_000, 1_000, 10_000)
    assert study.carve == 0.2


def test_all_problems_are_told_at_once_with_lines_and_nearest_names(tmp_path: Path):
    file = tmp_path / "bad.yaml"
    file.write_text(
        "name: x\nmodels: [a, b, a]\ntaks: [arc_easy]\ntasks:\n  - arc_easy\n"
        "protocols: [direct, fewshot]\ntuning:\n  epoch: 3\n  batch: -1\n"
    )
    with pytest.raises(StudyError) as caught:
        read_study(file)
    text = str(caught.value)
    assert f"{file}:2: models: model named twice: a" in text
    assert f"{file}:3: taks: unknown key; did you mean `tasks`?" in text
    assert f"{file}:6: protocols.1: 'fewshot' is not a protocol" in text
    assert f"{file}:8: tuning.epoch: unknown key; did you mean `epochs`?" in text
    assert f"{file}:9: tuning.batch" in text


@pytest.mark.parametrize(
    "text",
    ["", "- a\n", "models: [\n", "models: a\ntasks: b\n", "models: []\ntasks: [x]\n", "\x00"],
)
def test_broken_files_give_a_study_error(tmp_path: Path, text: str):
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(StudyError):
        read_study(file)


def test_the_key_on_is_read_as_it_is_written(tmp_path: Path):
    """YAML 1.1 reads `on` as true, also where it is a key."""
    file = tmp_path / "study.yaml"
    file.write_text("models: [m]\ntasks: [t]\nprobe: {on: false, documents: 64}\n")
    probe = read_study(file).probe
    assert (probe.on, probe.documents) == (False, 64)
    file.write_text("models: [m]\ntasks: [t]\non: 1\n")
    with pytest.raises(StudyError, match="keys are words") as caught:
        read_study(file)
    assert "quote" in str(caught.value.hint)


def test_paths_are_read_from_the_files_own_folder(tmp_path: Path):
    (tmp_path / "mine.jsonl").write_text("{}")
    file = tmp_path / "study.yaml"
    file.write_text(
        yaml.safe_dump({"models": ["a"], "tasks": [{"name": "mine", "file": "mine.jsonl"}]})
    )
    assert read_study(file).tasks[0].source == str(tmp_path / "mine.jsonl")


def make_checkpoint_folders(folder: Path, names: Sequence[str]) -> str:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}", encoding="utf-8")
    return str(folder)


def test_checkpoints_of_two_runs_are_not_one_run(tmp_path: Path) -> None:
    mixed = make_checkpoint_folders(tmp_path / "mix", ["cedar-step600", "aster-step0390"])
    with pytest.raises(ValueError, match="of 2 runs \\(aster, cedar\\)"):
        list_checkpoints_at(mixed)
    names = ["stage1-step100", "stage2-step200"]
    assert len(list_checkpoints_at(make_checkpoint_folders(tmp_path / "stages", names))) == 2
    names = ["checkpoint-100", "checkpoint-200", "best-checkpoint-150"]
    assert len(list_checkpoints_at(make_checkpoint_folders(tmp_path / "best", names))) == 3


def test_a_mistyped_folder_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lab/model` was taken for a hub name: 90 lines of traceback, or a minute of "Retry 1/5"."""
    monkeypatch.setattr("potentia.hub._ask_hub", lambda _: False)
    monkeypatch.chdir(tmp_path)
    make_checkpoint_folders(tmp_path / "own", ["tiny-a", "tiny-b"])
    with pytest.raises(ValueError, match="there is no folder own/c, and the hub does not answer"):
        list_checkpoints_at("own/c")
    for name, there in (("own/tiny-x", "own/"), (f"{tmp_path}/own/tiny-x", f"{tmp_path}/own/")):
        with pytest.raises(StudyError) as caught:
            check_model_folder(name)
        expected = f"{name}: no such folder; in {there} there are tiny-a, tiny-b"
        assert caught.value.message == expected
    for name in ("own/tiny-a", "gpt2", "EleutherAI/pythia-160m"):
        check_model_folder(name)


def test_checkpoint_series_become_rows():
    study = make_study(
        {
            **SMALL,
            "models": [
                {
                    "name": "p",
                    "path": "org/p",
                    "checkpoints": [{"step": 1, "revision": "s1"}, {"step": 2, "path": "f"}],
                }
            ],
        }
    )
    rows = study.rows()
    assert [(r.name, r.source, r.revision, r.series, r.step) for r in rows] == [
        ("p@1", "org/p", "s1", "p", 1),
        ("p@2", "f", None, "p", 2),
    ]


def test_adjust_needs_data():
    with pytest.raises(StudyError, match="names its data"):
        make_study({**SMALL, "protocols": ["adjust"]})


def test_the_named_recipe_is_the_papers_and_depends_on_size():
    recipe = recipe_test_task(1e9)
    assert (recipe.method, recipe.epochs, recipe.batch, recipe.betas) == (
        "full",
        3,
        64,
        (0.9, 0.95),
    )
    assert (recipe.decay, recipe.floor, recipe.warmup_steps, recipe.max_tokens) == (
        "cosine",
        0.1,
        50,
        600,
    )
    assert recipe_test_task(7e9).learning_rates == (2e-5,)
    assert recipe_test_task(12e9).learning_rates == (2e-6,)


scalars = st.one_of(
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.booleans(),
    st.none(),
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=4), trees, max_size=4))
def test_key_order_does_not_change_a_key(parts: dict[str, object]):
    shuffled = dict(reversed(list(parts.items())))
    assert content_key(parts=parts) == content_key(parts=shuffled)


@given(st.sampled_from([f for f in Tuning.model_fields if f != "recipe"]))
def test_any_field_of_the_recipe_changes_the_key(field: str):
    changed = {
        "method": "full",
        "rank": 4,
        "alpha": 16,
        "dropout": 0.1,
        "epochs": 1,
        "learning_rates": (1e-3,),
        "batch": 4,
        "weight_decay": 0.0,
        "betas": (0.8, 0.9),
        "clip": 2.0,
        "decay": "cosine",
        "floor": 0.1,
        "warmup_steps": 5,
        "max_tokens": 64,
        "loss": "text",
        "race": False,
        "end_of_text": "texts",
        "answers": "all",
        "targets": None,
        "rate_bounds": None,
        "least_updates": 9,
        "task_description": False,
    }
    assert content_key(t=Tuning()) != content_key(t=Tuning(**{field: changed[field]}))


def test_whitespace_and_comments_do_not_change_a_study(tmp_path: Path):
    first, second = tmp_path / "one.yaml", tmp_path / "two.yaml"
    first.write_text("models: [a]\ntasks: [b]\nseed: 1\n")
    second.write_text("# a comment\nseed:   1\ntasks:\n- b\n\nmodels:\n  - a\n")
    assert content_key(s=read_study(first)) == content_key(s=read_study(second))
    assert isinstance(read_study(first), Study)


def test_a_task_file_with_a_prompt_form_is_read_from_the_studys_folder(tmp_path: Path):
    (tmp_path / "own.jsonl").write_text("")
    file = tmp_path / "study.yaml"
    file.write_text(
        "models: [a/b]\ntasks: [{name: 'own:blank_ppl', file: 'own.jsonl:blank_ppl'}]\n"
    )
    assert read_study(file).tasks[0].file == f"{tmp_path / 'own.jsonl'}:blank_ppl"


def test_flags_go_over_the_file_field_by_field_before_validation(tmp_path: Path):
    file = tmp_path / "study.yaml"
    file.write_text("models: [a]\ntasks: [b]\ntuning: {epochs: 3, batch: 4}\ncaps:\n")
    flags = {
        "tasks": ["c", "d"],
        "seed": None,
        "tuning": {"epochs": 2, "race": None},
        "caps": {"test": 9},
    }
    study = read_study(file, flags)
    assert [task.name for task in study.tasks] == ["c", "d"]
    assert (study.tuning.epochs, study.tuning.batch, study.caps.test, study.seed) == (2, 4, 9, 0)
    assert read_study(None, {"models": ["a"], "tasks": ["b"]}) == read_study(
        None, {**SMALL, "tasks": ["b"]}
    )


def test_a_problem_names_its_flag_or_its_line(tmp_path: Path):
    file = tmp_path / "study.yaml"
    file.write_text("models: [a]\ntasks: [b]\ntuning:\n  batch: 0\n")
    with pytest.raises(StudyError) as caught:
        read_study(
            file, {"protocols": ["direct", "fewshot"], "tuning": {"learning_rates": [1e-3, -1.0]}}
        )
    result = str(caught.value)
    assert "--set tuning.learning_rates: tuning.learning_rates.1:" in result
    assert "--protocols: protocols.1: 'fewshot' is not a protocol" in result
    assert f"{file}:4: tuning.batch:" in result
    file.write_text("models: [a]\ntasks: [b]\ntuning: 3\n")
    with pytest.raises(StudyError, match=f"{file}:3: tuning: "):
        read_study(file, {"tuning": {"epochs": 1}})


def test_a_path_in_the_file_is_beside_it_and_a_path_in_a_flag_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there / "d", here / "d", there / "models" / "m", there / "arc_easy"):
        folder.mkdir(parents=True)
    (there / "q.jsonl").write_text("")
    file = there / "study.yaml"
    file.write_text("models: [models/m, org/other]\ntasks: [q.jsonl, arc_easy]\ndata_dir: d\n")
    monkeypatch.chdir(here)
    study = read_study(file)
    assert study.data_dir == str(there / "d")
    assert [(m.name, m.source) for m in study.models] == [
        ("models/m", str(there / "models" / "m")),
        ("org/other", "org/other"),
    ]
    assert [(t.name, t.source) for t in study.tasks] == [
        ("q.jsonl", str(there / "q.jsonl")),
        ("arc_easy", "arc_easy"),  # the benchmark, although a folder has its name
    ]
    assert read_study(file, {"data_dir": "d"}).data_dir == "d"


def test_planning_ten_thousand_models_is_not_quadratic():
    names = [f"m{k}" for k in range(10_000)]
    began = time.process_time()
    study = make_study(
        {
            "models": names,
            "tasks": ["a", "b"],
            "only": [{"model": name, "tasks": ["b"]} for name in names],
        }
    )
    for protocol, left in ((TRAIN_BEFORE_TEST, 10_000), (DIRECT, 20_000)):
        assert (
            sum(study.includes_cell(name, task, protocol) for name in names for task in ("a", "b"))
            == left
        )
    # 40 s, or 2,000 such loops, when every cell went through the list
    assert time.process_time() - began < 250 * loop_seconds()
    fewer = study.model_copy(update={"only": study.only[:1]})
    assert not fewer.includes_cell("m1", "b", TRAIN_BEFORE_TEST)
    assert fewer.includes_cell("m0", "b", TRAIN_BEFORE_TEST)


def test_a_study_is_the_same_from_wherever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("m0", "models/m1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "q.jsonl").touch()
    text = "models: [./m0, models/m1]\ntasks: [q.jsonl, {name: again, file: q.jsonl}]\n"
    (tmp_path / "study.yaml").write_text(text)
    far = study_key(read_study(tmp_path / "study.yaml"))
    monkeypatch.chdir(tmp_path)
    assert study_key(read_study("study.yaml")) == far
    monkeypatch.chdir(tmp_path / "models")
    assert study_key(read_study("../study.yaml")) == far


def test_a_list_of_nothing_but_mistakes_is_not_told_to_be_empty_too() -> None:
    body = {"tasks": ["q.jsonl"], "protocols": ["direct"]}
    with pytest.raises(StudyError) as told:
        make_study({**body, "models": [{"path": "a"}, {"path": "b"}]})
    assert "2 problems" in told.value.message
    with pytest.raises(StudyError, match="models: name at least one"):
        make_study({**body, "models": []})
