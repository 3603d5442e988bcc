"""What every contract suite has: a loop, a Realtime server upstream, and stores."""

from support.contracts.engines import loop, realtime_server
from support.contracts.stores import store

__all__ = ["loop", "realtime_server", "store"]
