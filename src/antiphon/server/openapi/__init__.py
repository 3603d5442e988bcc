"""The server's OpenAPI document."""
