"""The MiniCPM-o Realtime protocol as a protocol machine."""
