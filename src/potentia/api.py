"""What ``import potentia`` offers, in one list."""
