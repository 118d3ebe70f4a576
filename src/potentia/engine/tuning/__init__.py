"""Fine-tunings of one loaded model: lanes, many adapters in shared passes, and full tuning, one job at a time."""

from potentia.engine.tuning.examples import TokenisedExamples, encode_examples
from potentia.engine.tuning.full import FullStep, FullTrainer
from potentia.engine.tuning.full_lanes import FullLanes
from potentia.engine.tuning.lane import DROP, KEEP, Decision, LaneEpoch, LaneResult, StepInfo
from potentia.engine.tuning.lanes import LaneTrainer
from potentia.engine.tuning.schedule import LaneSpec, LoraConfig, Schedule
from potentia.engine.tuning.sharded import full_trainer
