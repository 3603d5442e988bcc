"""The settings, and loading them from files, the environment and flags."""
