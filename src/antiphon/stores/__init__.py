"""Storage of responses, items, keys, client secrets and session records, and of recorded files."""
