"""Which requests of a connection run now."""

import pytest

from antiphon.errors import ClientError
from antiphon.server.websocket_mode.lanes import Lanes, read_stream_id


def started(lanes):
    """All that may run now."""
    found = []
    while (start := lanes.start_next()) is not None:
        found.append(start)
    return found


def test_a_lane_runs_one_request_after_the_other_and_lanes_side_by_side():
    lanes = Lanes()
    for lane, name in [("a", "a1"), ("a", "a2"), (None, "n1"), ("b", "b1"), (None, "n2")]:
        lanes.add(lane, name)
    assert started(lanes) == [("a", "a1"), (None, "n1"), ("b", "b1")]
    lanes.finish(None)
    assert started(lanes) == [(None, "n2")]
    lanes.finish("a")
    assert started(lanes) == [("a", "a2")]
    for lane in ("a", "b", None):
        assert not lanes.is_idle
        lanes.finish(lane)
    assert lanes.is_idle


def test_the_oldest_that_waits_gets_the_place_that_is_free():
    lanes = Lanes()
    for number in range(18):
        lanes.add(f"lane{number}", number)
    assert [request for _, request in started(lanes)] == list(range(16))
    lanes.finish("lane9")
    assert started(lanes) == [("lane16", 16)]


def test_a_successor_comes_before_what_waits():
    lanes = Lanes()
    lanes.add("a", "first")
    lanes.add("a", "second")
    started(lanes)
    lanes.add_first("a", "successor")
    lanes.finish("a")
    assert started(lanes) == [("a", "successor")]


def test_a_request_without_room_is_not_added():
    lanes = Lanes()
    for number in range(32):
        lanes.add(f"lane{number}", number)
    with pytest.raises(ClientError) as many_lanes:
        lanes.add("another", 0)
    lanes.add(None, 0)
    while lanes.start_next():
        pass
    for number in range(64 - 17):
        lanes.add("lane0", number)
    with pytest.raises(ClientError) as many_requests:
        lanes.add("lane0", 0)
    assert (many_lanes.value.code, many_requests.value.code) == ("websocket_stream_limit_reached", "rate_limit_exceeded")
    assert len(lanes.drop_waiting()) == 64


@pytest.mark.parametrize("value", ["", "a b", "ä", "a\n", "x" * 257, 7, [], {}])
def test_a_stream_id_of_another_form_is_refused(value):
    with pytest.raises(ClientError) as error:
        read_stream_id(value)
    assert error.value.code == "invalid_stream_id"


@pytest.mark.parametrize("value", [None, "a", "A-Z_0.9", "x" * 256])
def test_a_stream_id_names_a_lane(value):
    assert read_stream_id(value) == value
