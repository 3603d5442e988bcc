"""The engine `realtime`: any server of the Realtime API."""
