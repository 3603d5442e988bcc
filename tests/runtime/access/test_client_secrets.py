"""What a client secret opens, and until when."""

import pytest

from antiphon.errors import ClientError
from antiphon.runtime.access.client_secrets import ClientSecretIssuer
from antiphon.runtime.access.keys import ANONYMOUS_TENANT, Caller, Keyring, hash_secret, make_key
from antiphon.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

SESSION = b'{"type":"realtime"}'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Place:
    """A server's keys and secrets, at a time that stands still until it is moved."""

    def __init__(self, required: bool | None = None) -> None:
        self.now = 1000.0
        self.store = MemoryStore()
        self.keyring = self.another_keyring(required)
        self.secrets = ClientSecretIssuer(self.store.client_secrets, self.keyring, clock=lambda: self.now)

    def another_keyring(self, required: bool | None = None) -> Keyring:
        return Keyring(self.store.keys, required, clock=lambda: self.now, monotonic=lambda: self.now)

    async def caller(self, **fields: object) -> Caller:
        record, secret = make_key("laptop", now=self.now, **fields)  # type: ignore[arg-type]
        await self.store.keys.add(record)
        return await self.keyring.authenticate(secret)

    async def refusal(self, secret: str) -> ClientError:
        with pytest.raises(ClientError) as caught:
            await self.secrets.redeem(secret)
        assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
        return caught.value


async def test_a_secret_opens_what_it_was_made_for_as_often_as_is_wanted() -> None:
    place = Place()
    caller = await place.caller(tenant="ada", streams=3)
    made = await place.secrets.create(caller, SESSION, 60)
    assert made.value.startswith("ek_") and made.expires_at == 1060
    for _ in range(2):
        opened = await place.secrets.redeem(made.value)
        assert (opened.caller.tenant, opened.caller.key, opened.session) == ("ada", caller.key, SESSION)
        assert opened.caller.allowance is caller.allowance


async def test_a_secret_ends_at_its_second() -> None:
    place = Place()
    made = await place.secrets.create(await place.caller(), SESSION, 60)
    place.now = 1059.9
    await place.secrets.redeem(made.value)
    place.now = 1060.0
    assert "has expired" in (await place.refusal(made.value)).message


async def test_a_secret_that_nobody_made_opens_nothing_and_is_not_told_back() -> None:
    place = Place()
    assert "ek_0000" not in (await place.refusal("ek_" + "0" * 64)).message
    made = await place.secrets.create(await place.caller(), SESSION, 60)
    await place.refusal(made.value[:-1])
    await place.refusal(made.value + "0")


async def test_a_secret_falls_with_the_key_that_it_was_made_with() -> None:
    place = Place()
    caller = await place.caller()
    made = await place.secrets.create(caller, SESSION, 600)
    assert caller.key is not None
    await place.store.keys.revoke(caller.key.id, int(place.now))
    place.now += 3
    await place.refusal(made.value)


async def test_a_secret_ends_no_later_than_its_key_does() -> None:
    place = Place()
    made = await place.secrets.create(await place.caller(expires_at=1010), SESSION, 600)
    place.now = 1011.0
    await place.refusal(made.value)


async def test_a_secret_made_without_a_key_opens_until_keys_are_needed() -> None:
    place = Place()
    made = await place.secrets.create(Caller(ANONYMOUS_TENANT), SESSION, 600)
    opened = (await place.secrets.redeem(made.value)).caller
    assert (opened.tenant, opened.key) == (ANONYMOUS_TENANT, None)
    await place.caller()
    place.now += 3
    await place.refusal(made.value)


async def test_a_secret_is_no_key() -> None:
    place = Place()
    made = await place.secrets.create(await place.caller(), SESSION, 600)
    with pytest.raises(ClientError):
        await place.keyring.authenticate(made.value)


async def test_what_is_kept_of_a_secret_is_its_hash() -> None:
    place = Place()
    made = await place.secrets.create(await place.caller(), SESSION, 600)
    kept = await place.store.client_secrets.find(hash_secret(made.value))
    assert kept is not None and made.value.encode() not in kept.hash + kept.session
