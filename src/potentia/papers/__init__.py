"""The published numbers of the papers beside ours."""
