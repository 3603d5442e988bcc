"""What a small request refers to is counted before it is loaded: ids cost nothing to send."""

import json

import pytest
from msgspec.structs import replace

from antiphon.records import ItemRecord
from antiphon.server.processes.run import background_server
from antiphon.stores.sql.store import SqlStore
from support.server.plain_http import post
from support.server.scripted_server import SCRIPT, configured
from support.stores.responses import response

pytestmark = pytest.mark.anyio


def large_item():
    return json.dumps({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * (8 << 20)}] * 3}).encode()


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def url(tmp_path_factory):
    """A server with a conversation of three responses, of 24 MiB each."""
    config = configured(tmp_path_factory.mktemp("home"), {"parrot": {"engine": "scripted", **SCRIPT}}, **{"logging.level": "error"})
    store = SqlStore(config.database_url)
    await store.open()
    body = large_item()
    for number in range(3):
        items = (ItemRecord(id=f"msg_{number}", direction="input", body=body),)
        previous = f"resp_{number - 1}" if number else None
        await store.put(replace(response(f"resp_{number}"), tenant="", items=items, previous_response_id=previous))
    await store.close()
    with background_server(config, is_persistent=True) as url:
        yield url


def refused(url, **fields):
    status, _, body = post(url, {"model": "parrot", **fields})
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    return error


async def test_a_conversation_that_is_too_large_is_refused_with_the_limit(url):
    error = refused(url, input="Hi", previous_response_id="resp_2")
    assert error["param"] == "previous_response_id" and "more than 64 MiB" in error["message"]


async def test_an_item_that_is_named_many_times_counts_each_time(url):
    error = refused(url, input=[{"type": "item_reference", "id": "msg_0"}] * 1000)
    assert error["param"] == "input[2].id" and "the limit is 64 MiB in all" in error["message"]
