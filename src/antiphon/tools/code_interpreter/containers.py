"""Containers of each tenant, with their files, in a folder of this machine."""

import asyncio
import contextlib
import os
import re
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, ParamSpec, TypeAlias, TypeVar

from msgspec.structs import replace

from antiphon.errors import STORE_RETRY_S, ApiError, ClientError, ServerError, shorten, unknown_cursor, unsupported_value
from antiphon.tools.code_interpreter.folder import (
    FileStamp,
    FolderScan,
    is_presentable,
    open_file,
    remove_file,
    remove_others,
    remove_tree,
    scan,
    stamp,
)
from antiphon.tools.code_interpreter.index import ContainerIndex
from antiphon.tools.code_interpreter.records import (
    CONTAINER_PREFIX,
    FILE_PREFIX,
    GUEST_FOLDER,
    MEMORY_LIMIT_BYTES,
    Container,
    ContainerFile,
    ContainerFilePage,
    ContainerLimits,
    ContainerPage,
    MemoryLimit,
    Order,
)

P = ParamSpec("P")
T = TypeVar("T")

CHUNK_BYTES = 1 << 18
"""How many bytes of a file are read and sent at a time."""

_LEFTOVER_AGE_S = 3600
"""Files without a record that are older were left by a server that was killed; younger ones may be in the making."""

FORGET_S = 7 * 86_400
"""How long a container that has expired can still be looked up."""

_ID = re.compile(rf"{CONTAINER_PREFIX}[0-9a-f]{{48}}")
_DATA, _INCOMING = "data", "incoming"

EndListener: TypeAlias = Callable[[Collection[str]], Awaitable[None]]
"""Ends what runs in the containers of these ids."""


class Containers:
    """
    The containers of all tenants; none sees another's. Every request that names a container counts as its use.

    Args:
        folder: where the containers lie; made if it isn't there. Several processes may share it.
        clock: Unix seconds.
    """

    def __init__(self, folder: Path, limits: ContainerLimits | None = None, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits or ContainerLimits()
        self._clock = clock
        self._folder = folder.absolute()
        for path in (self._folder, self._folder / _DATA, self._folder / _INCOMING):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._index = ContainerIndex(self._folder / "containers.sqlite")
        # SQLite's calls are short but may wait for the disk, so they are not for the event loop.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-containers")
        self._end_listeners: list[EndListener] = []
        self._incoming_bytes: Counter[str] = Counter()
        self._placing = asyncio.Lock()
        self._deletions: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def limits(self) -> ContainerLimits:
        """The limits of all containers."""
        return self._limits

    @property
    def now(self) -> int:
        """Unix seconds."""
        return int(self._clock())

    def on_end(self, listener: "EndListener") -> None:
        """Have `listener` end what runs in containers that are deleted or have expired, before their files go."""
        self._end_listeners.append(listener)

    def data_folder(self, container_id: str) -> Path:
        """Where the files of a container lie on this machine."""
        return self._folder / _DATA / container_id

    async def create(
        self, tenant: str, name: str, *, expires_after_minutes: int | None = None, memory_limit: MemoryLimit | None = None
    ) -> Container:
        """
        Make a container.

        Args:
            expires_after_minutes: None for the most that there may be.
            memory_limit: None for the least.

        Raises:
            ClientError: the tenant has too many containers, or a limit is beyond the server's own; `param` is the
                field's name in `POST /v1/containers`.
        """
        limits = self._limits
        minutes = limits.expires_after_minutes if expires_after_minutes is None else expires_after_minutes
        if not 1 <= minutes <= limits.expires_after_minutes:
            message = f"Invalid 'expires_after.minutes': {minutes}. Expected 1 to {limits.expires_after_minutes}."
            raise ClientError(message, code="invalid_value", param="expires_after.minutes")
        memory: MemoryLimit = memory_limit or "1g"
        self.check_memory_limit(memory, "memory_limit")
        now = self.now
        container = Container(
            id=_new_id(CONTAINER_PREFIX),
            tenant=tenant,
            name=name,
            created_at=now,
            last_active_at=now,
            expires_after_minutes=minutes,
            memory_limit=memory,
        )
        # The folder first: a record without one would be a container that can't be used.
        path = self.data_folder(container.id)
        with _disk_errors():
            await asyncio.to_thread(path.mkdir, 0o700)
        is_added = False
        try:
            is_added = await self._call(self._index.add, container, limits.containers)
        finally:
            if not is_added:
                await asyncio.to_thread(path.rmdir)
        if not is_added:
            raise ClientError(
                f"There are too many containers: the limit is {limits.containers} (tools.code_interpreter.containers). "
                "Delete one, or wait until one has expired.",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after_s=max(1, await self._call(self._index.next_expiry, tenant, now) - now),
            )
        return container

    def check_memory_limit(self, memory_limit: MemoryLimit, param: str) -> None:
        """
        See that a container may have that much memory.

        Raises:
            ClientError: it may not.
        """
        memory_limits = [each for each, size in MEMORY_LIMIT_BYTES.items() if size <= MEMORY_LIMIT_BYTES[self._limits.memory_limit]]
        if memory_limit not in memory_limits:
            raise unsupported_value(param, memory_limit, None, memory_limits)

    async def list(
        self, tenant: str, *, limit: int = 20, order: Order = "desc", after: str | None = None, name: str | None = None
    ) -> ContainerPage:
        """
        A page of a tenant's containers, those that have expired among them; listing is no use of any.

        Args:
            after: id of the container before the page, in that order; None for the first page.
            name: only containers of that name.

        Raises:
            ClientError: `after` is not one of them.
        """
        page = await self._call(lambda: self._index.page(tenant, self.now, limit=limit, order=order, after=after, name=name))
        if page is None:
            raise unknown_cursor("Container", after)
        return page

    async def get(self, tenant: str, container_id: str, param: str | None = None) -> Container:
        """
        A container by its id, whether it has expired or not; `param` is the field that names it.

        Raises:
            ClientError: 404; there is none, or it is another tenant's.
        """
        container = None
        # Ids become names of folders, so nothing else may get that far.
        if _ID.fullmatch(container_id):
            container = await self._call(self._index.touch, tenant, container_id, self.now)
        return _existing(container, container_id, param)

    async def use(self, tenant: str, container_id: str, param: str | None = None) -> Container:
        """
        A container that has not expired; `param` is the field that names it.

        Raises:
            ClientError: 404; there is none, or it is another tenant's; 400; it has expired.
        """
        return _running(await self.get(tenant, container_id, param), param)

    def check(self, tenant: str, container_id: str, param: str | None = None) -> Container:
        """
        A container that has not expired, without using it, at once.

        Raises:
            ClientError: as `use`.
        """
        container = self._index.find(tenant, container_id, self.now) if _ID.fullmatch(container_id) else None
        return _running(_existing(container, container_id, param), param)

    async def delete(self, tenant: str, container_id: str) -> None:
        """
        Delete a container with its files; code that runs in it ends.

        Raises:
            ClientError: 404; there is none.
        """
        await self.get(tenant, container_id)
        await self._call(self._index.remove, tenant, container_id)
        await self._erase([container_id])

    def delete_later(self, tenant: str, container_id: str) -> None:
        """Delete a container in the background; one that is gone already is no error."""

        async def delete() -> None:
            with contextlib.suppress(ApiError):  # If it can't be deleted now, it expires.
                await self.delete(tenant, container_id)

        # It outlives the response that had the container, and `close` waits for it.
        task = asyncio.create_task(delete(), name="end of a container")  # noqa: TID251
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    async def add_file(
        self,
        tenant: str,
        container_id: str,
        filename: str,
        chunks: AsyncIterable[bytes],
        *,
        source: Literal["user", "assistant"] = "user",
        param: str | None = "file",
        origin: str | None = None,
    ) -> ContainerFile:
        """
        Add a file to a container; it replaces one of the same name.

        Args:
            filename: without folders.
            param: the field that has the file.
            origin: id of the uploaded file that this one is a copy of.

        Raises:
            ClientError: the name can't be used, the file is too large, or the container is full, has expired or isn't
                there.
        """
        container = await self.use(tenant, container_id)
        if not is_presentable(filename):
            message = f"Invalid file name: '{shorten(filename)!r}'. Expected up to 255 bytes of UTF-8 without '/' and control characters."
            raise ClientError(message, code="invalid_value", param=param)
        # Outside of the container, so that code never sees half a file; in the same file system, so that a rename puts it there whole.
        path = self._folder / _INCOMING / _new_id("incoming")
        try:
            own_bytes = await self._receive(path, chunks, container, filename, param)
            # One at a time: each counts what was put there while it was received.
            async with self._placing:
                if own_bytes > await self._room_bytes(container, filename, param):
                    raise self._full(param)
                file_stamp = await asyncio.to_thread(_move, path, self.data_folder(container.id) / filename)
                if file_stamp is None:
                    message = f"The file can't be stored: the container has a folder of that name, '{shorten(filename)}'."
                    raise ClientError(message, param=param)
                holding = await self.scan_files(container)
                await self._call(self._index.set_bytes, container.id, holding.bytes)
        except FileNotFoundError:  # Its folder is gone.
            raise _not_found(container_id, None) from None
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        file = await self._call(self._index.put_file, self._new_file(container.id, filename, file_stamp, source), file_stamp, origin)
        if file is None:
            raise _not_found(container_id, None)
        return file

    async def list_files(
        self, tenant: str, container_id: str, *, limit: int = 20, order: Order = "desc", after: str | None = None
    ) -> ContainerFilePage:
        """
        A page of a container's files.

        Raises:
            ClientError: as `use`, or `after` is not one of them.
        """
        container = await self.use(tenant, container_id)
        page = await self._call(lambda: self._index.file_page(container.id, limit=limit, order=order, after=after))
        if page is None:
            raise unknown_cursor("File", after)
        return page

    async def get_file(self, tenant: str, container_id: str, file_id: str) -> ContainerFile:
        """
        A file by its id.

        Raises:
            ClientError: as `use`, or there is no such file.
        """
        container = await self.use(tenant, container_id)
        file = await self._call(self._index.get_file, container.id, file_id)
        if file is None:
            raise _file_not_found(file_id)
        return file

    async def read_file(self, tenant: str, container_id: str, file_id: str) -> tuple[ContainerFile, AsyncIterator[bytes]]:
        """
        A file and its bytes in chunks, never more than `ContainerFile.bytes`; read the iterator to its end, or close it.

        Raises:
            ClientError: as `get_file`.
        """
        file = await self.get_file(tenant, container_id, file_id)
        folder = self.data_folder(container_id)
        descriptor = await asyncio.to_thread(_open_sized, folder, file.path.removeprefix(f"{GUEST_FOLDER}/"))
        if descriptor is None:
            raise _file_not_found(file_id)
        number, size = descriptor
        reader = os.fdopen(number, "rb", buffering=0)

        async def read_chunks() -> AsyncIterator[bytes]:
            remaining = size
            try:
                while remaining and (chunk := await asyncio.to_thread(reader.read, min(CHUNK_BYTES, remaining))):
                    remaining -= len(chunk)
                    yield chunk
            finally:
                reader.close()

        # The size when it was opened: code may write to the file meanwhile, and `Content-Length` has to stay true.
        return replace(file, bytes=size), read_chunks()

    async def delete_file(self, tenant: str, container_id: str, file_id: str) -> None:
        """
        Delete a file.

        Raises:
            ClientError: as `get_file`.
        """
        file = await self.get_file(tenant, container_id, file_id)
        folder = self.data_folder(container_id)
        await asyncio.to_thread(remove_file, folder, file.path.removeprefix(f"{GUEST_FOLDER}/"))
        await self._call(self._index.remove_file, container_id, file_id)

    async def origins(self, container: Container) -> set[str]:
        """The ids of uploaded files that were copied to the container."""
        return await self._call(self._index.origins, container.id)

    async def free_bytes(self, container: Container) -> int:
        """How many bytes a container's files may have in all, within its own limit and what the tenant's others leave."""
        limits = self._limits
        return await self._call(self._index.free_bytes, container.tenant, container.id, limits.bytes, limits.tenant_bytes)

    async def scan_files(self, container: Container) -> FolderScan:
        """What the container's folder holds now; no further than its limits go."""
        return await asyncio.to_thread(scan, self.data_folder(container.id), self._limits.files)

    async def record_changes(self, container: Container, holding: FolderScan) -> Sequence[ContainerFile]:
        """Record what code did to the files; returns those that are new or have changed, in the order of their paths."""
        stamps = await self._call(self._index.stamps, container.id)
        changes = {
            path: (self._new_file(container.id, path, each, "assistant"), each)
            for path, each in sorted(holding.files.items())
            if stamps.get(f"{GUEST_FOLDER}/{path}") != each
        }
        lost_paths = [path for path in stamps if path.removeprefix(f"{GUEST_FOLDER}/") not in holding.files]
        await self._call(self._index.set_bytes, container.id, holding.bytes)
        if not changes and not lost_paths:
            return []
        return await self._call(self._index.replace_files, container.id, changes, lost_paths)

    async def discard_changes(self, container: Container) -> None:
        """Remove what code wrote since the files were last recorded, as it exceeded a limit. Nothing may run in the container."""
        stamps = await self._call(self._index.stamps, container.id)
        keep = {path.removeprefix(f"{GUEST_FOLDER}/"): each for path, each in stamps.items()}
        with contextlib.suppress(FileNotFoundError):  # The container was deleted meanwhile.
            await asyncio.to_thread(remove_others, self.data_folder(container.id), keep)
        await self.record_changes(container, await self.scan_files(container))

    async def living_ids(self, ids: Collection[str]) -> set[str]:
        """Those of the containers that are there and have not expired."""
        return await self._call(self._index.living_ids, ids, self.now)

    async def sweep(self) -> None:
        """Delete the files of expired containers, and later their records; to be called every minute or so."""
        expired_ids = await self._call(self._index.expire, self.now, self.now - FORGET_S)
        if expired_ids:
            await self._erase(expired_ids)
        folders = await asyncio.to_thread(os.listdir, self._folder / _DATA)
        living_ids = await self.living_ids(folders)
        await asyncio.to_thread(self._remove_leftovers, living_ids)

    async def close(self) -> None:
        """Close the index; idempotent."""
        if self._deletions:
            await asyncio.wait(self._deletions)
        if not self._is_closed:
            self._is_closed = True
            await self._call(self._index.close)
            self._executor.shutdown(wait=False)

    async def _erase(self, container_ids: Collection[str]) -> None:
        # Processes first: they could write to the folder while it is removed.
        for listener in self._end_listeners:
            await listener(container_ids)
        for container_id in container_ids:
            await asyncio.to_thread(remove_tree, self.data_folder(container_id))

    async def _room_bytes(self, container: Container, filename: str, param: str | None) -> int:
        """How many bytes a new file may have, in place of one of that name."""
        # What the folder holds, not what the index knows: code writes to it as well.
        holding = await self.scan_files(container)
        former = holding.files.get(filename)
        if holding.is_over or holding.entries - (former is not None) >= self._limits.files:
            message = f"The container has too many files: the limit is {self._limits.files} (tools.code_interpreter.files)."
            raise ClientError(message, code="too_many_files", param=param)
        return await self.free_bytes(container) - holding.bytes + (former.bytes if former is not None else 0)

    async def _receive(self, path: Path, chunks: AsyncIterable[bytes], container: Container, filename: str, param: str | None) -> int:
        """Store the chunks, as long as they fit together with all else that the tenant is uploading; returns how many bytes."""
        tenant, own_bytes = container.tenant, 0
        free_bytes = await self._room_bytes(container, filename, param)
        try:
            with _disk_errors():
                file = await asyncio.to_thread(open, path, "xb", buffering=0)
            with file:
                async for chunk in chunks:
                    own_bytes += len(chunk)
                    self._incoming_bytes[tenant] += len(chunk)
                    if self._incoming_bytes[tenant] > free_bytes:
                        raise self._full(param)
                    with _disk_errors():
                        await asyncio.to_thread(file.write, chunk)
        finally:
            self._incoming_bytes[tenant] -= own_bytes
            if not self._incoming_bytes[tenant]:
                del self._incoming_bytes[tenant]
        return own_bytes

    def _full(self, param: str | None) -> ClientError:
        limits = self._limits
        return ClientError(
            f"The file does not fit: a container has at most {limits.bytes} bytes (tools.code_interpreter.disk_mib), and"
            f" all of your containers together {limits.tenant_bytes} (tools.code_interpreter.tenant_disk_mib).",
            code="file_too_large",
            param=param,
        )

    def _remove_leftovers(self, living_ids: Collection[str]) -> None:
        """Remove what a server left that was killed: uploads, and folders that belong to no container."""
        oldest_s = time.time() - _LEFTOVER_AGE_S
        # What is not there any more, another process has removed or stored.
        for path in (self._folder / _INCOMING).iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_mtime < oldest_s:
                    path.unlink()
        for path in (self._folder / _DATA).iterdir():
            with contextlib.suppress(FileNotFoundError):
                # By the time of change, which code can't set.
                if path.name not in living_ids and path.lstat().st_ctime < oldest_s:
                    remove_tree(path)

    def _new_file(self, container_id: str, path: str, stamp: FileStamp, source: Literal["user", "assistant"]) -> ContainerFile:
        return ContainerFile(
            id=_new_id(FILE_PREFIX),
            container_id=container_id,
            path=f"{GUEST_FOLDER}/{path}",
            bytes=stamp.bytes,
            created_at=self.now,
            source=source,
        )

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with _disk_errors():
            return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """Turn a disk that is full or fails into an error that says when to try again; the operator gets the cause."""
    try:
        yield
    except FileNotFoundError:  # the container was deleted
        raise
    except (sqlite3.OperationalError, OSError) as error:
        unavailable = ServerError(
            "The server can't use its containers now. Please try again later.",
            status=503,
            type="service_unavailable_error",
            code="containers_unavailable",
            retry_after_s=STORE_RETRY_S,
        )
        unavailable.operator_message = f"The containers' folder can't be used: {error}."
        raise unavailable from error


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(24)


def _existing(container: Container | None, container_id: str, param: str | None) -> Container:
    if container is None:
        raise _not_found(container_id, param)
    return container


def _not_found(container_id: str, param: str | None) -> ClientError:
    return ClientError(f"Container with id '{shorten(container_id)}' not found.", status=404, code="not_found", param=param)


def _running(container: Container, param: str | None) -> Container:
    if container.status == "expired":
        raise ClientError("Container is expired.", code="container_expired", param=param)
    return container


def _file_not_found(file_id: str) -> ClientError:
    return ClientError(f"No such container file: '{shorten(file_id)}'.", status=404, code="not_found")


def _move(source: Path, target: Path) -> FileStamp | None:
    """Move a file to its place. It replaces a file or a symbolic link (the link itself); None where a folder has the name."""
    os.chmod(source, 0o644)
    try:
        os.replace(source, target)
    except (IsADirectoryError, NotADirectoryError):
        return None
    return stamp(os.lstat(target))


def _open_sized(folder: Path, path: str) -> tuple[int, int] | None:
    descriptor = open_file(folder, path)
    return None if descriptor is None else (descriptor, os.fstat(descriptor).st_size)
