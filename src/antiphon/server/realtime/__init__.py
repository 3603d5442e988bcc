"""The routes of the Realtime API."""
