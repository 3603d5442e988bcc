"""The route by which remote workers join."""
