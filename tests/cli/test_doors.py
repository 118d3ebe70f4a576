"""One door per answer: every command says the same of the same store."""

from __future__ import annotations

import json

import pytest

from made_store import MODELS, make_store
from potentia.analysis.rankings import CLAIM_PROBABILITY, build_scoreboard, find_pair, find_rankings
from potentia.evidence import read
from potentia.show import make_answer, make_report


def test_every_door_gives_the_same_answer(tmp_path, potentia):
    store = make_store(tmp_path / "made.db")
    evidence = read(store)
    board = build_scoreboard(evidence)
    assert find_rankings(evidence).scoreboard.to_dict() == board.to_dict()
    report = make_report(evidence)
    assert make_answer(report).headline.replace("\N{NO-BREAK SPACE}", " ") == board.headline()
    printed = potentia("analyze", "rankings", store)
    assert board.headline() in printed.stdout
    second = next(m for m in board.ranking.models if m != board.first)
    pair = find_pair(evidence, board.first, second)
    lead = pair.leads[board.protocol]
    assert lead.chance == pytest.approx(
        max(
            board.ranking.probability_better(board.first, second),
            1 - board.ranking.probability_better(board.first, second),
        )
    )
    assert set(MODELS) >= {lead.first, lead.second}
    if board.ranking.is_first_certain:
        assert lead.first == board.first
        assert lead.chance >= CLAIM_PROBABILITY
    result = json.loads(potentia("compare", board.first, second, store, "--json").stdout)
    assert result["leads"][str(board.protocol)]["chance"] == pytest.approx(lead.chance)
