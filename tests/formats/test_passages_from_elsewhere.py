"""Files of other tools say which examples share a passage; their errors and tests allow for it, as ours do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from potentia.analysis.rankings import find_pair
from potentia.analysis.rankings.task_difference import DifferenceTest
from potentia.evidence import Evidence, read
from potentia.formats import write_scores
from potentia.values.scores import ItemOutcome, find_clusters

PASSAGES, QUESTIONS = 50, 10
EXAMPLES = PASSAGES * QUESTIONS
STAMP = "2026-01-01T00-00-00.000000"


def draw_answers(seed: int = 0) -> dict[str, np.ndarray]:
    """Draw two equally good models, with an effect of 1 logit on every passage."""
    rng = np.random.default_rng(seed)
    logits = np.repeat(rng.standard_normal((2, PASSAGES)), QUESTIONS, axis=1)
    right = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    return {"a": right[0], "b": right[1]}


def independent_error(right: np.ndarray) -> float:
    return float(right.std(ddof=1) / math.sqrt(len(right)))


def passage(example: int) -> str:
    return f"passage {example // QUESTIONS} " + "of many words " * 5


def write_lm_eval(folder: Path, answers: dict[str, np.ndarray]) -> Path:
    for model, right in answers.items():
        model_folder = folder / model
        model_folder.mkdir(parents=True)
        body = {
            "results": {
                "boolq": {"acc,none": right.mean(), "acc_stderr,none": independent_error(right)}
            },
            "n-samples": {"boolq": {"original": len(right), "effective": len(right)}},
            "model_name": model,
        }
        (model_folder / f"results_{STAMP}.json").write_text(json.dumps(body))
        lines = []
        for example, value in enumerate(right.tolist()):
            document = {"question": f"question {example}", "passage": passage(example)}
            line = {"doc_id": example, "doc": document, "doc_hash": f"{example:064x}", "acc": value}
            lines.append(json.dumps({"filter": "none", **line}))
        (model_folder / f"samples_boolq_{STAMP}.jsonl").write_text("\n".join(lines))
    return folder


def write_inspect(folder: Path, answers: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True)
    for model, right in answers.items():
        samples = []
        for example, value in enumerate(right.tolist()):
            scores = {"choice": {"value": "C" if value else "I"}}
            shared = {"metadata": {"context": passage(example)}, "epoch": 1}
            samples.append(
                {"input": f"question {example}", "target": "yes", "scores": scores, **shared}
            )
        metrics = {
            "accuracy": {"name": "accuracy", "value": right.mean()},
            "stderr": {"name": "stderr", "value": independent_error(right)},
        }
        log = {
            "version": 2,
            "status": "success",
            "eval": {"task": "inspect_evals/boolq", "model": model},
            "results": {
                "completed_samples": len(right),
                "scores": [{"name": "choice", "metrics": metrics}],
            },
            "samples": samples,
        }
        (folder / f"{model}.json").write_text(json.dumps(log))
    return folder


def write_every_eval_ever(folder: Path, answers: dict[str, np.ndarray]) -> Path:
    """Write a store's scores and examples as Potentia does."""
    matrix = next(iter(read(write_lm_eval(folder / "before", answers)).scores.values()))

    def give_examples(protocol: str, model: str, task: str) -> list[ItemOutcome]:
        outcomes = []
        for example, value in enumerate(answers[model].tolist()):
            detail = {"prompt": f"question {example}"}
            outcomes.append(
                ItemOutcome(
                    example, value, "yes", "yes", detail, cluster=f"p{example // QUESTIONS}"
                )
            )
        return outcomes

    write_scores(matrix, folder / "written", "every-eval-ever", items=give_examples)
    return folder / "written"


@pytest.mark.parametrize("write", [write_lm_eval, write_inspect, write_every_eval_ever])
def test_passages_of_other_tools_are_clusters(
    write: Callable[[Path, dict[str, np.ndarray]], Path], tmp_path: Path
) -> None:
    answers = draw_answers()
    evidence: Evidence = read(write(tmp_path / "scores", answers))
    (task,) = evidence.scores["direct"].tasks
    clusters = find_clusters(evidence.outcomes["direct"], task)
    assert len(clusters) == EXAMPLES
    assert len(set(clusters.values())) == PASSAGES
    assert f"{task}: 500 examples share 50 passages" in " ".join(evidence.notes)
    pair = find_pair(evidence, "a", "b")
    assert pair.tasks[0].test is DifferenceTest.MCNEMAR_CLUSTERS
    (errors,) = evidence.scores["direct"].stderr.T
    least = [independent_error(answers[model]) for model in ("a", "b")]
    assert (errors > 1.2 * np.array(least)).all()


def test_a_column_with_few_or_no_shared_texts_makes_no_clusters(tmp_path: Path) -> None:
    """Documents that stand alone keep the error that the file gives."""
    answers = {"a": draw_answers()["a"][:60], "b": draw_answers()["b"][:60]}
    folder = write_lm_eval(tmp_path / "scores", answers)  # six passages
    evidence = read(folder)
    assert find_clusters(evidence.outcomes["direct"], "boolq") == {}
    stderr = evidence.scores["direct"].stderr[:, 0].tolist()
    assert stderr == [pytest.approx(independent_error(answers[model])) for model in ("a", "b")]
