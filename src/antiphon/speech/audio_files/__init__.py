"""Audio files: decoding, encoding, and WAV streams."""
