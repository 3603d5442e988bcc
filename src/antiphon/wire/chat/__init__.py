"""Chat Completions: what `POST /v1/chat/completions` takes, and what it answers."""
