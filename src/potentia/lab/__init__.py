"""Studies with a known truth: the demo, the laboratory, the treatment experiment."""
