"""Replaying recorded sessions, and comparing the replay with the recording."""
