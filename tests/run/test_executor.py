"""A new executor is one new file with one class."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

import tiny
from potentia import extensions
from potentia.errors import InputError
from potentia.run import Assignment, run_study
from potentia.run.executors.base import ExecutionRequest, QueueExecutor
from potentia.run.worker import Answer, answer_assignment
from potentia.study import make_study


class HereExecutor(QueueExecutor):
    """Computes assignments in this process."""

    labels: ClassVar[list[str]] = []

    def start(self, request: ExecutionRequest) -> Sequence[Assignment]:
        self.tasks = request.tasks
        return request.divide(1, "cpu")

    def submit(self, assignment: Assignment) -> Hashable:
        self.labels.append(assignment.label)
        return assignment.label

    def collect_answers(self) -> Iterable[tuple[Hashable, Answer]]:
        for label, assignment in list(self.running.items()):
            yield label, answer_assignment(assignment, lambda: False, tasks=self.tasks)

    def request_stop(self) -> None:
        pass

    def close(self, *, graceful: bool) -> None:
        pass


def test_a_class_makes_an_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny.save_model(tmp_path / "m")
    tiny.save_questions(tmp_path / "colours.jsonl", n=40)
    study = make_study(
        {
            "models": [{"name": "m", "path": str(tmp_path / "m")}],
            "tasks": [{"name": "colours", "file": str(tmp_path / "colours.jsonl")}],
            "protocols": ["direct"],
            "device": "cpu",
            "store": str(tmp_path / "s.db"),
        }
    )
    with pytest.raises(InputError, match="no executor 'here'"):
        run_study(study, executor="here")
    entry_point = EntryPoint("executor.here", f"{__name__}:HereExecutor", "potentia")
    by_kind = {kind: {} for kind in extensions.ExtensionKind}
    by_kind[extensions.ExtensionKind.EXECUTOR]["here"] = entry_point
    monkeypatch.setattr(extensions, "_entry_points_by_kind", lambda: by_kind)
    assert run_study(study, executor="here").computed == 1
    assert HereExecutor.labels == ["m"]
