"""The Study file: schema, validation, content keys."""

from potentia.study.checkpoints import list_checkpoints_at
from potentia.study.file import (
    SCORING_VERSION,
    cell_key,
    content_key,
    make_study,
    read_study,
    renamed_cell_key,
    step_key,
    study_key,
)
from potentia.study.price import Price, find_price, parse_price
from potentia.study.schema import EXPOSED, Caps, ModelSpec, Study, TaskSpec, WantedResults
from potentia.study.tuning import (
    Adjust,
    Probe,
    SelectionRule,
    Tuning,
    find_rates_of_model,
    recipe_test_task,
    tuning_for_adjust,
)
