"""What a study's file says that readers must know stands under the report's headline; a task named fix is quoted."""

from potentia.analysis.benchmark import Recommendation
from potentia.lab.demo import DEMO_NOTE, demo_study
from potentia.show.sections import _quote_verdict_word
from potentia.study import make_study
from potentia.study.file import study_key


def test_a_note_is_no_part_of_a_studys_key():
    plain = {"models": ["a"], "tasks": ["arc_easy"]}
    assert study_key(make_study(plain)) == study_key(make_study({**plain, "note": "toys"}))


def test_the_demo_says_that_its_models_are_toys(tmp_path):
    assert demo_study(tmp_path).note == DEMO_NOTE
    assert "toys" in DEMO_NOTE
    assert "planted" in DEMO_NOTE


def test_a_task_that_is_called_as_a_verdict_is_quoted():
    assert [_quote_verdict_word(name) for name in ("ask", "fix")] == ["ask", "“fix”"]
    assert Recommendation.FIX == "fix"
