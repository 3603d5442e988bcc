"""All routes under `/v1/containers`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import unsupported_parameter, unsupported_value
from antiphon.offload import offload
from antiphon.runtime.service import Service
from antiphon.server.containers.add_file import add_container_file, add_uploaded_file, file_to_wire, find_upload
from antiphon.server.http.auth import EndpointFunction, GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.body import read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import BODY_ERRORS, UNAVAILABLE, Operation, Parameter
from antiphon.server.http.paging import end_ids, page_limit, page_order, page_parameters
from antiphon.server.http.streaming import ContentResponse
from antiphon.tools.code_interpreter.records import Container
from antiphon.wire.codec.fields import value_or
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import encode
from antiphon.wire.http.containers import (
    AddContainerFileForm,
    AddContainerFileRequest,
    ContainerDeleted,
    ContainerExpiry,
    ContainerFileDeleted,
    ContainerFileList,
    ContainerFileObject,
    ContainerList,
    ContainerNetwork,
    ContainerObject,
    CreateContainerRequest,
    create_container_reader,
)

PATH = "/v1/containers"

_INVALID = "The request is invalid, or beyond a limit; `param` names the field."
_EXPIRED = "The container has expired."
_NOT_FOUND = {404: "There is no such container."}
_FILE_ERRORS = {400: _EXPIRED, 404: "There is no such container, or it has no such file."}
_TOO_MANY = {429: "You have too many containers, or the key has made too many requests."}
_BUSY = {503: UNAVAILABLE}

_CREATE = Operation(
    "createContainer",
    "Containers",
    "Create a container",
    ContainerObject,
    CreateContainerRequest,
    errors=BODY_ERRORS | _TOO_MANY | _BUSY | {400: _INVALID, 404: "One of the files does not exist."},
    description="A response's tool `code_interpreter` names it as its `container`. It expires when nobody has used it for a while.",
    links=dict.fromkeys(("retrieveContainer", "deleteContainer", "listContainerFiles"), "container_id"),
)
_LIST = Operation(
    "listContainers",
    "Containers",
    "List the containers",
    ContainerList,
    errors={400: "A parameter is invalid, or `after` is not the id of one of the containers; `param` says which."},
    query=[*page_parameters("container"), Parameter("name", "Only containers with this name.", {"type": "string"})],
    description="Those that have expired are among them.",
)
_RETRIEVE = Operation("retrieveContainer", "Containers", "Retrieve a container", ContainerObject, errors=_NOT_FOUND)
_DELETE = Operation("deleteContainer", "Containers", "Delete a container with its files", ContainerDeleted, errors=_NOT_FOUND)
_ADD_FILE = Operation(
    "addContainerFile",
    "Containers",
    "Add a file to a container",
    ContainerFileObject,
    AddContainerFileRequest,
    errors=BODY_ERRORS
    | _BUSY
    | {
        400: f"{_INVALID[:-1]}; or the container has expired.",
        404: "There is no such container, or no such uploaded file.",
        408: "The upload took too long.",
        413: "The file is too large.",
    },
    description="Either the file itself, as a form, or the id of an uploaded one. It replaces a file of the same name.",
    form_type=AddContainerFileForm,
)
_LIST_FILES = Operation(
    "listContainerFiles",
    "Containers",
    "List a container's files",
    ContainerFileList,
    errors=_NOT_FOUND
    | {400: f"A parameter is invalid, or `after` is not the id of one of the files; `param` says which. Or: {_EXPIRED.lower()}"},
    query=page_parameters("file"),
)
_RETRIEVE_FILE = Operation(
    "retrieveContainerFile", "Containers", "Retrieve what is known of a container's file", ContainerFileObject, errors=_FILE_ERRORS
)
_DOWNLOAD = Operation(
    "downloadContainerFile",
    "Containers",
    "Download a container's file",
    errors=_FILE_ERRORS,
    media_types=("application/octet-stream",),
)
_DELETE_FILE = Operation("deleteContainerFile", "Containers", "Delete a container's file", ContainerFileDeleted, errors=_FILE_ERRORS)


def routes(service: Service) -> list[GuardedRoute]:
    """All routes under `/v1/containers`."""
    one, files = f"{PATH}/{{container_id}}", f"{PATH}/{{container_id}}/files"
    file = f"{files}/{{file_id}}"
    return guarded_routes(
        service,
        [
            ("POST", PATH, _create(service), "responses:write", _CREATE),
            ("GET", PATH, _list(service), "responses:read", _LIST),
            ("GET", one, _retrieve(service), "responses:read", _RETRIEVE),
            ("DELETE", one, _delete(service), "responses:write", _DELETE),
            ("POST", files, add_container_file(service), "responses:write", _ADD_FILE),
            ("GET", files, _list_files(service), "responses:read", _LIST_FILES),
            ("GET", file, _retrieve_file(service), "responses:read", _RETRIEVE_FILE),
            ("GET", f"{file}/content", _download(service), "responses:read", _DOWNLOAD),
            ("DELETE", file, _delete_file(service), "responses:write", _DELETE_FILE),
        ],
    )


def _create(service: Service) -> EndpointFunction:
    async def create(request: Request) -> Response:
        service.live_sessions.check_admission()
        body = await read_json_body(request)
        options = await offload(len(body), _read_options, body)
        tenant = request_caller(request.scope).tenant
        expiry = value_or(options.expires_after, None)
        file_ids: list[str] = value_or(options.file_ids, [])
        # All are looked up first, so that an unknown file leaves no container behind.
        uploads = [await find_upload(service, tenant, file_id, f"file_ids[{index}]") for index, file_id in enumerate(file_ids)]
        containers = service.containers
        container = await containers.create(
            tenant,
            options.name,
            expires_after_minutes=None if expiry is None else expiry.minutes,
            memory_limit=value_or(options.memory_limit, None),
        )
        try:
            for index, record in enumerate(uploads):
                await add_uploaded_file(service, tenant, container.id, record, f"file_ids[{index}]")
        except BaseException:
            # The client never learns the id, so nobody could delete it. Behind `shield` a cancellation doesn't stop the deletion.
            await asyncio.shield(containers.delete(tenant, container.id))
            raise
        return json_response(encode(_to_wire(container)))

    return create


def _read_options(body: bytes) -> CreateContainerRequest:
    check_structure(body)
    options = create_container_reader.read(body)
    # What a container can't have is refused now: accepted, it would surprise the model's code later (record 0054).
    policy = value_or(options.network_policy, None)
    if policy is not None and policy.type != "disabled":
        raise unsupported_value("network_policy.type", policy.type, None, ("disabled",))
    if value_or(options.skills, None):
        raise unsupported_parameter("skills", None)
    return options


def _list(service: Service) -> EndpointFunction:
    async def list_containers(request: Request) -> Response:
        query = request.query_params
        page = await service.containers.list(
            request_caller(request.scope).tenant,
            limit=page_limit(query),
            order=page_order(query),
            after=query.get("after"),
            name=query.get("name"),
        )
        first_id, last_id = end_ids(page.containers)
        objects = [_to_wire(container) for container in page.containers]
        return json_response(encode(ContainerList(data=objects, first_id=first_id, last_id=last_id, has_more=page.has_more)))

    return list_containers


def _retrieve(service: Service) -> EndpointFunction:
    async def retrieve(request: Request) -> Response:
        return json_response(encode(_to_wire(await service.containers.get(*_container(request)))))

    return retrieve


def _delete(service: Service) -> EndpointFunction:
    async def delete(request: Request) -> Response:
        tenant, container_id = _container(request)
        await service.containers.delete(tenant, container_id)
        return json_response(encode(ContainerDeleted(id=container_id)))

    return delete


def _list_files(service: Service) -> EndpointFunction:
    async def list_files(request: Request) -> Response:
        query = request.query_params
        page = await service.containers.list_files(
            *_container(request), limit=page_limit(query), order=page_order(query), after=query.get("after")
        )
        first_id, last_id = end_ids(page.files)
        objects = [file_to_wire(file) for file in page.files]
        return json_response(encode(ContainerFileList(data=objects, first_id=first_id, last_id=last_id, has_more=page.has_more)))

    return list_files


def _retrieve_file(service: Service) -> EndpointFunction:
    async def retrieve(request: Request) -> Response:
        file = await service.containers.get_file(*_container(request), request.path_params["file_id"])
        return json_response(encode(file_to_wire(file)))

    return retrieve


def _download(service: Service) -> EndpointFunction:
    async def download(request: Request) -> Response:
        file, chunks = await service.containers.read_file(*_container(request), request.path_params["file_id"])
        headers = {
            # A page that code or a client has written would run with this server's origin, so no browser may show it or guess its type.
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
            "content-length": str(file.bytes),
            "x-content-type-options": "nosniff",
            "cache-control": "private, no-store",
        }
        return ContentResponse(_whole(chunks, file.bytes), headers=headers, media_type="application/octet-stream")

    return download


async def _whole(chunks: AsyncIterator[bytes], size_bytes: int) -> AsyncIterator[bytes]:
    """As many bytes as `content-length` promised: code may shorten the file meanwhile, and then the rest is zeros."""
    async with contextlib.aclosing(chunks) as source:  # type: ignore[type-var]  # it is a generator
        async for chunk in source:
            size_bytes -= len(chunk)
            yield chunk
    while size_bytes > 0:
        padding = bytes(min(size_bytes, 1 << 16))
        size_bytes -= len(padding)
        yield padding


def _delete_file(service: Service) -> EndpointFunction:
    async def delete(request: Request) -> Response:
        file_id = request.path_params["file_id"]
        await service.containers.delete_file(*_container(request), file_id)
        return json_response(encode(ContainerFileDeleted(id=file_id)))

    return delete


def _container(request: Request) -> tuple[str, str]:
    return request_caller(request.scope).tenant, request.path_params["container_id"]


def _to_wire(container: Container) -> ContainerObject:
    return ContainerObject(
        id=container.id,
        created_at=container.created_at,
        status=container.status,
        name=container.name,
        last_active_at=container.last_active_at,
        expires_after=ContainerExpiry(anchor="last_active_at", minutes=container.expires_after_minutes),
        memory_limit=container.memory_limit,
        network_policy=ContainerNetwork(type="disabled"),
    )
