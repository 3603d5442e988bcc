"""Model weights: a catalogue, downloads, and verification by SHA-256 before anything is loaded."""
