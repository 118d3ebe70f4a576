"""Studies with a known truth: the demo, the laboratory."""

from potentia.lab.demo import demo_findings, demo_study
from potentia.lab.laboratory import lay_out_laboratory
