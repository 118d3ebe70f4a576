"""The Study file: schema, validation, content keys."""

from potentia.study.file import make_study, read_study
from potentia.study.keys import canonical, content_key
from potentia.study.schema import EXPOSED, Adjust, Caps, ModelSpec, Selection, Study, TaskSpec, Tuning, recipe_test_task
