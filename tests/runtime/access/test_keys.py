"""Which keys are accepted, by a clock that the test sets."""

import asyncio
import contextlib
import re
from collections.abc import Mapping

import pytest

from antiphon.errors import ClientError, ServerError, StoreError
from antiphon.records import KeyRecord
from antiphon.runtime.access.keys import DEFAULT_SCOPES, EARLY_REFRESHES_PER_MINUTE, MAX_OUTAGE_S, REFRESH_S, Keyring, make_key
from antiphon.stores.memory import MemoryKeyStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Counted(MemoryKeyStore):
    """
    Keys in memory that count how often they are read and written. They can't be written while they are full, or read
    while they are away, and what was read waits for the gate. Unless they are `near`, telling anything takes a wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.writes = 0
        self.is_full = self.is_away = self.is_near = False
        self.gate: asyncio.Event | None = None

    async def all(self) -> list[KeyRecord]:
        self.reads += 1
        keys = list(await super().all())
        if self.gate is not None:
            await self.gate.wait()
        if self.is_away:
            raise StoreError("The disk is gone.", is_temporary=True)
        return keys

    def is_empty_now(self) -> bool:
        return self.is_near and not self.is_away and super().is_empty_now()

    async def mark_used(self, last_used_at: Mapping[str, int]) -> None:
        if self.is_full:
            raise ServerError("The disk is full.")
        self.writes += bool(last_used_at)
        await super().mark_used(last_used_at)


class House:
    """A keyring, its keys, and the time there."""

    def __init__(self, required: bool | None = None) -> None:
        self.now = 1000.0
        self.keys = Counted()
        self.ring = Keyring(self.keys, required, lambda: self.now, lambda: self.now)

    async def key(self, **fields) -> tuple[KeyRecord, str]:
        record, secret = make_key("laptop", now=self.now, **fields)
        await self.keys.add(record)
        return record, secret

    async def refused(self, secret: str | None) -> ClientError:
        with pytest.raises(ClientError) as mistake:
            await self.ring.authenticate(secret)
        assert mistake.value.status == 401
        return mistake.value


def test_a_key_has_256_bits_and_only_its_hash_is_kept():
    record, secret = make_key("laptop", now=1.5)
    assert re.fullmatch(r"ak-[A-Za-z0-9_-]{43}", secret)
    assert len(record.hash) == 32 and record.prefix == secret[:7]
    assert secret.encode() not in record.hash and record.created_at == 1
    assert make_key("laptop", now=1.5)[1] != secret


def test_scopes_are_those_asked_for_and_no_others():
    assert make_key("x", now=0)[0].scopes == DEFAULT_SCOPES
    assert make_key("x", now=0, scopes=("admin",))[0].scopes == ("admin",)
    with pytest.raises(ServerError, match="no scope 'fly'"):
        make_key("x", now=0, scopes=("fly",))


async def test_without_any_key_everyone_is_nobody():
    house = House()
    assert (await house.ring.authenticate(None)).tenant == ""
    assert (await house.ring.authenticate("none")).key is None


async def test_a_key_is_its_tenants():
    house = House()
    record, secret = await house.key(tenant="ada")
    caller = await house.ring.authenticate(secret)
    assert (caller.tenant, caller.key) == ("ada", record)


async def test_once_there_is_a_key_one_is_needed():
    house = House()
    _, secret = await house.key()
    assert (await house.refused(None)).code is None
    wrong = await house.refused("ak-" + "x" * 43)
    assert wrong.code == "invalid_api_key" and wrong.message.startswith("Incorrect API key provided: ak-...xxxx. ")
    assert secret not in wrong.message


@pytest.mark.parametrize("secret", ["", "short", "ak-\n\x1b[31m" + "x" * 40, "schlüssel" * 5, "ak-" + "\udcff" * 40])
async def test_nonsense_is_no_key_and_is_not_repeated(secret):
    house = House(required=True)
    assert "Incorrect API key provided: " in (await house.refused(secret)).message
    assert (await house.refused(secret)).message.isprintable()


async def test_the_last_key_revoked_does_not_open_the_door():
    house = House()
    record, secret = await house.key()
    await house.ring.authenticate(secret)
    await house.keys.revoke(record.id, 1001)
    house.now += REFRESH_S
    await house.refused(secret)
    await house.refused(None)


async def test_a_key_can_be_needed_from_the_start_or_never():
    await House(required=True).refused(None)
    house = House(required=False)
    await house.key()
    assert (await house.ring.authenticate(None)).tenant == ""


async def test_a_key_ends_to_the_second():
    house = House()
    _, secret = await house.key(expires_at=1010)
    house.now = 1009.9
    await house.ring.authenticate(secret)
    assert house.ring.has_live_key
    house.now = 1010.0
    await house.refused(secret)
    assert not house.ring.has_live_key


async def test_a_new_key_opens_at_once():
    house = House()
    for _ in range(3):
        _, secret = await house.key()
        assert (await house.ring.authenticate(secret)).key


async def test_neither_right_nor_wrong_keys_read_the_store_each_time():
    house = House()
    _, secret = await house.key()
    for _ in range(1000):
        await house.ring.authenticate(secret)
    assert house.keys.reads == 1
    for number in range(1000):
        await house.refused(f"ak-{number}")
    assert house.keys.reads == 1 + EARLY_REFRESHES_PER_MINUTE
    house.now += REFRESH_S
    _, secret = await house.key()
    assert (await house.ring.authenticate(secret)).key


@pytest.mark.parametrize("required", [None, True])
async def test_a_store_that_tells_at_once_that_it_has_no_key_is_not_read_until_it_has_one(required):
    house = House(required)
    house.keys.is_near = True
    await house.ring.open()
    for _ in range(2 * EARLY_REFRESHES_PER_MINUTE):
        if required:
            await house.refused(None)
        else:
            await house.ring.authenticate("none")
        house.now += 0.01
    assert house.keys.reads == 1
    _, secret = await house.key()
    await house.refused(None)
    assert (await house.ring.authenticate(secret)).key
    assert house.keys.reads == 2


async def test_a_store_that_tells_at_once_is_read_as_any_other_while_it_can_not():
    house = House()
    house.keys.is_near = True
    await house.ring.open()
    house.keys.is_away = True
    house.now += REFRESH_S
    assert (await house.ring.authenticate(None)).tenant == ""
    house.now += MAX_OUTAGE_S
    await refused_for_now(house, None)
    house.keys.is_away = False
    assert (await house.ring.authenticate(None)).tenant == ""


async def test_requests_that_come_together_share_a_read_and_later_ones_have_another():
    house = House()
    await house.ring.open()
    house.keys.gate = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        early = [tasks.create_task(house.ring.authenticate(None)) for _ in range(2 * EARLY_REFRESHES_PER_MINUTE)]
        for _ in range(3):
            await asyncio.sleep(0)
        assert house.keys.reads == 2
        await house.key()
        late = [tasks.create_task(house.refused(None)) for _ in range(20)]
        await asyncio.sleep(0)
        house.keys.gate.set()
    assert {(await caller).tenant for caller in early} == {""}
    assert len([await refusal for refusal in late]) == 20
    assert house.keys.reads == 3


async def test_uses_are_written_when_it_is_time_and_at_the_end():
    house = House()
    record, secret = await house.key()
    await house.ring.open()
    for _ in range(100):
        house.now += 0.125
        await house.ring.authenticate(secret)
    assert house.keys.writes == 0
    await house.ring.write_last_used()
    await house.ring.write_last_used()
    assert house.keys.writes == 1
    house.now = 1125.0
    await house.ring.authenticate(secret)
    await house.ring.close()
    (kept,) = await house.keys.all()
    assert (kept.id, kept.last_used_at, house.keys.writes) == (record.id, 1125, 2)


async def test_a_store_that_cannot_be_written_lets_callers_in_and_keeps_their_uses_for_later():
    house = House()
    _, secret = await house.key()
    house.keys.is_full, house.now = True, 1060.0
    assert (await house.ring.authenticate(secret)).key
    await house.ring.write_last_used()
    house.keys.is_full = False
    await house.ring.close()
    assert [key.last_used_at for key in await house.keys.all()] == [1060]


# While the store can't be read


async def refused_for_now(house: House, secret: str | None) -> None:
    with pytest.raises(StoreError) as error:
        await house.ring.authenticate(secret)
    assert (error.value.status, error.value.code, error.value.retry_after_s) == (503, "store_unavailable", 5)


async def read_again(house: House, secret: str) -> None:
    """Start a read in the background by a request, and let it end."""
    house.now += REFRESH_S
    with contextlib.suppress(StoreError):
        await house.ring.authenticate(secret)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_known_keys_work_for_a_while_and_unknown_ones_are_not_called_wrong():
    house = House()
    record, secret = await house.key()
    revoked, its_secret = await house.key()
    await house.keys.revoke(revoked.id, 1)
    await house.ring.open()
    read_at, house.keys.is_away, house.now = house.now, True, house.now + REFRESH_S
    for _ in range(100):
        assert (await house.ring.authenticate(secret)).key == record
    assert house.keys.reads == 2, "one try, not one for each request"
    await refused_for_now(house, "ak-" + "x" * 43)
    await house.refused(its_secret)
    await house.refused(None)
    house.now = read_at + MAX_OUTAGE_S
    assert (await house.ring.authenticate(secret)).key
    house.now += 1
    await refused_for_now(house, secret)
    await house.refused(None)
    assert await house.ring.inactive_keys([record.id]) == set(), "sessions go on"
    house.keys.is_away = False
    await read_again(house, secret)
    assert (await house.ring.authenticate(secret)).key
    await house.refused("ak-" + "x" * 43)


async def test_nobody_waits_twice_for_a_store_that_hangs():
    house = House()
    record, secret = await house.key()
    await house.ring.open()
    house.keys.gate, house.now = asyncio.Event(), house.now + REFRESH_S
    for _ in range(3):
        async with asyncio.timeout(60):
            assert (await house.ring.authenticate(secret)).key == record
    await refused_for_now(house, "ak-" + "x" * 43)
    assert house.keys.reads == 2, "the read that hangs is the only one"
    house.keys.gate.set()
    await read_again(house, secret)
    await house.refused("ak-" + "x" * 43)
    await house.ring.close()


async def test_a_server_without_keys_stays_open_while_its_store_is_away():
    house = House()
    await house.ring.open()
    house.keys.is_away, house.now = True, house.now + REFRESH_S
    assert (await house.ring.authenticate(None)).tenant == ""
    house.now += MAX_OUTAGE_S
    await refused_for_now(house, None)


async def test_keys_that_were_never_read_let_nobody_in():
    house = House(required=True)
    house.keys.is_away = True
    with pytest.raises(StoreError):
        await house.ring.open()
    await refused_for_now(house, "ak-" + "x" * 43)


async def test_a_keys_limits_last_from_request_to_request():
    house = House()
    _, secret = await house.key(requests_per_minute=2)
    allowances = [(await house.ring.authenticate(secret)).allowance for _ in range(2)]
    house.now += REFRESH_S
    allowances.append((await house.ring.authenticate(secret)).allowance)
    assert allowances[0] is not None and all(allowance is allowances[0] for allowance in allowances)


async def test_keys_that_were_revoked_have_expired_or_never_were_have_ended():
    house = House()
    (revoked, _), (brief, _), (live, _) = await house.key(), await house.key(expires_at=1010), await house.key()
    ids = [revoked.id, brief.id, live.id, "key_none"]
    assert await house.ring.inactive_keys(ids) == {"key_none"}
    await house.keys.revoke(revoked.id, 1001)
    house.now += REFRESH_S
    assert await house.ring.inactive_keys(ids) == {"key_none", revoked.id}
    house.now = 1010
    assert await house.ring.inactive_keys(ids) == {"key_none", revoked.id, brief.id}
