"""Audio files and streams of WAV: decoding and encoding them."""
