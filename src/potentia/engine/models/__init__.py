"""Models loaded, named by their content, tokenized and laid out over devices."""
