"""Fine-tunings of one loaded model: lanes, many adapters in shared passes, and full tuning, one job at a time."""

from potentia.engine.lane_spec import (
    LaneSpec,
    LoraConfig,
    Schedule,
    TokenisedExamples,
    encode_examples,
)
from potentia.engine.training.full_lanes import FullLanes
from potentia.engine.training.lane import Lane, LaneEpoch, StepInfo
from potentia.engine.training.lanes import LaneTrainer
