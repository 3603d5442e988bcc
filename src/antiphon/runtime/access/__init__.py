"""Who may do what, and how much of it: API keys, client secrets, rate limits."""
