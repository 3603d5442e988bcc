"""Realtime sessions over WebRTC: calls."""
