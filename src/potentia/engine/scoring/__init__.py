"""Scores of one loaded model: log-likelihoods over prefix trees, perplexity in windows, greedy text."""

from potentia.engine.layers.network import Network, Router
from potentia.engine.scoring.scorer import ScoredRequest, Scorer
