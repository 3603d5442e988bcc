"""The Messages protocol: a request becomes a command for the engine, its events become a message in blocks."""
