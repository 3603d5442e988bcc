"""Webhooks to addresses inside: not sent, unless the endpoint's own networks say so."""

import asyncio
import contextlib

from pydantic import ValidationError

from antiphon.config.webhooks import WebhookEntry
from antiphon.records import WebhookDelivery
from antiphon.runtime.webhooks.endpoint import WebhookEndpoint
from support.runtime.hostile_urls import local_urls

DELIVERY = WebhookDelivery(
    id="wh_1", endpoint="hook", event="response.completed", tenant="", response_id="resp_1", body=b"{}", created_at=0, expires_at=9
)


def endpoint(url, **fields):
    return WebhookEndpoint(WebhookEntry(name="hook", url=url, secret=f"whsec_{'A' * 32}", **fields), (bytes(32),))


def test_no_webhook_leads_inside():
    async def run():
        heads = []

        async def answer(reader, writer):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            refused = 0
            for url in local_urls(port):
                with contextlib.suppress(ValidationError):  # the configuration refuses some before
                    outcome = await endpoint(url).attempt(DELIVERY)
                    assert outcome.error, url
                    refused += 1
            assert refused > 100 and heads == []
            outcome = await endpoint(f"http://127.0.0.1:{port}/", networks=("127.0.0.1/32",)).attempt(DELIVERY)
            assert outcome.error is None and len(heads) == 1

    asyncio.run(run())
