"""The door that connections come in by."""

import resource

import pytest

from antiphon.config.settings import ServerSettings
from antiphon.runtime.core.metrics import Metrics
from antiphon.server.transport.limits import RESERVED_FILES, ConnectionLimiter, TokenBucket, raise_file_limit


def test_the_door_lets_in_as_many_as_there_is_room_for():
    metrics = Metrics()
    door = ConnectionLimiter(ServerSettings(connections=3, connections_per_address=2), metrics)
    assert [door.acquire(address) is None for address in ("a", "a", "a", "b", "b")] == [True, True, False, True, False]
    assert metrics.connections == 3
    door.release("a")
    assert door.acquire("b") is None
    assert metrics.dropped == {"address_limit": 1, "connection_limit": 1}


def test_the_door_forgets_who_has_left():
    door = ConnectionLimiter(ServerSettings(connections_per_address=1), Metrics())
    for number in range(1000):
        assert door.acquire(str(number)) is None
        door.release(str(number))
    assert not door._open_by_address


def test_a_door_has_no_more_room_than_the_process_may_open_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_file_limit(10) == 10
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= before[0]
    if hard != resource.RLIM_INFINITY:
        assert raise_file_limit(hard * 2) == hard - RESERVED_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_client_may_send_a_burst_and_then_no_faster_than_its_pace():
    now_s = 0.0
    pace = TokenBucket(messages_per_s=100, clock=lambda: now_s)
    assert pace.consume(200, 0) == 0, "two seconds' worth"
    assert pace.consume(50, 0) == 0.5
    now_s = 0.5
    assert pace.consume(0, 0) == 0
    assert pace.consume(1, 0) == pytest.approx(0.01)
    now_s = 100
    assert pace.consume(0, 64 << 20) == 0, "what was owed is long paid"
    assert pace.consume(0, 32 << 20) == pytest.approx(1)
