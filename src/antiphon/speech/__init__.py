"""Speech to text, text to speech, and turn detection."""
