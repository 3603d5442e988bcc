"""Slots: what one keeps is used again, but never another tenant's."""

import pytest

from antiphon.engines.local.kv_slots import KvSlotLease, KvSlots


def used(slots, tenant, tokens):
    lease = slots.acquire(tenant, tokens)
    slots.release(lease, tokens)
    return lease


def test_a_conversation_comes_back_to_the_slot_that_knows_it():
    slots = KvSlots(2)
    first, other = used(slots, "a", [1, 2, 3]), used(slots, "a", [7, 8, 9])
    assert other.number != first.number
    assert slots.acquire("a", [1, 2, 3, 4]) == KvSlotLease(first.number, can_reuse=True, cached_tokens=3)


def test_a_new_conversation_takes_the_slot_unused_for_longest():
    slots = KvSlots(2)
    first, second = used(slots, "a", [1]), used(slots, "a", [2])
    assert slots.acquire("a", [3]).number == first.number
    assert slots.acquire("a", [4]).number == second.number


def test_what_another_tenant_said_is_never_used():
    slots = KvSlots(1)
    used(slots, "a", [1, 2, 3])
    assert slots.acquire("b", [1, 2, 3]) == KvSlotLease(0, can_reuse=False)


def test_a_slot_that_answers_is_not_given_twice():
    slots = KvSlots(1)
    slots.acquire("a", [1])
    with pytest.raises(ValueError, match="empty"):
        slots.acquire("a", [1])


def test_what_was_answered_counts_as_known():
    slots = KvSlots(2)
    lease = slots.acquire("a", [1, 2])
    slots.release(lease, [1, 2, 3, 4])
    used(slots, "a", [1, 2])
    assert slots.acquire("a", [1, 2, 3, 4, 5]).number == lease.number


def test_a_prompt_that_shares_only_a_beginning_leaves_a_conversation_its_slot():
    slots = KvSlots(2)
    talk = used(slots, "a", [1, 2, 3, 4, 5])
    assert used(slots, "a", [1, 2, 9]) == KvSlotLease(1 - talk.number, can_reuse=False)
    assert slots.acquire("a", [1, 2, 3, 4, 5, 6]) == KvSlotLease(talk.number, can_reuse=True, cached_tokens=5)
