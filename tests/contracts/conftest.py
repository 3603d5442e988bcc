"""What every contract suite has: a loop, and a Realtime server upstream."""

from support.contracts.engines import loop, realtime_server

__all__ = ["loop", "realtime_server"]
