"""Which response has a conversation: it is taken before the engine is asked, and given back whatever happens."""

import contextlib

from antiphon.errors import ApiError, conversation_locked, conversation_not_found, wrong_id_prefix
from antiphon.stores.base import Store

CONVERSATION_PREFIX = "conv_"


def check_conversation_id(conversation_id: str, param: str) -> None:
    """
    Check that an id is one of a conversation.

    Raises:
        ClientError: it is not.
    """
    if not conversation_id.startswith(CONVERSATION_PREFIX):
        raise wrong_id_prefix(param, conversation_id, CONVERSATION_PREFIX)


async def lock_conversation(store: Store, tenant: str, conversation_id: str, response_id: str) -> None:
    """
    Give a conversation to a response, until its turn is stored or `unlock_conversation` is called.

    Raises:
        ApiError: there is no such conversation, or another response has it, or the store failed.
    """
    check_conversation_id(conversation_id, "conversation")
    # The usual case takes one look; why there is no lock is only found out for the error.
    if await store.conversations.lock(tenant, conversation_id, response_id):
        return
    if await store.conversations.get(tenant, conversation_id) is None:
        raise conversation_not_found(conversation_id)
    raise conversation_locked()


async def unlock_conversation(store: Store, response_id: str) -> None:
    """Take a response's conversation back, if it still has one; what fails is done later by the store."""
    with contextlib.suppress(ApiError):
        await store.conversations.unlock(response_id)
