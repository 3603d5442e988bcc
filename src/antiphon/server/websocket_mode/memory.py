"""
What a connection remembers: the latest response of each lane, so that the next request sends only what is new.

That is how a response with `store: false` is continued. It is gone with the connection.
"""

from collections.abc import Callable

from msgspec import Struct

from antiphon.errors import ApiError, ClientError, shorten
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.resolve_request import KnownHistory

MEMORY_LIMIT_BYTES = 64 << 20
"""The most that one connection remembers: as much as a stored conversation may come to."""

Lane = str | None
"""The `stream_id` of a lane; None for the one without."""


class _Latest(Struct, frozen=True):
    response_id: str
    history: KnownHistory | None
    problem: str = ""


class ConnectionMemory:
    """
    The latest response of each lane.

    Args:
        new_lease: what the items take is counted with these, one for each lane.
    """

    def __init__(self, new_lease: Callable[[], BodyLease], limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self._new_lease = new_lease
        self._limit_bytes = limit_bytes
        self._latest: dict[Lane, _Latest] = {}
        self._leases: dict[Lane, BodyLease] = {}

    @property
    def size_bytes(self) -> int:
        """The JSON of all items; those that lanes share are counted for each."""
        return sum(lease.size_bytes for lease in self._leases.values())

    def find(self, response_id: str) -> KnownHistory | None:
        """The conversation up to a response, if that is the latest of any lane."""
        return next((each.history for each in self._latest.values() if each.response_id == response_id), None)

    def explain(self, response_id: str | None) -> ClientError | None:
        """Why the latest response of a lane is not here, if it is too large."""
        problem = next((each.problem for each in self._latest.values() if each.response_id == response_id and each.problem), None)
        if problem is None:
            return None
        return ClientError(
            f"Previous response with id '{shorten(response_id)}' is not remembered: {problem}. Send the whole conversation as input.",
            code="previous_response_not_found",
            param="previous_response_id",
        )

    def remember(self, lane: Lane, response_id: str, history: KnownHistory) -> None:
        """Make a response the latest of its lane; one that is too large is remembered by its id only."""
        self.forget(lane)
        others_bytes = self.size_bytes
        if others_bytes + history.size_bytes > self._limit_bytes:
            # The id is kept: a request that continues it learns why it is not here.
            problem = f"the conversations of one connection may come to {self._limit_bytes >> 20} MiB together"
            self._latest[lane] = _Latest(response_id, None, problem)
            return
        lease = self._new_lease()
        try:
            lease.extend(history.size_bytes)
        except ApiError as error:
            # The error of a key's limit is the client's; that of the server's limit is the server's.
            scope = "your connections" if isinstance(error, ClientError) else "all connections of this server"
            limit = "server.bodies_per_key_mib" if isinstance(error, ClientError) else "server.bodies_mib"
            self._latest[lane] = _Latest(response_id, None, f"{scope} remember as much as they may together (`{limit}`)")
            return
        self._latest[lane], self._leases[lane] = _Latest(response_id, history), lease

    def evict(self, lane: Lane, response_id: str) -> None:
        """
        Forget a response that its own lane failed to continue. Another lane's keeps it.

        Source: OpenAI's guide to WebSocket mode, on continuation.
        """
        if lane in self._latest and self._latest[lane].response_id == response_id:
            self.forget(lane)

    def forget(self, lane: Lane) -> None:
        """Forget a lane's latest response, and give back its bytes."""
        self._latest.pop(lane, None)
        if (lease := self._leases.pop(lane, None)) is not None:
            lease.release()

    def clear(self) -> None:
        """Forget everything, and give back all bytes."""
        for lane in tuple(self._latest):
            self.forget(lane)
