"""The kernels of all containers: each container has one while it is used, and the server a limited number of them."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from msgspec import Struct

from antiphon.errors import ApiError, ClientError, overloaded_error
from antiphon.tools.code_interpreter.containers import Containers
from antiphon.tools.code_interpreter.folder import remove_tree
from antiphon.tools.code_interpreter.kernel import Kernel, KernelLimits, RunOutcome
from antiphon.tools.code_interpreter.records import MEMORY_LIMIT_BYTES, Container, ContainerFile
from antiphon.tools.code_interpreter.sandbox import Sandbox

WAIT_S = 30.0
"""How long a call waits for one of the server's kernels to be free."""

TOUCH_INTERVAL_S = 20.0
"""How often running code counts as a use of its container: more often than the shortest time to expiry, a minute."""


class PoolLimits(Struct, frozen=True, kw_only=True):
    """The most processes at once, in all and of one tenant. Idle ones are ended to make room."""

    kernels: int = 8
    tenant_kernels: int = 4


class CallOutcome(Struct, frozen=True, kw_only=True):
    """
    The result of a call, with the files that it made.

    Attributes:
        files: that are new or have changed.
        lost_variables: whether variables of earlier calls were gone when it began.
    """

    run: RunOutcome
    files: tuple[ContainerFile, ...]
    lost_variables: bool


class _Slot:
    """
    A container's kernel, and whose turn it is there.

    Attributes:
        users: calls that run or wait here.
        has_run: whether there may be variables.
    """

    def __init__(self, tenant: str, *, has_run: bool) -> None:
        self.tenant = tenant
        self.lock = asyncio.Lock()
        self.kernel: Kernel | None = None
        self.users = 0
        self.has_run = has_run


class Kernels:
    """
    Runs code in containers.

    Args:
        folder: for what processes write outside of `/mnt/data`. Several servers may share it.
    """

    def __init__(
        self, containers: Containers, sandbox: Sandbox, folder: Path, limits: KernelLimits | None = None, pool: PoolLimits | None = None
    ) -> None:
        self._containers = containers
        self._sandbox = sandbox
        self._started_at = containers.now
        self._scratch_folder = folder.absolute() / str(os.getpid())
        self._limits = limits or KernelLimits()
        self._pool = pool or PoolLimits()
        self._slots: dict[str, _Slot] = {}  # In the order of their last use.
        self._room = asyncio.Condition()
        _remove_leftovers(folder)
        containers.on_end(self._end)

    async def run(self, container: Container, code: str) -> CallOutcome:
        """
        Run code in a container, after what others run there.

        Raises:
            ApiError: no process is free, none can be started, or the container was deleted.
        """
        async with self._slot_of(container) as slot:
            kernel, lost_variables = await self._prepare(slot, container)
            touching = asyncio.ensure_future(self._touch(container))  # noqa: TID251 - ended below
            try:
                disk_bytes = await self._containers.free_bytes(container)
                run = await kernel.run(code, disk_bytes)
            finally:
                touching.cancel()
            if run.went_over_disk:
                await self._containers.discard_changes(container)
                return CallOutcome(run=run, files=(), lost_variables=lost_variables)
            files = await self._containers.record_changes(container, await self._containers.scan_files(container))
            return CallOutcome(run=run, files=tuple(files), lost_variables=lost_variables)

    async def sweep(self) -> None:
        """End what runs in containers that are gone, also where another server has removed them; to be called now and then."""
        await self._containers.sweep()
        await self._end(self._slots.keys() - await self._containers.living_ids(tuple(self._slots)))

    async def close(self) -> None:
        """End all processes; idempotent."""
        await self._end(tuple(self._slots))
        if self._scratch_folder.exists():
            await asyncio.to_thread(remove_tree, self._scratch_folder)

    @contextlib.asynccontextmanager
    async def _slot_of(self, container: Container) -> AsyncIterator[_Slot]:
        # An older container may have had variables in a server that ran before this one.
        slot = self._slots.pop(container.id, None) or _Slot(container.tenant, has_run=container.created_at < self._started_at)
        self._slots[container.id] = slot
        slot.users += 1
        try:
            async with slot.lock:
                yield slot
        finally:
            slot.users -= 1
            # A process that ended with the run frees its place for the next in line.
            if slot.kernel is not None and not slot.kernel.is_alive:
                slot.kernel = None
            async with self._room:
                self._room.notify_all()

    async def _prepare(self, slot: _Slot, container: Container) -> tuple[Kernel, bool]:
        """A kernel that runs, and whether variables of an earlier one are lost."""
        self._check_slot(slot, container)
        if slot.kernel is not None and slot.kernel.is_alive:
            return slot.kernel, False
        await _stop(slot)  # It has died since the last call, and must not count as one that runs.
        disk_bytes = await self._containers.free_bytes(container)
        kernel = Kernel(
            self._sandbox,
            self._limits,
            self._containers.data_folder(container.id),
            self._scratch_folder,
            memory_bytes=MEMORY_LIMIT_BYTES[container.memory_limit],
            disk_bytes=max(disk_bytes, 1),
        )
        await self._reserve(slot, kernel)
        await kernel.start()
        try:
            self._check_slot(slot, container)
        except ClientError:
            await asyncio.shield(kernel.stop())
            raise
        lost_variables, slot.has_run = slot.has_run, True
        return kernel, lost_variables

    def _check_slot(self, slot: _Slot, container: Container) -> None:
        """See that the container was not ended while a call waited: nobody would end what is started in it."""
        if self._slots.get(container.id) is not slot:
            raise ClientError("The container was deleted, or has expired.", status=404, code="not_found")

    async def _reserve(self, slot: _Slot, kernel: Kernel) -> None:
        """Wait until there may be one more kernel; one that only waits for code is ended for it."""
        try:
            async with asyncio.timeout(WAIT_S), self._room:
                while rivals := self._rivals(slot.tenant):
                    idle = next((each for each in rivals if each.users == 0), None)
                    if idle is None:
                        await self._room.wait()
                    else:
                        await _stop(idle)
                # Counted before it is started, or two calls could take the last place.
                slot.kernel = kernel
        except TimeoutError:
            raise overloaded_error("All of the server's code interpreters are busy. Please try again.") from None

    def _rivals(self, tenant: str) -> list[_Slot]:
        """The slots of which one has to give up its kernel, the least recently used first; none if there is room."""
        running = [slot for slot in self._slots.values() if slot.kernel is not None]
        own = [slot for slot in running if slot.tenant == tenant]
        # First, so that a tenant at its limit ends a kernel of its own and not another's.
        if len(own) >= self._pool.tenant_kernels:
            return own
        return running if len(running) >= self._pool.kernels else []

    async def _touch(self, container: Container) -> None:
        while True:
            await asyncio.sleep(TOUCH_INTERVAL_S)
            with contextlib.suppress(ApiError):
                await self._containers.get(container.tenant, container.id)

    async def _end(self, container_ids: Collection[str]) -> None:
        for container_id in tuple(container_ids):
            if (slot := self._slots.pop(container_id, None)) is not None:
                await _stop(slot)


async def _stop(slot: _Slot) -> None:
    kernel, slot.kernel = slot.kernel, None
    if kernel is not None:
        await asyncio.shield(kernel.stop())


def _remove_leftovers(folder: Path) -> None:
    """Remove the folders of servers that were killed: those named after a process that is gone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folder.iterdir():
        if not (path.name.isdigit() and Path("/proc", path.name).exists()):
            remove_tree(path)
