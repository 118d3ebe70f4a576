"""Train-before-test: the paper's printed numbers beside ours; its analyses are ``potentia.analysis.rankings``."""
