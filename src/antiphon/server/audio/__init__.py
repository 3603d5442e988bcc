"""Routes under `/v1/audio`."""
