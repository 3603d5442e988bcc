"""The Files API over HTTP."""
