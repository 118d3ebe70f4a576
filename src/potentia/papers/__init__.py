"""The published numbers of the papers beside ours."""

from potentia.papers.test_task import Evaluations, TaskTrainingPaper, reproduce_task_training
from potentia.papers.train_before_test import Bose, ProxyPaper, reproduce_bose, reproduce_proxy
from potentia.papers.train_before_test import reproduce as reproduce_train_before_test
