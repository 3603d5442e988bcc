"""A MiniCPM-o session of the client: how it breaks."""

import pytest

from antiphon.cli.common.client import ApiClient
from antiphon.cli.voice.minicpmo_session import MinicpmoSessionOptions, connect_minicpmo
from antiphon.errors import UpstreamError
from support.cli.saying import websocket_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.parametrize("message", ["[]", "{", '{"type": null}'])
async def test_a_server_that_sends_what_is_no_event_is_at_fault(message):
    async with websocket_server("/v1/realtime", [message]) as url:
        async with connect_minicpmo(ApiClient(url), MinicpmoSessionOptions()) as session:
            with pytest.raises(UpstreamError, match="sent something that is no event"):
                await session.receive(20)
