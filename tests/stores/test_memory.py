"""What only the store in memory can show: the same object, opened again."""

import pytest

from antiphon.records import ConversationRecord
from antiphon.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


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
