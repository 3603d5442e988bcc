"""The frames that a client which lost its network comes back to."""

import json

import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.server.minicpmo.resume import ResendBuffer, ResumableSessions


def frames(sent, count):
    return [sent.append(b'{"type":"x"}') for _ in range(count)]


def numbers(kept):
    return [json.loads(frame)["seq"] for frame in kept]


def test_frames_are_numbered_from_one():
    assert numbers(frames(ResendBuffer(), 3)) == [1, 2, 3]


def test_without_a_number_what_was_sent_since_the_loss_is_missed():
    sent = ResendBuffer()
    frames(sent, 2)
    sent.mark_disconnected()
    assert sent.frames_after(None) == []
    frames(sent, 2)
    assert numbers(sent.frames_after(None)) == [3, 4]


@pytest.mark.parametrize(("number", "missed"), [(0, [1, 2, 3]), (2, [3]), (3, []), (4, None), (99, None)])
def test_with_a_number_what_follows_it_is_missed(number, missed):
    sent = ResendBuffer()
    frames(sent, 3)
    found = sent.frames_after(number)
    assert (None if found is None else numbers(found)) == missed


def test_what_was_let_go_can_not_be_had_any_more():
    sent = ResendBuffer()
    size_bytes = len(frames(sent, 10)[0])
    assert not sent.trim(10 * size_bytes + 1)
    assert sent.trim(3 * size_bytes + 1)
    assert sent.frames_after(6) is None and numbers(sent.frames_after(7)) == [8, 9, 10]


def test_letting_go_of_what_the_client_has_seen_is_no_loss():
    sent = ResendBuffer()
    size_bytes = len(frames(sent, 5)[0])
    sent.mark_disconnected()
    frames(sent, 2)
    assert not sent.trim(2 * size_bytes)
    assert sent.trim(size_bytes)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(40, 400))))
def test_whatever_is_sent_lost_and_let_go_nothing_is_missing_between_what_comes_back(steps):
    sent, seen = ResendBuffer(), 0
    for here, away, limit_bytes in steps:
        for frame in frames(sent, here):
            seen = json.loads(frame)["seq"]
        sent.trim(limit_bytes)
        sent.mark_disconnected()
        frames(sent, away)
        is_missing = sent.trim(limit_bytes)
        missed = sent.frames_after(seen)
        if is_missing:
            assert missed is None
            seen = sent.last_seq
            continue
        assert numbers(missed) == list(range(seen + 1, sent.last_seq + 1)) == numbers(sent.frames_after(None))
        seen = sent.last_seq


class Owned:
    tenant = "anna"


def test_a_session_is_found_by_its_owner_and_nobody_else():
    resumable = ResumableSessions()
    resumable.add("token", mine := Owned())
    assert resumable.find("token", "anna") is mine
    for token, tenant in (("token", "ben"), ("tok", "anna"), ("", "")):
        with pytest.raises(ClientError) as refused:
            resumable.find(token, tenant)
        assert refused.value.code == "session_not_found"
    resumable.remove("token")
    resumable.remove("token")
    assert len(resumable) == 0
