"""Routes of the Responses API."""
