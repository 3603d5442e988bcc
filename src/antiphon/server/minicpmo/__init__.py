"""Routes of the MiniCPM-o protocol: its WebSocket, presets and voices."""
