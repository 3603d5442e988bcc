"""Sockets: listeners, HTTP connections with limits, WebSockets, logs."""
