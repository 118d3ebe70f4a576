"""Tensors only: models loaded and named here, their scores in ``scoring``, their fine-tunings in ``tuning``.

This room itself imports no torch until a model is loaded, so that a plan can name models by their content.
"""

from potentia.engine.identity import (
    VERDICTS,
    fingerprints,
    may_have_template,
    quantised_fingerprint,
    verdicts_of_run,
)
from potentia.engine.loading import (
    LoadedModel,
    going_first,
    load,
    pick_device,
    pick_dtype,
    planned_dtype,
)
from potentia.engine.tokens import BosPolicy, Encoder, Ids, chat_template, write_chat
