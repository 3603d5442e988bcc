"""Containers and their files, as `Containers` hands them out, and the limits that hold for them."""

from typing import Literal

from msgspec import Struct

CONTAINER_PREFIX, FILE_PREFIX = "cntr_", "cfile_"

GUEST_FOLDER = "/mnt/data"
"""Where code sees the files of its container."""

MemoryLimit = Literal["1g", "4g", "16g", "64g"]
Order = Literal["asc", "desc"]

MEMORY_LIMIT_BYTES: dict[MemoryLimit, int] = {"1g": 1 << 30, "4g": 4 << 30, "16g": 16 << 30, "64g": 64 << 30}


class Container(Struct, frozen=True, kw_only=True):
    """
    A container: a folder of files, and Python that keeps its variables from call to call.

    Attributes:
        id: `cntr_...`.
        created_at: Unix seconds; so is `last_active_at`.
        expires_after_minutes: after it was last used.
        memory_limit: of its processes together.
        status: `expired`: its files are gone, and it can't be used again.
    """

    id: str
    tenant: str
    name: str
    created_at: int
    last_active_at: int
    expires_after_minutes: int
    memory_limit: MemoryLimit
    status: Literal["running", "expired"] = "running"


class ContainerFile(Struct, frozen=True, kw_only=True):
    """
    A file of a container.

    Attributes:
        id: `cfile_...`.
        path: in the container: `/mnt/data/report.csv`.
        bytes: its size.
        created_at: Unix seconds.
        source: `user`: it was added by a client; `assistant`: code made it.
    """

    id: str
    container_id: str
    path: str
    bytes: int
    created_at: int
    source: Literal["user", "assistant"]

    @property
    def filename(self) -> str:
        """Its name without folders."""
        return self.path.rpartition("/")[2]


class ContainerPage(Struct, frozen=True):
    """One page of a list of containers, and whether more follow in the order asked for."""

    containers: tuple[Container, ...]
    has_more: bool


class ContainerFilePage(Struct, frozen=True):
    """One page of a list of a container's files, and whether more follow in the order asked for."""

    files: tuple[ContainerFile, ...]
    has_more: bool


class ContainerLimits(Struct, frozen=True, kw_only=True):
    """
    The limits of containers; those of running code are the kernel's.

    Attributes:
        containers: of a tenant that have not expired.
        bytes: of one container's files together.
        tenant_bytes: of all files of a tenant's containers together.
        files: of one container, folders included.
        expires_after_minutes: the most, and what a container has whose maker says nothing.
        memory_limit: the most.
    """

    containers: int = 100
    bytes: int = 512 << 20
    tenant_bytes: int = 4 << 30
    files: int = 1000
    expires_after_minutes: int = 20
    memory_limit: MemoryLimit = "1g"
