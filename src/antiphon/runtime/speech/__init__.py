"""The speech models of the server, and their use by other parts of it."""
