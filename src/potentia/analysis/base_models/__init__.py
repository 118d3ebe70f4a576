"""Base models in training: stability over checkpoints, consistency with instruct versions, ablation of methods."""

from potentia.analysis.base_models.ablation import Ablation, compare_methods
from potentia.analysis.base_models.find import (
    ConsistencyFindings,
    Training,
    find_ablation,
    find_consistency,
    find_stability,
    find_training,
    read_checkpoints,
    read_pairs,
)
from potentia.analysis.base_models.stability import (
    Checkpoint,
    Consistency,
    Stability,
    measure_consistency,
    measure_stability,
)
