"""Sockets and HTTP: routes, limits, and the transports that carry a session's events."""
