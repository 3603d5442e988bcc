"""Text to speech: voices in processes of their own, and speech servers."""
