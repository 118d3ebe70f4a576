"""The values that every room speaks in: scores, protocols, findings, requests."""
