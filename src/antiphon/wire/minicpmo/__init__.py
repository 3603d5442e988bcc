"""The MiniCPM-o Realtime protocol's types."""
