"""
Notes the words that stored responses are found by.

That is done some time after they were stored, and at the latest when somebody searches, so that a response costs no more
on its way.
"""

import asyncio
import contextlib

import msgspec
from msgspec import Struct

from antiphon.offload import offload
from antiphon.runtime.upkeep import one_round
from antiphon.stores.base import Store
from antiphon.stores.response_list import UnindexedResponse, search_words

BATCH = 100
"""Responses that are indexed at once."""

MAX_BATCHES = 20
"""The most of them that somebody who searches waits for. There are more only after an update of antiphon, or an outage."""

IDLE_S, PAUSE_S = 5.0, 0.2
"""How often new responses are looked for, and how long others may use the store between two batches."""


class ResponseSearch:
    """Indexes the responses of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def refresh(self, tenant: str) -> None:
        """Index what a tenant's search would not find yet."""
        for _ in range(MAX_BATCHES):
            if await self._index_batch(tenant) < BATCH:
                return

    async def run(self) -> None:
        """Index what is stored, for ever."""
        while True:
            count = 0
            with one_round("response index"):
                count = await self._index_batch(None)
            await asyncio.sleep(PAUSE_S if count == BATCH else IDLE_S)

    async def _index_batch(self, tenant: str | None) -> int:
        waiting = await self._store.lists.to_index(tenant, BATCH)
        words: dict[int, list[str]] = {}
        for response in waiting:  # one by one: each may be large, and has its turn of the thread
            size_bytes = len(response.body) + sum(map(len, response.items))
            words[response.number] = await offload(4 * size_bytes, response_words, response)
            # The words of a small response are found on the event loop, which others wait for.
            await asyncio.sleep(0)
        await self._store.lists.index(words, {response.number: response.body for response in waiting})
        return len(waiting)


class _Part(Struct):
    text: str = ""
    refusal: str = ""
    transcript: str | None = None


class _Item(Struct):
    type: str = "message"
    content: str | list[_Part] | None = None


class _Body(Struct):
    metadata: dict[str, str] | None = None


_item_decoder = msgspec.json.Decoder(_Item)
_body_decoder = msgspec.json.Decoder(_Body)


def response_words(response: UnindexedResponse) -> list[str]:
    """The words of a response: of its title, and of what was said in it."""
    texts: list[str] = []
    with contextlib.suppress(msgspec.MsgspecError):
        texts.append((_body_decoder.decode(response.body).metadata or {}).get("title", ""))
    for body in response.items:
        with contextlib.suppress(msgspec.MsgspecError):  # of a form that only other servers know
            item = _item_decoder.decode(body)
            if item.type == "message":
                texts += _texts(item.content)
    return search_words("\n".join(texts))


def _texts(content: str | list[_Part] | None) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [f"{part.text} {part.refusal} {part.transcript or ''}" for part in content or ()]
