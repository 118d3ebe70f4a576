"""Pure functions from evidence to findings, a room for each question; ``stats`` holds what they share."""
