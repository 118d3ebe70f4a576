"""The architecture matrix: tiny models of every causal architecture of the installed transformers, tried whole.

Each is scored beside lm-eval's HFLM and tuned beside PEFT, and its adapters are read back by plain PEFT.
``python -m architectures`` runs all of them and writes ``docs/architectures.md``.
"""
