"""Speech around any text engine: turn detection, speech to text, the engine, text to speech."""
