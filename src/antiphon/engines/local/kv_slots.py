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
    is_busy: bool = False


class KvSlotLease(Struct, frozen=True):
    """A slot for one answer; `reuse` where what it keeps may be used."""

    number: int
    can_reuse: bool


class KvSlots:
    """A number of slots, each taken by one answer at a time."""

    def __init__(self, count: int) -> None:
        self._slots = [_Slot(number) for number in range(count)]
        self._use_count = 0

    def acquire(self, tenant: str, tokens: Sequence[int]) -> KvSlotLease:
        """
        The free slot that knows most of the prompt already, else the one unused for longest.

        Raises:
            ValueError: all are taken.
        """
        free = [slot for slot in self._slots if not slot.is_busy]
        best = max(free, key=lambda slot: (_common_prefix(slot, tenant, tokens), -slot.used_at))
        reuse = best.tenant == tenant
        self._use_count += 1
        best.is_busy, best.tenant, best.tokens, best.used_at = True, tenant, tokens, self._use_count
        return KvSlotLease(best.number, reuse)

    def release(self, lease: KvSlotLease, tokens: Sequence[int]) -> None:
        """The answer is over; `tokens` are what the slot has seen now."""
        slot = self._slots[lease.number]
        slot.is_busy, slot.tokens = False, tokens


def _common_prefix(slot: _Slot, tenant: str, tokens: Sequence[int]) -> int:
    if slot.tenant != tenant:
        return 0
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(slot.tokens, tokens, strict=False)))
