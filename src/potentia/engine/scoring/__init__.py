"""Scores of one loaded model: log-likelihoods over prefix trees, perplexity in windows, greedy text."""

from potentia.engine.scoring.network import Network, Router
from potentia.engine.scoring.scorer import Likelihood, Scorer
