"""Scarce workers: the queue for them, their assignment, and the engine that waits for one."""
