"""Sessions under way of a key that opens nothing any more."""

import time

import pytest

from antiphon.runtime.access.keys import make_key
from antiphon.server.processes.run import background_server
from antiphon.stores.sql.store import SqlStore
from support.server.minicpmo_peer import opened
from support.server.realtime_peer import connected, posted
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

SECRETS = "/v1/realtime/client_secrets"


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_session_ends_with_the_key_that_opened_it(tmp_path):
    """Sessions that outlive their credential: one that was open when its key was revoked went on for its whole hour."""
    config = configured(tmp_path, {"parrot": {"engine": "scripted", **SCRIPT}}, **{"logging.level": "error"})
    records, secrets = zip(*(make_key(name, now=1) for name in ("stolen", "mine")), strict=True)
    expiring, expiring_secret = make_key("brief", now=1, expires_at=int(time.time()) + 3)
    store = SqlStore(str(config.database_url))
    await store.open()
    for record in (*records, expiring):
        await store.keys.add(record)
    with background_server(config, is_persistent=True) as url:
        _, secret = await posted(url, SECRETS, {}, secrets[0])
        async with (
            connected(url, key=secrets[0]) as talking,
            connected(url, key=secret["value"]) as with_secret,
            connected(url, key=expiring_secret) as expired,
            opened(url, key=secrets[0], mode="chat") as chatting,
            connected(url, key=secrets[1]) as other,
        ):
            await chatting.begin()
            assert await store.keys.revoke(records[0].id, int(time.time()))
            for peer in (talking, with_secret, expired):
                assert await peer.end() == (3000, "The API key that this session was opened with was revoked, or has expired.")
            closed = (await chatting.until("session.closed"))[-1]
            assert closed["reason"] == "unauthorized"
            assert (await chatting.end())[0] == 1008
            assert (await other.hear())["type"] == "session.created"
            assert (await other.ask("Hi"))[-1]["type"] == "response.done"
    await store.close()
