"""Recording of live sessions: their events, audio and images."""
