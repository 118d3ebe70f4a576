"""One benchmark by itself: its classes where it has labels."""

from potentia.analysis.benchmark.classification import Classification, find_classification
