"""Over one WebSocket, each request that names a route is routed, and a conversation keeps its model."""

import pytest

from antiphon.server.processes.run import background_server
from support.server.responses_peer import connected
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

LONG = "word " * 200


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_requests_are_routed_and_what_continues_one_stays_with_its_model(tmp_path):
    models = {name: {"engine": "scripted", **SCRIPT} for name in ("small", "large")}
    routing = {"default": "small", "rules": [{"model": "large", "when": {"min_input_tokens": 100}}]}
    with background_server(configured(tmp_path, models, routing=routing)) as url:
        async with connected(url) as peer:
            first = await peer.ask("Hi", model="auto")
            assert first["model"] == "small"
            assert (await peer.ask(LONG, model="auto", previous_response_id=first["id"]))["model"] == "small"
            assert (await peer.ask(LONG, model="auto"))["model"] == "large"
            assert (await peer.ask(LONG, model="small"))["model"] == "small"
