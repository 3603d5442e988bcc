"""Texts as vectors: a small sentence encoder on this machine's processor. It needs numpy and nothing else."""
