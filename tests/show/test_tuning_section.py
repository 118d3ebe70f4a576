"""The section on the fine-tunings says each sentence once, however many protocols fine-tune."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from potentia.analysis.rankings.tuning import SHOWN_ENDS, TuningComparison, TuningSummary
from potentia.show.sections import tuning_section
from potentia.values.protocol import TRAIN_BEFORE_TEST, Protocol


def _comparison(protocol: Protocol, results: int) -> TuningComparison:
    summary = TuningSummary(
        model="m",
        cells=results,
        trainable=1e6,
        parts=("q_proj",),
        tokens=1e5,
        updates=200,
        rates=(1e-3,),
        doubts=dict.fromkeys(SHOWN_ENDS, 0),
        seed_spread=float("nan"),
        noise=0.01,
    )
    return TuningComparison(protocol, (summary,), (), {}, {})


def test_sentences_of_two_protocols_stand_above_the_tables_and_not_below_them_again() -> None:
    tuning = {}
    for protocol, results in ((TRAIN_BEFORE_TEST, 6), (Protocol("adjust"), 4)):
        tuning[protocol] = _comparison(protocol, results)
    report_data: Any = SimpleNamespace(rankings=SimpleNamespace(tuning=tuning))
    section = tuning_section(report_data)
    assert section is not None
    assert section.table is not None
    tables = [section.table, *section.tables]
    assert len(tables) == 2
    for comparison in tuning.values():
        (sentence,) = comparison.sentences()
        assert sentence in section.lead
        assert not any(sentence in table.note for table in tables)
        assert sentence in comparison.tables()[0].note, "where the finding stands alone"
