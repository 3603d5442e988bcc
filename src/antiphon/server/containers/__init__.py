"""Containers in which models run code, and their files, over HTTP."""
