"""Fine-tunings of one loaded model: lanes, many adapters in shared passes, and full tuning, one job at a time.

The names are imported when they are first used: layers and proofs need single modules of this package, and these need
layers and proofs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.engine.proof.peft_comparison import Comparison as Comparison
    from potentia.engine.proof.peft_comparison import beside_peft as beside_peft
    from potentia.engine.training.full_lanes import FullLanes as FullLanes
    from potentia.engine.training.lanes import LaneTrainer as LaneTrainer
    from potentia.engine.training.schedule import Lane as Lane
    from potentia.engine.training.schedule import LaneEpoch as LaneEpoch
    from potentia.engine.training.schedule import LaneSpec as LaneSpec
    from potentia.engine.training.schedule import LoraConfig as LoraConfig
    from potentia.engine.training.schedule import Schedule as Schedule
    from potentia.engine.training.schedule import StepInfo as StepInfo
    from potentia.engine.training.schedule import TokenisedExamples as TokenisedExamples
    from potentia.engine.training.schedule import encode_examples as encode_examples

_MODULES = {
    "Comparison": "potentia.engine.proof.peft_comparison",
    "beside_peft": "potentia.engine.proof.peft_comparison",
    "FullLanes": "potentia.engine.training.full_lanes",
    "LaneTrainer": "potentia.engine.training.lanes",
    "Lane": "potentia.engine.training.schedule",
    "LaneEpoch": "potentia.engine.training.schedule",
    "LaneSpec": "potentia.engine.training.schedule",
    "LoraConfig": "potentia.engine.training.schedule",
    "Schedule": "potentia.engine.training.schedule",
    "StepInfo": "potentia.engine.training.schedule",
    "TokenisedExamples": "potentia.engine.training.schedule",
    "encode_examples": "potentia.engine.training.schedule",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
