"""The OpenAI Responses API as a protocol machine."""
