"""Fine-tunings of one loaded model: lanes, many adapters in shared passes, and full tuning, one job at a time."""

from potentia.engine.proof.peft_comparison import Comparison, beside_peft
from potentia.engine.training.full_lanes import FullLanes
from potentia.engine.training.lanes import LaneTrainer
from potentia.engine.training.schedule import (
    Lane,
    LaneEpoch,
    LaneSpec,
    LoraConfig,
    Schedule,
    StepInfo,
    TokenisedExamples,
    encode_examples,
)
