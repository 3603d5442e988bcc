"""The OpenAI Realtime API's types, in its beta and its GA dialect."""
