"""Routes of Chat Completions."""
