"""Each benchmark folder, against the harness itself: prompts, right answers, metrics to the last digit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from potentia import tasks
from potentia.values.requests import Continuation, Generation

from .conftest import BENCHMARKS, answers, fake_lm

DOCUMENTS = 40

pytestmark = pytest.mark.shared


@pytest.mark.parametrize("name", BENCHMARKS)
def test_scores_equal_the_harness(
    name: str, benchmarks: Path, reference: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.evaluator import evaluate

    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    theirs = reference(name)
    task = tasks.load(name, data_dir=benchmarks)
    documents = task.documents("test")[:DOCUMENTS]
    known = (
        {e.context: e.continuation for e in task.examples(documents)}
        if task.kind == "generation"
        else {}
    )
    evaluation = evaluate(
        lm=fake_lm(known),
        task_dict={"tasks": {name: theirs}, "groups": {}},
        limit=DOCUMENTS,
        bootstrap_iters=200,
        log_samples=True,
    )

    prompts = task.prompts(documents)
    outcomes = task.grade(prompts, answers(prompts, known))
    scores = task.score(outcomes)

    compared = 0
    for key, value in evaluation["results"][name].items():
        metric, _, kind = key.partition(",")
        if not kind or metric.endswith("_stderr"):
            continue
        ours = scores[metric if len(theirs._filters) == 1 else f"{metric}|{kind}"]
        assert ours.value == value
        assert ours.higher_is_better == theirs.higher_is_better()[metric]
        assert ours.n == len(documents)
        stderr = evaluation["results"][name][f"{metric}_stderr,{kind}"]
        if metric in {"mcc", "f1"}:
            assert ours.stderr == pytest.approx(stderr, rel=0.25)
        else:
            assert ours.stderr == stderr
        compared += 1
    assert compared
    assert task.metric in scores
    assert 0 < sum(outcome.value for outcome in outcomes) < len(outcomes), (
        "the fake model is right at times, not always"
    )

    first = evaluation["samples"][name][0]
    asked = [
        r.context if isinstance(r, Generation) else (r.context, r.continuation)
        for r in prompts[0].requests
    ]
    assert asked == [a[0] if task.kind == "generation" else tuple(a) for a in first["arguments"]]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_right_answers_are_the_harness_s(
    name: str, benchmarks: Path, reference: Callable[[str], Any]
) -> None:
    theirs = reference(name)
    task = tasks.load(name, data_dir=benchmarks)
    documents = task.documents("test")[::17]
    prompts = task.prompts(documents)
    examples = task.examples(documents)
    for document, prompt, example in zip(documents, prompts, examples, strict=True):
        row = theirs.eval_docs[document.id]
        target = theirs.doc_to_target(row)
        if task.kind == "generation":
            right = target if isinstance(target, list) else [target]
            assert prompt.gold == " | ".join(right)
            assert example.continuation == " " + right[0]
            assert example.end
        elif name == "winogrande":
            right = theirs.doc_to_choice(row)[theirs.doc_to_text(row)]
            assert prompt.gold == right == example.context
            assert example.continuation == f" {target}"
        else:
            choices = theirs.doc_to_choice(row)
            right = choices[target] if isinstance(target, int) else target
            assert prompt.gold == right
            assert list(prompt.choices) == choices
            assert example.continuation == theirs.config.target_delimiter + right
            wanted = [
                Continuation(example.context, theirs.config.target_delimiter + choice)
                for choice in choices
            ]
            assert list(prompt.requests) == wanted


@pytest.mark.parametrize(("name", "sizes"), BENCHMARKS.items())
def test_splits_follow_the_rules(name: str, sizes: tuple[int, int, int], benchmarks: Path) -> None:
    task = tasks.load(name, data_dir=benchmarks)
    assert tuple(len(task.documents(split)) for split in ("train", "validation", "test")) == sizes
    whole = {"headqa_en", "mathqa", "sciq"}  # validation and labelled test are public
    assert task.split_plan.validation.origin_label == (
        "validation" if name in whole else "20% of train"
    )
    if name not in whole:
        train = {doc.id for doc in task.documents("train")}
        assert not train & {doc.id for doc in task.documents("validation")}


def test_any_multiple_choice_task_has_accuracy_and_brier(benchmarks: Path) -> None:
    task = tasks.load("cola", data_dir=benchmarks)
    prompts = task.prompts(task.documents("test")[:200])
    outcomes = task.grade(prompts, answers(prompts, {}))
    scores = task.score(outcomes)
    assert task.metric == "mcc"
    guessed = [
        outcome.detail["logprobs"].index(max(outcome.detail["logprobs"])) for outcome in outcomes
    ]
    right = [
        guess == prompt.document["label"] for guess, prompt in zip(guessed, prompts, strict=True)
    ]
    assert scores["acc"].value == sum(right) / len(right)
    assert [outcome.value for outcome in outcomes] == [float(r) for r in right]
    first = [math.exp(x) for x in outcomes[0].detail["logprobs"]]
    shares = [x / sum(first) for x in first]
    gold = prompts[0].document["label"]
    assert outcomes[0].detail["metrics"]["brier_score"] == pytest.approx(
        sum((share - (i == gold)) ** 2 for i, share in enumerate(shares))
    )
    assert not scores["brier_score"].higher_is_better


def test_brier_equals_the_harness_s(benchmarks: Path) -> None:
    import numpy as np
    from lm_eval.api.metrics import brier_score
    from lm_eval.utils import softmax

    task = tasks.load("social_iqa", data_dir=benchmarks)
    prompts = task.prompts(task.documents("test")[:300])
    given = answers(prompts, {})
    scores = task.score(task.grade(prompts, given))
    golds = [prompt.choices.index(prompt.gold) for prompt in prompts]
    items = [
        (g, softmax(np.array([a[0] for a in answer])))
        for g, answer in zip(golds, given, strict=True)
    ]
    assert scores["brier_score"].value == brier_score(items)


def test_corpus_scores_equal_the_harness(shared_data: Path) -> None:
    from lm_eval.api.metrics import bits_per_byte, weighted_perplexity

    task = tasks.load(str(shared_data / "corpora" / "acl_abstracts"))
    assert (task.kind, task.metric, task.higher_is_better) == ("corpus", "bits_per_byte", False)
    documents = task.documents("test")[:50]
    prompts = task.prompts(documents)
    scores = task.score(task.grade(prompts, answers(prompts, {})))
    texts = [document["text"] for document in documents]
    sums = [answer[0] for answer in answers(prompts, {})]
    sized = [(ll, len(text.encode())) for ll, text in zip(sums, texts, strict=True)]
    assert scores["bits_per_byte"].value == bits_per_byte(sized)
    assert scores["byte_perplexity"].value == weighted_perplexity(sized)
    assert 0 < scores["bits_per_byte"].stderr < scores["bits_per_byte"].value
    examples = task.examples(documents)
    assert [(e.context, e.continuation) for e in examples] == [("", text) for text in texts]
