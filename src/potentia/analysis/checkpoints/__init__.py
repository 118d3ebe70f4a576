"""Checkpoints of pretraining runs and versions of models: who comes from whom, and how a run grows."""

from potentia.analysis.checkpoints.training_runs import (
    Training,
    TrainingRun,
    find_training,
    follow_training,
)
from potentia.analysis.checkpoints.training_signal import (
    CheckpointAverage,
    TrainingSignal,
    choose_average,
    find_training_signal,
)
from potentia.analysis.lineage import (
    Checkpoint,
    StepUnit,
    find_checkpoints,
    find_instruct_versions,
    group_by_series,
    named_checkpoints,
    pair_models,
    read_checkpoints,
    read_pairs,
)
