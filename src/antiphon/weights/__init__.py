"""Model files as data: a catalogue, fetching, and verifying by sha256 before anything is loaded."""
