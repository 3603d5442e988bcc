"""Content that is sent as it is read."""

import pytest

from antiphon.server.http.streaming import ContentResponse

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def hears_nothing():
    return {"type": "http.disconnect"}


@pytest.mark.parametrize(("method", "reads"), [("GET", [b"a", b"b"]), ("HEAD", [])])
async def test_content_is_read_for_who_gets_it_and_its_head_is_the_same(method, reads):
    read, sent = [], []

    async def content():
        for piece in (b"a", b"b"):
            read.append(piece)
            yield piece

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "asgi": {"spec_version": "2.4"}}
    await ContentResponse(content(), headers={"content-length": "2"})(scope, hears_nothing, send)
    assert (sent[0]["status"], dict(sent[0]["headers"])[b"content-length"], read) == (200, b"2", reads)
    assert b"".join(message.get("body", b"") for message in sent[1:]) == b"".join(reads)
