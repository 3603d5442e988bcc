"""Engines in processes of their own, here and on other machines."""
