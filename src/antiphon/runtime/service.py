"""All that a running server has: its models and its store, opened and closed in order."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from antiphon.config import Config
from antiphon.protocols.responses import abandoned
from antiphon.runtime.occupancy import occupied
from antiphon.runtime.registry import Registry
from antiphon.stores.base import Store
from antiphon.stores.memory import Memory
from antiphon.stores.sql import Sql


class Service:
    """
    Models, store and settings, as every surface uses them.

    Attributes:
        is_ready: whether new work is taken.

    Raises:
        Fault: the configuration names an engine or an option that there isn't.
    """

    def __init__(self, config: Config, notice: Callable[[str], None]) -> None:
        self.config = config
        self.is_ready = False
        self._held = ExitStack()
        self.started_at = int(time.time())
        self.store: Store = Memory() if config.database_url is None else Sql(config.database_url)
        self.registry = Registry(config.models, config.models_dir, self.started_at, notice)

    async def open(self) -> None:
        """
        Make everything ready.

        Raises:
            Fault: the store can't be used or is another server's, or an engine can't start.
        """
        if self.config.database_url is not None:
            self._held.enter_context(occupied(self.config.home))
        await self.store.open()
        # Whatever still says `in_progress` belongs to a process that died: nobody works on it any more.
        for record in await self.store.unfinished():
            await self.store.put(abandoned(record, int(time.time())))
        await self.registry.start()
        self.is_ready = True

    async def close(self) -> None:
        """Let go of everything; idempotent."""
        self.is_ready = False
        await self.registry.stop()
        await self.store.close()
        self._held.close()
