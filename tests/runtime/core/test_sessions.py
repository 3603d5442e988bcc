"""The sessions under way, and what ends them."""

import pytest

from antiphon.errors import Fault
from antiphon.runtime.access.keys import make_key
from antiphon.runtime.core.sessions import Live


class Session:
    """What a session was told to end with."""

    def __init__(self) -> None:
        self.ends: list[str | None] = []

    def halt(self, fault: Fault) -> None:
        self.ends.append(fault.code)


def test_sessions_end_with_their_key_and_others_go_on() -> None:
    live, (mine, _), (other, _) = Live(), make_key("mine", now=1), make_key("other", now=1)
    first, second, third, nobodys = Session(), Session(), Session(), Session()
    with live.during(first, mine), live.during(second, mine), live.during(third, other), live.during(nobodys):
        assert live.key_ids == {mine.id, other.id}
        live.revoke({mine.id, "key_nobodys"})
        assert [session.ends for session in (first, second, third, nobodys)] == [["invalid_api_key"], ["invalid_api_key"], [], []]
        assert live.key_ids == {other.id}
        live.revoke({mine.id})
        assert len(first.ends) == 1
    assert len(live) == 0


def test_a_server_that_stops_takes_no_more_and_ends_them_all() -> None:
    live, session = Live(), Session()
    with live.during(session):
        live.is_draining = True
        with pytest.raises(Fault):
            live.admit()
        live.halt()
    assert session.ends == ["server_shutting_down"]
