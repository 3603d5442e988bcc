"""How many bytes of clients' JSON the server keeps at once: in all, and for each key."""

from collections import defaultdict

from antiphon.config.settings import ServerSettings
from antiphon.errors import ClientError, overloaded_error


class BodyBudget:
    """
    Counts the bodies of requests that have not ended, as they arrive; one for each server process.

    A request can take many times its body's size in memory until its response ends: four of 32 MiB took 3 GB
    (docs/decisions/0022).
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._limit_bytes = settings.bodies_mib << 20
        self._limit_per_key_bytes = settings.bodies_per_key_mib << 20
        self._bytes = 0
        self._bytes_by_holder: defaultdict[str, int] = defaultdict(int)

    def lease(self, holder: str, *, is_admitted: bool = False) -> "BodyLease":
        """
        The part of one request.

        Args:
            holder: the id of the key, or the client's address where it needs none.
            is_admitted: whether it gets what it needs, even beyond the limits: it was admitted before.
        """
        return BodyLease(self, holder, is_admitted=is_admitted)

    @property
    def used_bytes(self) -> int:
        """How many bytes are kept."""
        return self._bytes

    def take(self, holder: str, size_bytes: int, *, is_admitted: bool = False) -> None:
        """
        Count bytes.

        Args:
            is_admitted: whether they are counted even beyond the limits.

        Raises:
            ClientError: the holder has too many; they were not counted.
            ServerError: there are too many in all; they were not counted.
        """
        if not is_admitted and self._bytes_by_holder[holder] + size_bytes > self._limit_per_key_bytes:
            # Looking it up made an entry; if refused clients left theirs, addresses would fill the memory.
            self._forget_if_empty(holder)
            raise ClientError(
                f"The bodies of your unfinished requests are too large together: the limit is {self._limit_per_key_bytes >> 20} MiB "
                "(`server.bodies_per_key_mib`). Please try again when one of them has ended.",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after_s=1,
            )
        if not is_admitted and self._bytes + size_bytes > self._limit_bytes:
            self._forget_if_empty(holder)
            raise overloaded_error("The server has too many large requests (`server.bodies_mib`). Please try again later.")
        self._bytes += size_bytes
        self._bytes_by_holder[holder] += size_bytes

    def give_back(self, holder: str, size_bytes: int) -> None:
        """Subtract bytes of a request that has ended."""
        self._bytes -= size_bytes
        self._bytes_by_holder[holder] -= size_bytes
        self._forget_if_empty(holder)

    def _forget_if_empty(self, holder: str) -> None:
        if not self._bytes_by_holder[holder]:
            del self._bytes_by_holder[holder]


class BodyLease:
    """
    The bytes that one request's body takes of the budget.

    Attributes:
        holder: whose they are.
        size_bytes: how many.
    """

    __slots__ = ("_budget", "_is_admitted", "holder", "size_bytes")

    def __init__(self, budget: BodyBudget, holder: str, *, is_admitted: bool = False) -> None:
        self.size_bytes = 0
        self._is_admitted = is_admitted
        self._budget = budget
        self.holder = holder

    def extend(self, size_bytes: int) -> None:
        """
        Take more, up to `size_bytes` in all.

        Raises:
            ApiError: as `BodyBudget.take`.
        """
        if size_bytes > self.size_bytes:
            self._budget.take(self.holder, size_bytes - self.size_bytes, is_admitted=self._is_admitted)
            self.size_bytes = size_bytes

    def hand_over(self) -> "BodyLease":
        """A lease of what this one has, which then has nothing: for what outlives the request."""
        # Nothing is counted anew, so the handing over can't be refused.
        successor = BodyLease(self._budget, self.holder)
        successor.size_bytes, self.size_bytes = self.size_bytes, 0
        return successor

    def release(self) -> None:
        """Give everything back."""
        if self.size_bytes:
            self._budget.give_back(self.holder, self.size_bytes)
            self.size_bytes = 0
