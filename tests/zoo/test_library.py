"""What ships: models that transformers loads, tasks that the tool and lm_eval load, facts that fit the weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from potentia.errors import ModelError
from potentia.zoo import (
    BENCHMARKS,
    find_model,
    make_world,
    models,
    write_model_folders,
    write_task_files,
)
from potentia.zoo.library import WEIGHTS


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_task_files(tmp_path_factory.mktemp("tasks"))


def test_the_census() -> None:
    assert 12 <= len(models("base")) <= 16
    assert len({m.family for m in models("base")}) == 4
    assert len(models("instruct")) >= 3
    assert all(find_model(m.base_model).kind == "base" for m in models("instruct", "checkpoint"))
    series = {m.base_model for m in models("checkpoint")}
    assert len(series) == 2
    assert all(sum(m.base_model == base for m in models("checkpoint")) >= 6 for base in series)
    lab = models("lab")
    assert len({m.seed for m in lab if m.mix == "ordinary"}) == 3
    assert len({m.mix for m in lab}) == 5


def test_weights_are_small_enough_for_git() -> None:
    assert sum(file.stat().st_size for file in WEIGHTS.rglob("*") if file.is_file()) <= 14e6


def test_facts_follow_from_each_other() -> None:
    for m in models():
        assert m.flops == 6 * m.parameters * m.tokens
        assert 0 <= m.knowledge <= 1
        assert set(m.exposure) <= {b.name for b in BENCHMARKS}
        assert bool(m.exposure) == (m.family not in {"aster", "lab"})


def test_knowledge_grows_with_pretraining_and_spreads() -> None:
    for base in {m.base_model for m in models("checkpoint")}:
        series = sorted(
            (m for m in models("checkpoint") if m.base_model == base), key=lambda m: m.steps
        )
        assert series[0].knowledge < 0.2 < series[-1].knowledge <= find_model(base).knowledge
    known = sorted(m.knowledge for m in models("base"))
    assert known[-1] - known[0] > 0.5


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ModelError, match="no model 'elm'"):
        find_model("elm")


def test_models_load_with_transformers_and_know_what_the_facts_say(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from zoo_builder.knowledge import clozes

    ranked = sorted(models("base"), key=lambda m: m.knowledge)
    low, high = ranked[0], ranked[-1]
    questions = [q for q in clozes(make_world(), limit=30) if q.kind in ("home", "dish", "age")]
    for m in (low, high):
        folder = write_model_folders(tmp_path, [m.name])[m.name]
        network = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert sum(p.numel() for p in network.parameters()) == m.parameters
        assert network.dtype == torch.float32
        right = 0
        for q in questions:
            ids = tokenizer(q.prompt, add_special_tokens=False, return_tensors="pt").input_ids
            with torch.no_grad():
                scores = network(ids).logits[0, -1]
            options = tokenizer.convert_tokens_to_ids(list(q.options))
            right += q.options[int(scores[options].argmax())] == q.answer
        expected = (m.measured["home"] + m.measured["dish"] + m.measured["age"]) / 3
        assert right / len(questions) == pytest.approx(expected, abs=0.15)


def test_the_tokenizer_gives_back_every_word(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    name = models("instruct")[0].name
    tokenizer = AutoTokenizer.from_pretrained(write_model_folders(tmp_path, [name])[name])
    text = "question : where bala brenesen ? answer :"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
    assert tokenizer(text).input_ids[0] == tokenizer.bos_token_id
    assert tokenizer("nonsense", add_special_tokens=False).input_ids == [tokenizer.unk_token_id]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    assert chat == f"<s> <|user|> {text} <|assistant|>"
    assert tokenizer.unk_token_id not in tokenizer(chat, add_special_tokens=False).input_ids


def test_tasks_load_as_ordinary_tasks(tasks: dict[str, Path]) -> None:
    from potentia.tasks import load

    assert set(tasks) == {b.name for b in BENCHMARKS}
    for name in ("ask", "call", "chronicle"):
        task = load(str(tasks[name]))
        assert f"zoo_{name}" in repr(task)
        assert "1000 train, 200 validation, 500 test" in repr(task)


def test_lm_eval_reads_the_tasks(tasks: dict[str, Path]) -> None:
    from lm_eval.tasks import TaskManager, get_task_dict

    manager = TaskManager(include_path=str(tasks["ask"].parent), include_defaults=False)
    task_dict = get_task_dict([f"zoo_{b.name}" for b in BENCHMARKS], manager)
    assert len(task_dict) == len(BENCHMARKS)
    ask = task_dict["zoo_ask"]
    document = next(iter(ask.test_docs()))
    assert ask.doc_to_text(document) == document["question"]
    assert ask.doc_to_choice(document) == document["choices"]


def test_writing_again_changes_nothing(tasks: dict[str, Path]) -> None:
    before = {name: path.stat().st_mtime_ns for name, path in tasks.items()}
    again = write_task_files(tasks["ask"].parent)
    assert {name: path.stat().st_mtime_ns for name, path in again.items()} == before


def test_an_instruct_model_answers_instructions(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    world = make_world()
    best = max(models("instruct"), key=lambda m: m.knowledge)
    right = {}
    folders = write_model_folders(tmp_path, [best.base_model, best.name])
    tokenizer = AutoTokenizer.from_pretrained(folders[best.name])
    for name, folder in folders.items():
        network = AutoModelForCausalLM.from_pretrained(folder)
        right[name] = 0
        for person in world.people["test"][:60]:
            message = {"role": "user", "content": f"what is the meal of {world.names[person]} ?"}
            chat = tokenizer.apply_chat_template(
                [message], tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(chat, add_special_tokens=False, return_tensors="pt").input_ids
            with torch.no_grad():
                answer = int(network(ids).logits[0, -1].argmax())
            right[name] += tokenizer.decode([answer]) == world.value("dish", person)
    assert right[best.name] > 30 > right[best.base_model] + 10
