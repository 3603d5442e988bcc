"""Uploaded files: stored, read, deleted and expired, and resolved where requests refer to them."""
