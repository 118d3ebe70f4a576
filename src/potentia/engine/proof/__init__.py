"""Whether a fast path may be used: the reference, trial rows, tolerances and refusals, for scoring and training."""
