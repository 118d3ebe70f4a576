"""Potentia ranks language models by what they can become."""

__version__ = "0.1.0"
