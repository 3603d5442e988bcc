"""The HTTP server: routes, limits, WebSockets and WebRTC calls."""
