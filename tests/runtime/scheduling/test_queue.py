"""The order of waiting tickets, as a data structure."""

import pytest

from antiphon.runtime.scheduling.base import Requirements
from antiphon.runtime.scheduling.queue import Ticket, TicketQueue

BOTH = ("audio", "chat")


def nobody(_key):
    return False


def ticket(number, kind="audio", key="", model="m"):
    return Ticket(
        id=f"q{number}",
        requirements=Requirements(model=model, kind=kind, key_id=key),
        number=number,
        priority=0,
        enqueued_s=number,
        enqueued_at=0,
    )


def queued(*tickets, is_held=False):
    queue = TicketQueue()
    for each in tickets:
        queue.add(each, is_parked=is_held)
    return queue


def test_a_model_that_nobody_waits_for_is_not_named():
    one, other = ticket(1), ticket(2, model="n")
    queue = queued(one, other)
    assert queue.models() == ["m", "n"]
    queue.remove(one)
    assert (queue.models(), queue.length("m"), queue.length("never"), len(queue)) == (["n"], 0, 0, 1)


def test_whoever_is_met_and_held_by_their_key_waits_for_it_and_can_leave():
    mine, later, yours = ticket(1, key="me"), ticket(2, key="me"), ticket(3, key="you")
    queue = queued(mine, later, yours)
    assert queue.peek("m", BOTH, lambda key: key == "me") is yours
    assert (mine.is_parked, later.is_parked, yours.is_parked) == (True, True, False)
    assert [queue.position(each) for each in (mine, later, yours)] == [1, 2, 3]
    queue.remove(mine)
    assert queue.unpark("me") == [later]
    assert queue.peek("m", BOTH, nobody) is later


def test_of_each_kind_the_first_that_a_key_held_back_is_let_go_in_the_order_of_coming():
    tickets = [ticket(1, "chat", "me"), ticket(3, "audio", "me"), ticket(2, "audio", "me"), ticket(4, "chat", "me")]
    queue = queued(*tickets, is_held=True)
    assert [each.id for each in queue.unpark("me")] == ["q1", "q2"]
    assert [each.id for each in queue.unpark("me")] == ["q3", "q4"]
    assert [each.id for each in queue.tickets("m")] == ["q1", "q2", "q3", "q4"]
    assert not queue._parked_by_key


def test_keys_that_nobody_is_held_by_take_no_room():
    queue = queued(ticket(1, key="me"), is_held=True)
    queue.unpark("me")
    assert queue.unpark("me") == queue.unpark("you") == []
    assert not queue._parked_by_key


def test_whoever_leaves_while_all_are_looked_at_does_not_hide_another():
    tickets = [ticket(number) for number in (1, 2, 3)]
    queue = queued(*tickets)
    seen = []
    for each in queue.tickets("m"):
        seen.append(each.id)
        queue.remove(each)
    assert seen == ["q1", "q2", "q3"]


def test_who_is_not_in_the_queue_cannot_leave_it():
    queue = queued(ticket(1), ticket(3))
    with pytest.raises(AssertionError):
        queue.remove(ticket(2))
