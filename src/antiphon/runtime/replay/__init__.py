"""Replaying recorded sessions, and comparing what comes of it."""
