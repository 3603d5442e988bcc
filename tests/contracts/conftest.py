"""What every contract suite has: a Realtime server upstream."""

from support.contracts.engines import realtime_server

__all__ = ["realtime_server"]
