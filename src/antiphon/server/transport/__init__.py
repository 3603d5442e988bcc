"""Sockets: the HTTP/1.1 connection with its limits, WebSockets, logs."""
