"""Scores of one loaded model: log-likelihoods over prefix trees, perplexity in windows, greedy text."""

from potentia.engine.score.network import Network, Router
from potentia.engine.score.scorer import Likelihood, Scorer
