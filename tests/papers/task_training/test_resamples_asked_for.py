"""A reproduction draws as often as the request says: also not at all."""

from __future__ import annotations

import pytest

from potentia.analysis.registration import ReproductionRequest
from potentia.papers.task_training import reproduction
from potentia.papers.task_training.extension import PAPER_RESAMPLES, reproduce_paper


@pytest.mark.parametrize(("requested", "drawn"), [(None, PAPER_RESAMPLES), (0, 0), (7, 7)])
def test_a_request_for_no_draws_is_one(
    requested: int | None, drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws_of_calls = []

    def remember_draws(*_sources: object, draws: int) -> None:
        draws_of_calls.append(draws)

    monkeypatch.setattr(reproduction, "reproduce_task_training", remember_draws)
    reproduce_paper(ReproductionRequest(files=(), resamples=requested))
    assert draws_of_calls == [drawn]
