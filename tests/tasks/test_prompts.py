"""Few-shot prompts and chat templates, beside lm-eval's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from potentia import tasks
from potentia.errors import TaskError
from potentia.values.requests import Continuation, Generation

pytestmark = pytest.mark.shared


def template(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
    text = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in messages)
    return text + "<assistant>" if add_generation_prompt else text


@pytest.mark.parametrize("name", ["arc_easy", "winogrande", "nq_open", "cola", "gsm8k"])
@pytest.mark.parametrize("shots", [0, 3])
@pytest.mark.parametrize("chat", [None, template])
def test_prompts_equal_the_harness(
    name: str, shots: int, chat: Any, benchmarks: Path, reference: Callable[[str], Any]
) -> None:
    theirs = reference(name)
    task = tasks.load(name, data_dir=benchmarks)
    for document, prompt in zip(
        task.documents("test")[:3],
        task.prompts(task.documents("test")[:3], shots=shots, chat_template=chat, seed=7),
        strict=True,
    ):
        row = theirs.eval_docs[document.id]
        examples = task._subtasks[0]
        examples.draw_examples(task._example_pool(0), document, shots=shots, seed=7)
        theirs.sampler = (
            examples.harness_task.sampler
        )  # the same examples, everything else lm-eval's
        context = theirs.fewshot_context(
            row, num_fewshot=shots, apply_chat_template=bool(chat), chat_template=chat
        )
        requests = theirs.construct_requests(
            row, context, metadata=(name, 0, 1), apply_chat_template=bool(chat), chat_template=chat
        )
        wanted = [
            instance.args for instance in (requests if isinstance(requests, list) else [requests])
        ]
        for request, args in zip(prompt.requests, wanted, strict=True):
            assert request.context == args[0]  # type: ignore[union-attr]
            if isinstance(request, Continuation):
                assert request.continuation == args[1]
            else:
                assert isinstance(request, Generation)
                assert list(request.stop) == args[1]["until"]


def test_examples_are_seeded_per_document(benchmarks: Path) -> None:
    task = tasks.load("arc_challenge", data_dir=benchmarks)
    documents = list(task.documents("test")[:20])
    first = task.prompts(documents, shots=4, seed=1)
    again = task.prompts(documents[::-1], shots=4, seed=1)[::-1]
    assert first == again, "the order of the documents plays no part"
    second = task.prompts(documents, shots=4, seed=2)
    assert sum(a.text != b.text for a, b in zip(first, second, strict=True)) >= 19


def test_examples_come_from_train_and_never_the_item_itself(benchmarks: Path) -> None:
    task = tasks.load("openbookqa", data_dir=benchmarks, caps=tasks.Caps(train=12))
    train = task.documents("train")
    texts = {document.id: task.question_texts([document])[0] for document in train}
    for document, prompt in zip(train, task.prompts(train, shots=8, seed=3), strict=True):
        parts = prompt.text.split("\n\n")
        assert len(parts) == 9
        mine = parts.pop()
        assert mine == texts[document.id]
        for part in parts:
            assert any(part.startswith(text) for text in texts.values())
            assert not part.startswith(mine + " ")


def test_too_many_examples_are_refused(benchmarks: Path) -> None:
    task = tasks.load("rte", data_dir=benchmarks, caps=tasks.Caps(train=4))
    with pytest.raises(TaskError, match="too few examples for 9 shots"):
        task.prompts(task.documents("test")[:1], shots=9)
    with pytest.raises(TaskError, match="cannot have"):
        task.prompts(task.documents("test")[:1], shots=-1)


def test_training_texts_follow_the_chat_form(benchmarks: Path) -> None:
    for name in ("arc_easy", "winogrande", "nq_open"):
        task = tasks.load(name, data_dir=benchmarks)
        documents = task.documents("train")[:5]
        plain, chat = task.examples(documents), task.examples(documents, chat_template=template)
        prompts = task.prompts(documents, chat_template=template)
        for document_plain, document_chat, prompt in zip(plain, chat, prompts, strict=True):
            assert document_chat.continuation == document_plain.continuation.removeprefix(" ")
            assert document_chat.context.endswith("<assistant>")
            if task.kind == "choice":
                assert (
                    Continuation(document_chat.context, document_chat.continuation)
                    in prompt.requests
                )
            else:
                assert document_chat.context == prompt.requests[0].context  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["arc_easy", "nq_open", "cola", "gsm8k"])
def test_the_papers_training_text_is_question_and_answer_alone(
    name: str, benchmarks: Path, reference: Callable[[str], Any]
) -> None:
    """The authors' code trains on ``doc_to_text``, a space and the target: nq_open's description is not in it."""
    theirs = reference(name)
    task = tasks.load(name, data_dir=benchmarks)
    documents = task.documents("train")[:5]
    bare = task.examples(documents, every_answer=True, with_description=False)
    described = task.examples(documents, every_answer=True)
    for document, example, usual in zip(documents, bare, described, strict=True):
        target = theirs.doc_to_target(document.data)
        if isinstance(target, int):
            target = theirs.doc_to_choice(document.data)[target]
        if isinstance(target, list):
            target = " ".join(target)
        text = f"{theirs.doc_to_text(document.data)} {target}"
        assert example.context + example.continuation == text
        assert usual.context == str(theirs.config.description or "") + example.context
    assert (bare != described) == (name == "nq_open")


def test_an_answer_that_is_opened_for_the_model(tmp_path: Path) -> None:
    """``gen_prefix``: lm-eval opens the assistant's turn with it."""
    import pandas as pd

    folder = tmp_path / "allenai--ai2_arc" / "ARC-Challenge"
    folder.mkdir(parents=True)
    rows = [
        {
            "question": f"q{i}",
            "choices": {"text": ["a", "b", "c", "d"], "label": list("ABCD")},
            "answerKey": "B",
        }
        for i in range(10)
    ]
    for split in ("train", "test"):
        pd.DataFrame(rows).to_parquet(folder / f"{split}.parquet")
    task = tasks.load("arc_challenge_chat", data_dir=tmp_path)
    prompt = task.prompts(task.documents("test")[:1], chat_template=template)[0]
    assert prompt.requests[0].context.endswith("</user><assistant>The best answer is")  # type: ignore[union-attr]
    example = task.examples(task.documents("train")[:1], chat_template=template)[0]
    assert example.context.endswith("The best answer is")
    assert example.continuation == " B"
    assert task.score(task.grade([prompt], [["B"]]))["exact_match"].value == 1.0


def test_answers_must_fit_the_requests(benchmarks: Path) -> None:
    task = tasks.load("rte", data_dir=benchmarks)
    prompts = task.prompts(task.documents("test")[:2])
    with pytest.raises(TaskError, match="2 prompts, but 1 responses"):
        task.grade(prompts, [[(-1.0, True), (-2.0, False)]])
    with pytest.raises(TaskError, match="2 requests, but 1 answers"):
        task.grade(prompts, [[(-1.0, True)]] * 2)
    with pytest.raises(TaskError, match="no graded example"):
        task.score([])
    with pytest.raises(TaskError, match="no split"):
        task.documents("dev")  # type: ignore[arg-type]
