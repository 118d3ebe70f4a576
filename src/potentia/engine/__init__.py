"""All that computes with tensors: load models (here), score them (``scoring``), fine-tune them (``training``).

The engine knows no study, store or task file. Importing this package loads no torch, so that a plan can name models by
their content in no time.
"""

from potentia.engine.models.foreign_files import check_adapter_config, check_model_folder
from potentia.engine.models.identity import (
    fingerprints,
    may_have_template,
    quantised_fingerprint,
)
from potentia.engine.models.loading import (
    LoadedModel,
    going_first,
    load,
    pick_device,
    pick_dtype,
    planned_dtype,
)
from potentia.engine.models.proof_cache import PROOF_FOLDER_VARIABLE, open_run_proof_cache
from potentia.engine.models.text_encoders import embed_texts, load_text_encoder, load_tokenizer
from potentia.engine.models.tokenization import BosPolicy, Encoder, Ids, chat_template, write_chat
