"""
Which of the native server's slots answers: each keeps the tokens that it has seen last, and need not read them again.

Tenants are kept apart: how fast an answer comes, and the count of cached tokens, would tell one what another has asked.
"""

from collections.abc import Sequence
from itertools import takewhile

from msgspec import Struct


class _Slot(Struct):
    number: int
    tenant: str = ""
    tokens: Sequence[int] = ()
    used_at: int = 0
    taken: bool = False


class Lease(Struct, frozen=True):
    """A slot for one answer; `reuse` where what it keeps may be used."""

    number: int
    reuse: bool


class Slots:
    """A number of slots, each taken by one answer at a time."""

    def __init__(self, count: int) -> None:
        self._slots = [_Slot(number) for number in range(count)]
        self._turn = 0

    def take(self, tenant: str, tokens: Sequence[int]) -> Lease:
        """
        The free slot that knows most of the prompt already, else the one unused for longest.

        Raises:
            ValueError: all are taken.
        """
        free = [slot for slot in self._slots if not slot.taken]
        best = max(free, key=lambda slot: (_known(slot, tenant, tokens), -slot.used_at))
        reuse = best.tenant == tenant
        self._turn += 1
        best.taken, best.tenant, best.tokens, best.used_at = True, tenant, tokens, self._turn
        return Lease(best.number, reuse)

    def give_back(self, lease: Lease, tokens: Sequence[int]) -> None:
        """The answer is over; `tokens` are what the slot has seen now."""
        slot = self._slots[lease.number]
        slot.taken, slot.tokens = False, tokens


def _known(slot: _Slot, tenant: str, tokens: Sequence[int]) -> int:
    if slot.tenant != tenant:
        return 0
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(slot.tokens, tokens, strict=False)))
