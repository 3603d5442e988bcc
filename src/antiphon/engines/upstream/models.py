"""The models that an upstream has, asked for no more often than is needed."""

import asyncio
import contextlib
from collections.abc import Sequence

from antiphon.engines.upstream.client import Upstream
from antiphon.wire.upstream.chat_completions import decode_models

NAMES_HOLD_S = 15.0
NAMES_PATIENCE_S = 2.0


class Names:
    """The names that an upstream gives its models; those last known where it can't be asked."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._names: tuple[str, ...] = ()
        self._until = 0.0
        self._asking = asyncio.Lock()

    async def get(self) -> Sequence[str]:
        """The names, asked for anew when a while has passed."""
        clock = asyncio.get_running_loop().time
        async with self._asking:
            if clock() >= self._until:
                with contextlib.suppress(TimeoutError, ValueError, RecursionError):
                    async with asyncio.timeout(NAMES_PATIENCE_S):
                        listed = await self._upstream.fetch("/models", NAMES_PATIENCE_S)
                    if isinstance(listed, bytes):
                        self._names = tuple(model.id for model in decode_models(listed).data or () if model.id)
                self._until = clock() + NAMES_HOLD_S
        return self._names
