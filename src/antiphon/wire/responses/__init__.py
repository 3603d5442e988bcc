"""The OpenAI Responses API's types."""
