"""BOSE: stability over checkpoints, consistency with instruct versions, ablation of methods."""
