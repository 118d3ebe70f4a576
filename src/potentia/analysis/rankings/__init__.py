"""How tasks rank models: agreement, significance, alignment, components, the overall ranking."""
