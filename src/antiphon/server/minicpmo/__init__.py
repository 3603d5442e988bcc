"""The routes of the MiniCPM-o Realtime protocol."""
