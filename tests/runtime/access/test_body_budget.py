"""How many bytes of bodies are in memory at once."""

import pytest

from antiphon.config.settings import ServerSettings
from antiphon.errors import ApiError, ClientError
from antiphon.runtime.access.body_budget import BodyBudget

MIB = 1 << 20


def budget():
    return BodyBudget(ServerSettings(bodies_mib=100, bodies_per_key_mib=64))


def test_one_key_has_its_part_and_no_more():
    bodies = budget()
    first, second = bodies.lease("a"), bodies.lease("a")
    first.extend(40 * MIB)
    with pytest.raises(ClientError, match="the limit is 64 MiB") as refusal:
        second.extend(25 * MIB)
    assert (refusal.value.status, refusal.value.code, refusal.value.retry_after_s) == (429, "rate_limit_exceeded", 1)
    bodies.lease("b").extend(60 * MIB)
    first.release()
    second.extend(25 * MIB)


def test_all_together_have_theirs():
    bodies = budget()
    bodies.lease("a").extend(60 * MIB)
    with pytest.raises(ApiError) as refusal:
        bodies.lease("b").extend(41 * MIB)
    assert (refusal.value.status, refusal.value.code) == (503, "server_is_overloaded")


def test_a_lease_grows_with_its_body_and_counts_it_once():
    bodies = budget()
    lease = bodies.lease("a")
    for size in (10, 10, 7, 30):
        lease.extend(size)
    assert bodies.used_bytes == lease.size_bytes == 30
    lease.release()
    lease.release()
    assert bodies.used_bytes == 0


def test_who_has_nothing_is_forgotten():
    bodies = budget()
    for number in range(100):
        bodies.lease(str(number)).extend(1)
        lease = bodies.lease(f"none {number}")
        with pytest.raises(ApiError):
            lease.extend(200 * MIB)
    assert len(bodies._bytes_by_holder) == 100
