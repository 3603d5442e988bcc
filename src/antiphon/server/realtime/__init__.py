"""Routes of the Realtime API: its WebSocket and client secrets."""
