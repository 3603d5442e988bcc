"""Shared by the live protocols: client, session log, recording, subprotocols."""
