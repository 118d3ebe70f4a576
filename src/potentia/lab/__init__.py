"""Studies with a known truth: the demo, the laboratory, the treatment experiment."""

from potentia.lab.demo import demo_study
from potentia.lab.demo_findings import demo_findings
from potentia.lab.laboratory import lay_out
from potentia.lab.treatment import lay_out_treatment
