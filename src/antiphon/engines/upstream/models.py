"""The models that an upstream offers, cached for a while."""

import asyncio
import contextlib
from collections.abc import Sequence

from antiphon.engines.upstream.client import UpstreamClient
from antiphon.wire.upstream.chat_completions import decode_models

MODELS_TTL_S = 15.0
MODELS_TIMEOUT_S = 2.0


class UpstreamModels:
    """The ids of an upstream's models; those last known if its list can't be fetched."""

    def __init__(self, upstream: UpstreamClient) -> None:
        self._upstream = upstream
        self._model_ids: tuple[str, ...] = ()
        self._expires_at = 0.0
        self._refresh_lock = asyncio.Lock()

    async def get(self) -> Sequence[str]:
        """The model ids, fetched again once they are older than `MODELS_TTL_S`."""
        clock = asyncio.get_running_loop().time
        async with self._refresh_lock:
            if clock() >= self._expires_at:
                with contextlib.suppress(TimeoutError, ValueError, RecursionError):
                    async with asyncio.timeout(MODELS_TIMEOUT_S):
                        body = await self._upstream.fetch("/models", MODELS_TIMEOUT_S)
                    if isinstance(body, bytes):
                        self._model_ids = tuple(model.id for model in decode_models(body).data or () if model.id)
                self._expires_at = clock() + MODELS_TTL_S
        return self._model_ids
