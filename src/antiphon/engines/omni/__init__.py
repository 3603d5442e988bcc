"""The engine `omni`: MiniCPM-o workers."""
