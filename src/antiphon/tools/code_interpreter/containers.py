"""Containers of each tenant, with their files, in a folder of this machine."""

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import Literal

from antiphon.tools.code_interpreter.records import (
    Container,
    ContainerFile,
    ContainerFilePage,
    ContainerLimits,
    ContainerPage,
    MemoryLimit,
    Order,
)


class Containers:
    """
    The containers of all tenants; none sees another's. Whatever names a container that has not expired counts as its use.

    Args:
        folder: where the containers lie; made if it isn't there. Several processes may share it.
        clock: Unix seconds.
    """

    def __init__(self, folder: Path, limits: ContainerLimits | None = None, clock: Callable[[], float] = time.time) -> None:
        raise NotImplementedError

    @property
    def limits(self) -> ContainerLimits:
        """The limits of all containers."""
        raise NotImplementedError

    async def create(
        self, tenant: str, name: str, *, expires_after_minutes: int | None = None, memory_limit: MemoryLimit | None = None
    ) -> Container:
        """
        Make a container.

        Args:
            expires_after_minutes: None for the most that there may be, as for `memory_limit` the least.

        Raises:
            ClientError: the tenant has too many containers, or a limit is beyond the server's own; `param` is the
                field's name in `POST /v1/containers`.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    async def get(self, tenant: str, container_id: str, param: str | None = None) -> Container:
        """
        A container by its id, whether it has expired or not; `param` is the field that names it.

        Raises:
            ClientError: 404; there is none, or it is another tenant's.
        """
        raise NotImplementedError

    async def use(self, tenant: str, container_id: str, param: str | None = None) -> Container:
        """
        A container that has not expired; `param` is the field that names it.

        Raises:
            ClientError: 404; there is none, or it is another tenant's; 400; it has expired.
        """
        raise NotImplementedError

    async def delete(self, tenant: str, container_id: str) -> None:
        """
        Delete a container with its files; code that runs in it ends.

        Raises:
            ClientError: 404; there is none.
        """
        raise NotImplementedError

    async def add_file(
        self,
        tenant: str,
        container_id: str,
        filename: str,
        chunks: AsyncIterable[bytes],
        *,
        source: Literal["user", "assistant"] = "user",
        param: str | None = "file",
    ) -> ContainerFile:
        """
        Add a file to a container; it replaces one of the same name.

        Args:
            filename: without folders.
            param: the field that has the file.

        Raises:
            ClientError: the name can't be used, the file is too large, or the container is full, has expired or isn't
                there.
        """
        raise NotImplementedError

    async def list_files(
        self, tenant: str, container_id: str, *, limit: int = 20, order: Order = "desc", after: str | None = None
    ) -> ContainerFilePage:
        """
        A page of a container's files.

        Raises:
            ClientError: as `use`, or `after` is not one of them.
        """
        raise NotImplementedError

    async def get_file(self, tenant: str, container_id: str, file_id: str) -> ContainerFile:
        """
        A file by its id.

        Raises:
            ClientError: as `use`, or there is no such file.
        """
        raise NotImplementedError

    async def read_file(self, tenant: str, container_id: str, file_id: str) -> tuple[ContainerFile, AsyncIterator[bytes]]:
        """
        A file and its bytes in chunks, as many as `ContainerFile.bytes` says; close the iterator if it isn't read to its end.

        Raises:
            ClientError: as `get_file`.
        """
        raise NotImplementedError

    async def delete_file(self, tenant: str, container_id: str, file_id: str) -> None:
        """
        Delete a file.

        Raises:
            ClientError: as `get_file`.
        """
        raise NotImplementedError

    async def sweep(self) -> None:
        """Delete the files of containers that have expired, and in time what is known of them; to be called now and then."""
        raise NotImplementedError

    async def close(self) -> None:
        """Give back what it holds; idempotent."""
        raise NotImplementedError
