"""What the task tests share: the published benchmark folders, and a model that answers by hashing the question."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Every benchmark folder beside the checkout: task, train, validation, test documents after the split rules and caps.
BENCHMARKS = {
    "arc_easy": (1801, 450, 2376),
    "arc_challenge": (895, 224, 1172),
    "openbookqa": (3966, 991, 500),
    "commonsense_qa": (7793, 1000, 1221),
    "social_iqa": (26728, 1000, 1954),
    "headqa_en": (2657, 1000, 2742),
    "sst2": (50000, 1000, 872),
    "cola": (6841, 1000, 1043),
    "rte": (1992, 498, 277),
    "mrpc": (2934, 734, 408),
    "wic": (4342, 1000, 638),
    "boolq": (3200, 800, 3270),
    "gsm8k": (5978, 1000, 1319),
    "winogrande": (8187, 1000, 1267),
    "piqa": (1776, 444, 1838),
    "mathqa": (19248, 1000, 2985),
    "nq_open": (5199, 1000, 3610),
    "sciq": (4988, 500, 1000),
}


@pytest.fixture(scope="session")
def benchmarks(shared_data: Path) -> Path:
    return shared_data / "benchmarks"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["HF_DATASETS_CACHE"] = str(tmp_path_factory.mktemp("datasets"))


def number(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:6], "big")


def likelihood(context: str, continuation: str) -> tuple[float, bool]:
    drawn = number(context, continuation)
    return -(drawn % 100_003) / 5_000.0, drawn % 3 == 0


def generate(known: Mapping[str, str], context: str) -> str:
    """Answer half of the questions rightly, the others with a number."""
    drawn = number(context)
    return (
        known[context]
        if drawn % 2 and context in known
        else f" It is {drawn % 50}.\n#### {drawn % 50}"
    )


def fake_lm(known: Mapping[str, str]) -> Any:
    """Make an lm-eval model that answers by hashing."""
    from lm_eval.api.model import LM

    class Hashing(LM):  # type: ignore[misc]
        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            return [likelihood(*request.args) for request in requests]

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            return [likelihood("", *request.args)[0] for request in requests]

        def generate_until(self, requests: list[Any]) -> list[str]:
            return [generate(known, request.args[0]) for request in requests]

    return Hashing()


def answers(prompts: list[Any], known: Mapping[str, str]) -> list[list[Any]]:
    """Answer our prompts as the fake model answers lm-eval's."""
    from potentia.values.requests import Continuation, Document

    def one(request: Any) -> Any:
        if isinstance(request, Continuation):
            return likelihood(request.context, request.continuation)
        if isinstance(request, Document):
            return likelihood("", request.text)[0]
        return generate(known, request.context)

    return [[one(request) for request in prompt.requests] for prompt in prompts]


@pytest.fixture(scope="session")
def reference(benchmarks: Path) -> Callable[[str], Any]:
    """Build the harness's own task object on a folder, with nothing of ours."""

    @cache
    def make(name: str) -> Any:
        from lm_eval.api.task import ConfigurableTask
        from lm_eval.tasks._yaml_loader import load_yaml

        from potentia.tasks.definitions import task_index, tasks_folder

        config = load_yaml(tasks_folder() / task_index()[name].path)
        folder = (
            benchmarks
            / config["dataset_path"].replace("/", "--")
            / (config.get("dataset_name") or "default")
        )
        files = {file.stem: str(file) for file in folder.glob("*.parquet")}
        config.pop("tag", None)
        config.update(
            dataset_path="parquet", dataset_name=None, dataset_kwargs={"data_files": files}
        )
        task = ConfigurableTask(config=config)
        task.set_config("num_fewshot", 0)
        return task

    return make
