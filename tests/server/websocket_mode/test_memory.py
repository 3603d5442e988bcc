"""What a connection remembers."""

import pytest

from antiphon.config.settings import ServerSettings
from antiphon.runtime.access.body_budget import BodyBudget
from antiphon.runtime.resolve_request import KnownHistory
from antiphon.server.websocket_mode.memory import ConnectionMemory
from antiphon.wire.responses.items import Message

MIB = 1 << 20


@pytest.fixture
def budget():
    return BodyBudget(ServerSettings(bodies_mib=100, bodies_per_key_mib=64))


def memory_of(budget, holder="key", limit_mib=64):
    return ConnectionMemory(lambda: budget.lease(holder), limit_mib * MIB)


def history(mib):
    return KnownHistory((Message(role="user", content="Hi"),), mib * MIB)


def test_the_latest_response_of_each_lane_is_found(budget):
    memory = memory_of(budget)
    memory.remember("a", "resp_1", history(1))
    memory.remember("b", "resp_2", history(2))
    memory.remember("a", "resp_3", history(3))
    assert memory.find("resp_1") is None and memory.find("resp_2") == history(2) and memory.find("resp_3") == history(3)
    assert memory.size_bytes == budget.used_bytes == 5 * MIB


def test_only_its_own_lane_evicts_a_response(budget):
    memory = memory_of(budget)
    memory.remember("a", "resp_1", history(1))
    memory.evict("b", "resp_1")
    memory.evict("a", "resp_2")
    assert memory.find("resp_1")
    memory.evict("a", "resp_1")
    assert memory.find("resp_1") is None and budget.used_bytes == 0


@pytest.mark.parametrize(
    ("holder", "other_mib", "limit_mib", "named"),
    [("other", 0, 2, "2 MiB"), ("key", 63, 64, "server.bodies_per_key_mib"), ("other", 60, 64, "server.bodies_mib")],
)
def test_what_is_too_large_is_remembered_by_its_reason(budget, holder, other_mib, limit_mib, named):
    for number, each in enumerate((holder, "third") if named == "server.bodies_mib" else (holder,)):
        if other_mib:
            budget.lease(each).extend((other_mib - 22 * number) * MIB)
    memory = memory_of(budget, limit_mib=limit_mib)
    memory.remember(None, "resp_1", history(3))
    assert memory.find("resp_1") is None and memory.size_bytes == 0
    error = memory.explain("resp_1")
    assert error.code == "previous_response_not_found" and named in error.message and memory.explain("resp_2") is None
    memory.remember(None, "resp_2", history(0))
    assert memory.find("resp_2") and memory.explain("resp_1") is None


def test_everything_is_given_back_in_the_end(budget):
    memory = memory_of(budget)
    for lane in (None, "a", "b"):
        memory.remember(lane, f"resp_{lane}", history(1))
    memory.clear()
    assert budget.used_bytes == 0 and memory.find("resp_a") is None
