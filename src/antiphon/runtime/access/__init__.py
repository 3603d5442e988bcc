"""Who may use the server, and how much: keys, client secrets and rate limits."""
