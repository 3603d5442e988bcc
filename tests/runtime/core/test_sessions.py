"""The sessions under way, and what ends them."""

import pytest

from antiphon.errors import ApiError
from antiphon.runtime.access.keys import make_key
from antiphon.runtime.core.sessions import LiveSessions


class Session:
    """The event that ends a session."""

    def __init__(self) -> None:
        self.ends: list[str | None] = []

    def shut_down(self, fault: ApiError) -> None:
        self.ends.append(fault.code)


def test_sessions_end_with_their_key_and_others_go_on() -> None:
    live, (mine, _), (other, _) = LiveSessions(), make_key("mine", now=1), make_key("other", now=1)
    first, second, third, nobodys = Session(), Session(), Session(), Session()
    with live.track(first, mine), live.track(second, mine), live.track(third, other), live.track(nobodys):
        assert live.key_ids == {mine.id, other.id}
        live.revoke({mine.id, "key_nobodys"})
        assert [session.ends for session in (first, second, third, nobodys)] == [["invalid_api_key"], ["invalid_api_key"], [], []]
        assert live.key_ids == {other.id}
        live.revoke({mine.id})
        assert len(first.ends) == 1
    assert len(live) == 0


def test_who_comes_to_listen_for_the_drain_after_its_start_is_told_at_once() -> None:
    live, told = LiveSessions(), list[str]()
    with live.on_drain(lambda: told.append("early")):
        live.begin_drain()
        assert told == ["early"]
        with live.on_drain(lambda: told.append("late")):
            assert told == ["early", "late"]


def test_a_server_that_stops_takes_no_more_and_ends_them_all() -> None:
    live, session = LiveSessions(), Session()
    with live.track(session):
        live.is_draining = True
        with pytest.raises(ApiError):
            live.check_admission()
        live.shut_down()
    assert session.ends == ["server_shutting_down"]
