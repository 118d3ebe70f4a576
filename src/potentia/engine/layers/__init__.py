"""Fused layers, and how rows of many lanes lie in one pass."""
