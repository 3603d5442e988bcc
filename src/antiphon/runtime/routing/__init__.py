"""Chooses the model of a request that leaves the choice to the server."""
