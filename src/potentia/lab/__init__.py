"""Studies with a known truth: the demo, the laboratory, the treatment experiment."""

from potentia.lab.demo import demo_findings, demo_study
from potentia.lab.laboratory import lay_out, lay_out_treatment
