"""A Realtime session that names a route gets its model by the rules that need no text."""

import pytest

from antiphon.server.processes.run import background_server
from support.server.realtime_peer import connected, posted
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}
ROUTE = {
    "default": "small",
    "rules": [
        {"model": "large", "category": "words", "when": {"pattern": "."}},
        {"model": "large", "category": "agent", "when": {"has_tools": True, "has_audio": True}},
    ],
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def routed_url(tmp_path_factory):
    models = {name: {"engine": "scripted", **SCRIPT} for name in ("small", "large")}
    with background_server(configured(tmp_path_factory.mktemp("home"), models, routing=ROUTE)) as url:
        yield url


async def test_the_model_of_the_address_may_be_a_route(routed_url):
    async with connected(routed_url, model="auto") as peer:
        assert (await peer.hear())["session"]["model"] == "small"
    async with connected(routed_url, model="large") as peer:
        assert (await peer.hear())["session"]["model"] == "large"


async def test_the_session_of_a_client_secret_decides(routed_url):
    for tools, model in (([], "small"), ([TOOL], "large")):
        session = {"type": "realtime", "model": "auto", "tools": tools}
        status, made = await posted(routed_url, "/v1/realtime/client_secrets", {"session": session})
        assert (status, made["session"]["model"]) == (200, model)
        async with connected(routed_url, protocols=("realtime", f"openai-insecure-api-key.{made['value']}")) as peer:
            assert (await peer.hear())["session"]["model"] == model
