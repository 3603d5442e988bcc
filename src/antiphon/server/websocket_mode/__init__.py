"""The WebSocket mode of the Responses API."""
