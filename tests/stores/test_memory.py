"""What only the store in memory can show: the same object, opened again."""

from collections.abc import Sequence

import pytest

from antiphon.records import ConversationRecord, EndedResponse, ResponseRecord, WebhookDelivery
from antiphon.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

RECORD = ResponseRecord(id="resp_1", tenant="ada", created_at=1, status="completed", model="m", previous_response_id=None, body=b"{}")


class Subscriber:
    """Sends everything to one endpoint."""

    def deliveries(self, response: EndedResponse) -> Sequence[WebhookDelivery]:
        event = f"response.{response.status}"
        return [
            WebhookDelivery(
                id="wh_1", endpoint="hook", event=event, tenant="ada", response_id=response.id, body=b"{}", created_at=1, expires_at=100
            )
        ]

    def max_pending(self, endpoint: str) -> int:
        return 1

    def on_deliveries(self, dropped_ones: Sequence[WebhookDelivery]) -> None:
        assert not dropped_ones


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_conversation_is_free_when_the_store_is_opened_again() -> None:
    store = MemoryStore()
    await store.open()
    await store.conversations.create(ConversationRecord(id="conv_1", tenant="ada", created_at=1, metadata=b"{}"), [])
    assert await store.conversations.lock("ada", "conv_1", "resp_1")
    await store.close()
    await store.open()
    assert await store.conversations.lock("ada", "conv_1", "resp_2")


async def test_a_claimed_delivery_that_expired_is_not_looked_for_when_the_store_is_opened_again() -> None:
    store = MemoryStore()
    await store.open()
    store.webhooks.subscribe(Subscriber())
    store.webhooks.add(EndedResponse(id="resp_1", tenant="ada", status="completed", key_id=None))
    [claimed] = await store.webhooks.claim("hook", now_ms=1000, lease_until_ms=2000, limit=1)
    assert await store.webhooks.expire(claimed.expires_at + 1) == 1
    await store.close()
    await store.open()
    assert await store.webhooks.latest(None, None, 10) == []


async def test_of_a_deleted_response_nothing_stays() -> None:
    store = MemoryStore()
    await store.open()
    await store.put(RECORD)
    assert await store.delete("ada", RECORD.id)
    assert not store._ids_since_open
