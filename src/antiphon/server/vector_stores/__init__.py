"""Vector stores over HTTP."""
