"""The settings: what they are, and how they are read from files, the environment and flags."""
