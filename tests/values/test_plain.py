"""Records that write and read themselves: nothing is lost, missing keys take defaults, wrong types are refused."""

from __future__ import annotations

import json

import pytest

from potentia.errors import DataError
from potentia.values.engine_records import (
    EngineRecord,
    FormRecord,
    GradientDistance,
    LoadedWeights,
    LoadRecord,
    RehearsalFacts,
    RequestRecord,
    RouteRecord,
    TrainingFacts,
)
from potentia.values.metric import METRIC_COLUMNS, ORIGIN_COLUMNS
from potentia.values.provenance import (
    ModelProvenance,
    Provenance,
    TaskProvenance,
)
from potentia.values.scoring_route import ScoringLayers
from potentia.values.selection import (
    CutExamples,
    CutPrompts,
    ProbeResult,
    SearchEnd,
    SeedChoice,
    Selection,
    SplitLosses,
    TestedState,
)
from potentia.values.splits import PlannedSplit, SplitOrigin, SplitOriginKind, SplitPlan
from potentia.values.training_form import TrainingForm

TESTED = TestedState(
    learning_rate=1e-3, style="plain", seed=0, validation=0.5, value=0.4, stderr=0.1
)
TRAIN = PlannedSplit((SplitOrigin(SplitOriginKind.PUBLIC, "train"),), available=9, used=5)
SPLITS = SplitPlan(TRAIN, TRAIN, TRAIN, caps={"train": 5, "test": None}, seed=1, carve=0.2)
RECORDS = [
    Provenance(),
    Provenance(
        scoring_version=3,
        versions={"torch": "2.13"},
        model=ModelProvenance(source="a/b", trust_remote_code=True, exposed_tasks=("x",)),
        task=TaskProvenance("f", SPLITS),
        engine=EngineRecord(
            load=LoadRecord(LoadedWeights.PARTLY_RANDOM, misfits={"missing": 9}),
            scoring=(RouteRecord("tree", beyond=64, layers=ScoringLayers.FUSED, off_by=1e-6),),
            requests={"prompts": RequestRecord(1, 0.0)},
        ),
        training=TrainingFacts(
            targets=("q",),
            form=TrainingForm.PADDED,
            not_taken={TrainingForm.PACKED: "losses off by 0.1"},
            distances=FormRecord(
                rows=(9, 4), gradients=GradientDistance(loss=1e-7, lane=1e-6, layer=1e-5)
            ),
            rehearsal=RehearsalFacts(lanes=2, passes=1, slots=(0, 1)),
        ),
        tuning={"rank": 8},
        details={"unforeseen": {"a": 1}},
    ),
    Selection(),
    Selection(
        style="chat",
        seeds=(SeedChoice(0.5, epoch=2), SeedChoice(0.7)),
        tuned=False,
        search=SearchEnd.UNTUNED,
        best_tuned=TESTED,
        rates=(TESTED,),
        cut_prompts=CutPrompts(1, 2),
        cut_examples=CutExamples(cut=3, examples=4, tokens=5),
    ),
    ProbeResult(
        version=2,
        learning_rate=1e-3,
        learned=2,
        data="d",
        before={"train": SplitLosses({"text": (1.0, 2.0)}, {"text": (3, 4)})},
        after_epochs=({"train": {"text": 1.5}},),
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was_written(record):
    content = json.loads(json.dumps(record.to_dict()))
    assert type(record).from_dict(content) == record


def test_defaults_are_not_written():
    assert Provenance(imported_from="x.csv").to_dict() == {"imported_from": "x.csv"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1], "expected an object, not a list"),
        ({"epoch": "2"}, "epoch: expected a whole number, not a string"),
        ({"tuned": 1}, "tuned: expected a boolean, not a number"),
        ({"validation": True}, "validation: expected a number, not a boolean"),
        ({"validation": 10**400}, "validation: expected a number that is not so large"),
        ({"rates_tried": 3}, "rates_tried: expected a list, not a number"),
        ({"seeds": [{"epoch": 1}]}, "seeds: one of these is missing: value"),
        ({"best_tuned": "x"}, "best_tuned: expected an object, not a string"),
        ({"search": "at the bound"}, "search: 'at the bound' is not one of untuned, at_bound"),
        ({"validation_by_style": []}, "validation_by_style: expected an object"),
        ({"style": None, "epoch": []}, "epoch: expected a whole number, not a list"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(content, words):
    with pytest.raises(DataError) as error:
        Selection.from_dict(content)
    assert words in str(error.value)


def test_the_spread_between_seeds_and_what_may_have_more():
    assert RECORDS[3].seed_spread == pytest.approx(0.1 * 2**0.5)
    assert RECORDS[3].may_have_more
    assert Selection(seeds=(SeedChoice(0.5),)).seed_spread is None
    assert [end.label for end in SearchEnd if end.may_have_more] == [
        "untuned model used",
        "rate at the edge of the grid",
        "still rising",
    ]


def test_every_fact_of_a_score_has_a_column_of_its_own():
    columns = [*METRIC_COLUMNS, *ORIGIN_COLUMNS]
    assert len({column.stored_as for column in columns}) == len(columns)
    assert len({column.written_as for column in columns}) == len(columns)
