"""How a cell is scored: direct, few-shot, train-before-test, adjust. Tasks and engine in, scores out."""

from potentia.protocols.ask import Ask, DirectResult, Evaluation, Style, direct, evaluate
from potentia.protocols.training import Candidate, LanePlan, Stopped, TunedResult, schedule, select
from potentia.protocols.tuned import Host, Tuned, trainable
