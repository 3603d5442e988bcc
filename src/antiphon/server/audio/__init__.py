"""The routes below `/v1/audio`."""
