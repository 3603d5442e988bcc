"""The Containers API: what its requests ask for, and what its endpoints return."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, UnsetType

from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.types import JsonDict, Maybe, Wire

ContainerMemory = Literal["1g", "4g", "16g", "64g"]


class ContainerExpiry(Wire, kw_only=True):
    """When a container expires: so many minutes after it was last used."""

    anchor: Literal["last_active_at"]
    minutes: Annotated[int, Meta(ge=1, le=1_000_000)]


class ContainerNetwork(Wire, kw_only=True):
    """Which hosts a container reaches: none, or those of some domains."""

    type: Literal["disabled", "allowlist"]
    allowed_domains: Maybe[list[str]] = UNSET
    domain_secrets: Maybe[list[JsonDict]] = UNSET


class CreateContainerRequest(Wire, kw_only=True):
    """Asks for a container; `file_ids` are of uploaded files that it begins with."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    expires_after: Maybe[ContainerExpiry] = UNSET
    file_ids: Maybe[Annotated[list[str], Meta(max_length=50)]] = UNSET
    memory_limit: Maybe[ContainerMemory] = UNSET
    network_policy: Maybe[ContainerNetwork] = UNSET
    skills: Maybe[Annotated[list[JsonDict], Meta(max_length=200)]] = UNSET


class ContainerObject(Wire, kw_only=True):
    """A container; one that has expired can't be used again."""

    id: str
    object: Literal["container"] = "container"
    created_at: int
    status: Literal["running", "expired"]
    name: str
    last_active_at: int
    expires_after: ContainerExpiry
    memory_limit: ContainerMemory
    network_policy: ContainerNetwork


class ContainerList(Wire, kw_only=True):
    """A page of containers; the next one follows `last_id`."""

    object: Literal["list"] = "list"
    data: list[ContainerObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ContainerDeleted(Wire, kw_only=True):
    """A container was deleted."""

    id: str
    object: Literal["container.deleted"] = "container.deleted"
    deleted: bool = True


class AddContainerFileRequest(Wire, kw_only=True):
    """Asks for a copy of an uploaded file in a container."""

    file_id: str


class AddContainerFileForm(Wire, kw_only=True):
    """A form with a file for a container, or with the id of an uploaded file to be copied into it."""

    file: Annotated[Raw, Meta(extra_json_schema={"type": "string", "contentMediaType": "application/octet-stream"})] | UnsetType = UNSET
    file_id: str | UnsetType = UNSET


class ContainerFileObject(Wire, kw_only=True):
    """A file of a container, which a client has added (`user`) or code has made (`assistant`)."""

    id: str
    object: Literal["container.file"] = "container.file"
    container_id: str
    created_at: int
    bytes: int
    path: str
    source: Literal["user", "assistant"]


class ContainerFileList(Wire, kw_only=True):
    """A page of a container's files; the next one follows `last_id`."""

    object: Literal["list"] = "list"
    data: list[ContainerFileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ContainerFileDeleted(Wire, kw_only=True):
    """A file of a container was deleted."""

    id: str
    object: Literal["container.file.deleted"] = "container.file.deleted"
    deleted: bool = True


create_container_reader: Reader[CreateContainerRequest] = Reader(CreateContainerRequest)
add_file_reader: Reader[AddContainerFileRequest] = Reader(AddContainerFileRequest)
