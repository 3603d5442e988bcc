"""
Which of the native server's slots generates a response: each has the KV cache of its last prompt, and needs not process
it again.

The cache is never shared between tenants: latency, and the count of cached tokens, would tell one tenant what another
has sent.
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
    """
    A slot for one response.

    Attributes:
        can_reuse: whether its cache may be used.
        cached_tokens: how many of the prompt's tokens it has in its cache.
    """

    number: int
    can_reuse: bool
    cached_tokens: int = 0


class KvSlots:
    """The slots, each with one response at a time."""

    def __init__(self, count: int) -> None:
        self._slots = [_Slot(number) for number in range(count)]
        self._use_count = 0

    def cached_tokens(self, tenant: str, tokens: Sequence[int]) -> int:
        """How many of a prompt's tokens the best slot has in its cache."""
        return max(_useful_prefix(slot, tenant, tokens) for slot in self._slots)

    def acquire(self, tenant: str, tokens: Sequence[int]) -> KvSlotLease:
        """
        The free slot whose cache has most of the prompt, else the one unused for longest.

        A slot counts only if half of its cache is of use: a request that shares no more than the instructions with a
        conversation, such as the same question without tools, must not cost that all of its cache.

        Raises:
            ValueError: all are busy.
        """
        free = [slot for slot in self._slots if not slot.is_busy]
        best = max(free, key=lambda slot: (_useful_prefix(slot, tenant, tokens), -slot.used_at))
        can_reuse = best.tenant == tenant
        cached_tokens = _common_prefix(best, tenant, tokens)
        self._use_count += 1
        best.is_busy, best.tenant, best.tokens, best.used_at = True, tenant, tokens, self._use_count
        return KvSlotLease(best.number, can_reuse, cached_tokens)

    def release(self, lease: KvSlotLease, tokens: Sequence[int]) -> None:
        """The response is over; `tokens` are what is in the slot's cache now."""
        slot = self._slots[lease.number]
        slot.is_busy, slot.tokens = False, tokens


def _common_prefix(slot: _Slot, tenant: str, tokens: Sequence[int]) -> int:
    if slot.tenant != tenant:
        return 0
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(slot.tokens, tokens, strict=False)))


def _useful_prefix(slot: _Slot, tenant: str, tokens: Sequence[int]) -> int:
    prefix = _common_prefix(slot, tenant, tokens)
    return prefix if 2 * prefix >= len(slot.tokens) else 0
