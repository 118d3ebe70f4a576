"""Fine-tunings of one loaded model: lanes, many adapters in shared passes, and full tuning, one job at a time."""

from potentia.engine.tune.beside import Comparison, beside_peft
from potentia.engine.tune.full_lanes import FullLanes
from potentia.engine.tune.lanes import LaneTrainer
from potentia.engine.tune.schedule import (
    Lane,
    LaneEpoch,
    LaneSpec,
    LoraConfig,
    Schedule,
    StepInfo,
    TokenisedExamples,
    encode_examples,
)
