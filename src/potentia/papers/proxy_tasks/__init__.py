"""Proxy tasks for abilities that have not emerged yet: relevance, robustness, choice, forecast."""
