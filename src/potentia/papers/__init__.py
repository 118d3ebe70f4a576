"""The documents, each in a package of its own: analyses, report sections, commands and printed numbers.

They are added to the tool as an extension from outside is. ``ENTRY_POINTS`` is what a distribution writes as its entry
points of the group ``potentia`` (``potentia.extensions``). A package is loaded when one of its names is first used.
"""

from typing import TYPE_CHECKING

from potentia.later import import_later

if TYPE_CHECKING:
    from potentia.papers.base_models.ablation import find_ablation
    from potentia.papers.base_models.consistency import find_consistency
    from potentia.papers.base_models.reproduction import reproduce_bose
    from potentia.papers.base_models.stability import find_stability
    from potentia.papers.proxy_tasks.analysis import find_proxies
    from potentia.papers.proxy_tasks.options import ProxyOptions
    from potentia.papers.proxy_tasks.reproduction import reproduce_proxy
    from potentia.papers.task_training.analysis import find_test_task
    from potentia.papers.task_training.exposure import Exposure, find_exposure
    from potentia.papers.task_training.options import TestTaskOptions
    from potentia.papers.task_training.reproduction import reproduce_task_training
    from potentia.papers.train_before_test.reproduction import reproduce_train_before_test

ENTRY_POINTS = {
    "analysis.checkpoints": "potentia.papers.base_models.extension:CHECKPOINT_ANALYSIS",
    "analysis.exposure": "potentia.papers.task_training.extension:EXPOSURE_ANALYSIS",
    "analysis.test-task": "potentia.papers.task_training.extension:TEST_TASK_ANALYSIS",
    "analysis.proxy": "potentia.papers.proxy_tasks.extension:PROXY_ANALYSIS",
    "section.test-task": "potentia.papers.task_training.extension:TEST_TASK_SECTION",
    "section.exposure": "potentia.papers.task_training.extension:EXPOSURE_SECTION",
    "section.stability": "potentia.papers.base_models.extension:STABILITY_SECTION",
    "section.small-models": "potentia.papers.base_models.extension:SMALL_MODELS_SECTION",
    "section.consistency": "potentia.papers.base_models.extension:CONSISTENCY_SECTION",
    "section.ablation": "potentia.papers.base_models.extension:ABLATION_SECTION",
    "section.proxies": "potentia.papers.proxy_tasks.extension:PROXY_SECTION",
    "reproduction.train-before-test": (
        "potentia.papers.train_before_test.extension:TRAIN_BEFORE_TEST_REPRODUCTION"
    ),
    "reproduction.test-task": "potentia.papers.task_training.extension:TEST_TASK_REPRODUCTION",
    "reproduction.proxy": "potentia.papers.proxy_tasks.extension:PROXY_REPRODUCTION",
    "reproduction.bose": "potentia.papers.base_models.extension:BOSE_REPRODUCTION",
}

_MODULE_OF_NAME = {
    "find_ablation": "base_models.ablation",
    "find_consistency": "base_models.consistency",
    "find_stability": "base_models.stability",
    "reproduce_bose": "base_models.reproduction",
    "ProxyOptions": "proxy_tasks.options",
    "find_proxies": "proxy_tasks.analysis",
    "reproduce_proxy": "proxy_tasks.reproduction",
    "TestTaskOptions": "task_training.options",
    "find_exposure": "task_training.exposure",
    "Exposure": "task_training.exposure",
    "find_test_task": "task_training.analysis",
    "reproduce_task_training": "task_training.reproduction",
    "reproduce_train_before_test": "train_before_test.reproduction",
}

__getattr__ = import_later(__name__, _MODULE_OF_NAME)
