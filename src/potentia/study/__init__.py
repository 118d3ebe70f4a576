"""The Study file: schema, validation, content keys."""

from potentia.study.checkpoints import find_checkpoints
from potentia.study.file import (
    SCORING_VERSION,
    cell_key,
    content_key,
    make_study,
    read_study,
    renamed,
    step_key,
    study_key,
)
from potentia.study.price import Price, find_price, parse_price
from potentia.study.schema import EXPOSED, Caps, ModelSpec, Study, TaskSpec, Wanted
from potentia.study.tuning import (
    Adjust,
    Probe,
    SelectionRule,
    Tuning,
    adjust_tuning,
    own_rates,
    recipe_test_task,
)
