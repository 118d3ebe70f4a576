"""A whole model beside other tools: what they compute, and what Potentia computes."""

from potentia.engine.comparison.peft_comparison import Comparison, compare_with_peft
