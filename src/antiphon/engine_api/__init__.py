"""
All that protocols and engines say to each other: commands to an engine, events from it, and the contract of an engine.
"""
