"""Fine-tune a loaded model: many adapters at once in common passes (lanes), or all its weights, one lane at a time."""

from potentia.engine.lane_spec import LaneSpec, TokenisedExamples
from potentia.engine.layers.adapter_methods import find_adapter_method
from potentia.engine.training.encoding import encode_examples
from potentia.engine.training.full_lanes import FullLanes
from potentia.engine.training.lane import Lane, LaneEpoch, StepInfo
from potentia.engine.training.lanes import LaneTrainer
from potentia.values.recipe import LoraConfig, Schedule
