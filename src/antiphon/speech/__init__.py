"""Ears and a voice: what turns sound into words and turns, and words into sound."""
