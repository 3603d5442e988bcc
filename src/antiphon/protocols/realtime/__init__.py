"""The OpenAI Realtime API as a protocol machine."""
