"""Potentia inside other tools: lm-eval, experiment trackers."""
