"""Mutated inputs for everything that reads what others wrote; ``python -m fuzz`` runs it, ``make fuzz`` at length."""
