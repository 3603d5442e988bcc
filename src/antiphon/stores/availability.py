"""Whether a store can be used now, and one report for each time that it can't."""

import time
from collections.abc import Callable

SETTLE_S = 60.0
"""
An outage that begins so soon after the last one goes on until no write has failed for as long: a full disk still takes
small writes, and each of them would end an outage that the next large one begins.
"""

OnOutage = Callable[[str | None], None]
"""Takes what is wrong, for the operator, when an outage begins, and None when it ends."""


class Availability:
    """
    What the latest uses of a store say about it.

    A store that is unreachable can be neither read nor written; one that is unwritable, as on a full disk, can be read.

    Args:
        on_outage: called once when an outage begins, however many uses fail, and once when it ends.
        on_failure: called with what is wrong when a single use fails for a reason of its own.
        monotonic: seconds from any origin.
    """

    def __init__(
        self,
        on_outage: OnOutage = lambda _details: None,
        on_failure: Callable[[str], None] = lambda _details: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_outage = on_outage
        self.mark_failed = on_failure
        self._monotonic = monotonic
        self._is_unreachable = False
        self._is_unwritable = False
        self._reached_at = monotonic()
        self._unwritable_at = self._changed_at = self._reached_at - SETTLE_S
        self._must_settle = False

    @property
    def is_out(self) -> bool:
        """Whether an outage has begun and not ended."""
        return self._is_unreachable or self._is_unwritable

    @property
    def unreached_s(self) -> float:
        """Seconds since the store was last reached."""
        return self._monotonic() - self._reached_at

    def mark_reached(self) -> None:
        """A use that only reads has succeeded."""
        self._reached_at = self._monotonic()
        self._update(is_unreachable=False, is_unwritable=self._is_unwritable)

    def mark_written(self) -> None:
        """A write has succeeded."""
        self._reached_at = self._monotonic()
        is_settled = not self._must_settle or self._reached_at - self._unwritable_at >= SETTLE_S
        self._update(is_unreachable=False, is_unwritable=self._is_unwritable and not is_settled)

    def mark_unreachable(self, details: str) -> None:
        """A use has failed since the store can't be reached."""
        self._update(is_unreachable=True, is_unwritable=self._is_unwritable, details=details)

    def mark_unwritable(self, details: str) -> None:
        """A write has failed, as any other would have."""
        self._unwritable_at = self._monotonic()
        if not self.is_out:
            self._must_settle = self._unwritable_at - self._changed_at < SETTLE_S
        self._update(is_unreachable=self._is_unreachable, is_unwritable=True, details=details)

    def _update(self, *, is_unreachable: bool, is_unwritable: bool, details: str | None = None) -> None:
        was_out = self.is_out
        self._is_unreachable, self._is_unwritable = is_unreachable, is_unwritable
        if self.is_out is not was_out:
            self._changed_at = self._monotonic()
            self._on_outage(details)
