"""The published numbers of the papers beside ours."""

from potentia.papers.bose import Bose, reproduce_bose
from potentia.papers.evaluations import Evaluations
from potentia.papers.proxy import ProxyPaper, reproduce_proxy
from potentia.papers.test_task import TaskTrainingPaper, reproduce_task_training
from potentia.papers.train_before_test import reproduce as reproduce_train_before_test
