"""Typed messages of each protocol, and nothing else: no behaviour, no I/O."""
