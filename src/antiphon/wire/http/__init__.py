"""The types of the server's other HTTP routes."""
