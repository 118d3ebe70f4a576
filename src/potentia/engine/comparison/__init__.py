"""Compare what Potentia computes with a model with what other tools compute with it."""

from potentia.engine.comparison.peft_comparison import Comparison, compare_with_peft
