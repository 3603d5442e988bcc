"""The route by which workers join."""
