"""What is stored of the request of a queued response: enough to begin it again, and no credentials as they are."""

import asyncio

import msgspec
import pytest

from antiphon.engine_api.routing import RouteDecision
from antiphon.errors import ClientError
from antiphon.runtime.core.encrypted_content import ContentCipher
from antiphon.server.responses.queued_request import decode_queued, encode_queued
from antiphon.wire.responses.request import decode_request

MCP = {"type": "mcp", "server_label": "s", "server_url": "https://s.example/mcp", "require_approval": "never"}
SECRETS = {"authorization": "secret-token", "headers": {"x-key": "secret-key"}}
ALLOWLIST = {
    "type": "allowlist",
    "allowed_domains": ["a.example"],
    "domain_secrets": [{"domain": "a.example", "name": "k", "value": "secret"}],
}
CONTAINERS = [
    {"type": "code_interpreter", "container": {"type": "auto", "network_policy": ALLOWLIST}},
    {"type": "shell", "environment": {"type": "container_auto", "network_policy": ALLOWLIST}},
    {"type": "shell", "environment": {"type": "container_auto", "network_policy": {"type": "disabled"}}},
    {"type": "code_interpreter", "container": "cntr_1"},
]
ROUTE = RouteDecision(model="m", category="c", source="rule", reasoning="r")


class Server:
    def __init__(self, home):
        self.cipher = ContentCipher(home)

    async def content_cipher(self):
        return self.cipher


def queued(server, body, route=None, tenant="t"):
    return asyncio.run(encode_queued(server, decode_request(body), body, route, tenant))


@pytest.mark.parametrize("route", [None, ROUTE])
@pytest.mark.parametrize("secrets", [{}, SECRETS, {"headers": {"a": "secret"}}])
def test_a_request_is_begun_again_with_its_credentials_which_are_stored_encrypted(tmp_path, route, secrets):
    server = Server(tmp_path)
    body = msgspec.json.encode({"model": "m", "input": "Hi", "background": True, "tools": [MCP | secrets, {"type": "web_search"}]})
    stored = queued(server, body, route)
    assert b"secret" not in stored
    assert asyncio.run(decode_queued(server, stored, "t")) == (decode_request(body), route)
    if secrets:
        with pytest.raises(ClientError):
            asyncio.run(decode_queued(server, stored, "another tenant"))


@pytest.mark.parametrize("kind", [{"type": "additional_tools", "role": "developer"}, {"type": "tool_search_output", "call_id": "c"}])
def test_credentials_in_items_of_the_input_are_encrypted_too_each_for_its_own_server(tmp_path, kind):
    server = Server(tmp_path)
    tools = [MCP | SECRETS, {"type": "web_search"}, *CONTAINERS, MCP, MCP | {"authorization": "secret, too"}]
    fields = {"input": [{"role": "user", "content": "Hi"}, {**kind, "tools": tools}], "tools": [MCP | {"headers": {"a": "secret"}}]}
    body = msgspec.json.encode({"model": "m", "background": True, **fields})
    stored = queued(server, body)
    assert b"secret" not in stored
    assert asyncio.run(decode_queued(server, stored, "t")) == (decode_request(body), None)


def test_a_request_without_either_is_stored_as_it_came(tmp_path):
    body = b'{"model": "m",  "input": "Hi"}'
    assert queued(Server(tmp_path), body) == body


def test_what_an_earlier_version_stored_can_be_read(tmp_path):
    body = b'{"model":"m","input":"Hi"}'
    stored = b"[%b,%b]" % (body, msgspec.json.encode(ROUTE))
    assert asyncio.run(decode_queued(Server(tmp_path), stored, "t")) == (decode_request(body), ROUTE)
