"""`POST /v1/containers/{container_id}/files`: a file as a form, stored while it arrives, or a copy of an uploaded one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError, missing_parameter, mutually_exclusive, shorten, wrong_id_prefix
from antiphon.offload import offload
from antiphon.records import FileRecord
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.files.library import ID_PREFIX, UPLOAD_TIMEOUT_S
from antiphon.runtime.service import Service
from antiphon.server.files.multipart import FormEvent, PartHead
from antiphon.server.files.upload import form_events, part_content, read_field, safe_filename
from antiphon.server.http.auth import EndpointFunction, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY, read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import FORM_MEDIA_TYPE
from antiphon.tools.code_interpreter.records import ContainerFile
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import encode
from antiphon.wire.http.containers import AddContainerFileRequest, ContainerFileObject, add_file_reader

LEASE_BYTES = 1 << 20
"""What an upload holds in memory, at most."""

LIMIT_SETTING = "tools.code_interpreter.disk_mib"


def add_container_file(service: Service) -> EndpointFunction:
    """The endpoint `POST /v1/containers/{container_id}/files`."""

    async def add(request: Request) -> Response:
        service.live_sessions.check_admission()
        tenant, container_id = request_caller(request.scope).tenant, request.path_params["container_id"]
        await service.containers.use(tenant, container_id)  # before the body is read, which may be as large as the container
        content_type = request.headers.get("content-type", "")
        try:
            async with asyncio.timeout(UPLOAD_TIMEOUT_S):
                if content_type.partition(";")[0].strip().lower() == FORM_MEDIA_TYPE:
                    file = await _receive(service, request, tenant, container_id)
                else:
                    body = await read_json_body(request)
                    options = await offload(len(body), _read_request, body)
                    file = await _copy(service, tenant, container_id, options.file_id)
        except TimeoutError:
            raise ClientError("The upload took too long.", status=408, code="request_timeout") from None
        return json_response(encode(file_to_wire(file)))

    return add


def file_to_wire(file: ContainerFile) -> ContainerFileObject:
    """A container's file as clients see it."""
    return ContainerFileObject(
        id=file.id, container_id=file.container_id, created_at=file.created_at, bytes=file.bytes, path=file.path, source=file.source
    )


async def find_upload(service: Service, tenant: str, file_id: str, param: str) -> FileRecord:
    """
    An uploaded file; `param` is the field that names it.

    Raises:
        ClientError: there is none, or it is another tenant's.
    """
    if not file_id.startswith(ID_PREFIX):
        raise wrong_id_prefix(param, file_id, ID_PREFIX)
    return await service.files.find(tenant, file_id, param)


async def add_uploaded_file(service: Service, tenant: str, container_id: str, record: FileRecord, param: str) -> ContainerFile:
    """
    Copy an uploaded file into a container; `param` is the field that names it.

    Raises:
        ClientError: it doesn't fit, or the container has expired.
    """
    chunks = service.files.chunks(record)
    return await service.containers.add_file(tenant, container_id, record.filename, chunks, param=param, origin=record.id)


def _read_request(body: bytes) -> AddContainerFileRequest:
    check_structure(body)
    return add_file_reader.read(body)


async def _copy(service: Service, tenant: str, container_id: str, file_id: str) -> ContainerFile:
    record = await find_upload(service, tenant, file_id, "file_id")
    return await add_uploaded_file(service, tenant, container_id, record, "file_id")


async def _receive(service: Service, request: Request, tenant: str, container_id: str) -> ContainerFile:
    """Read the form, and add its file: or copy the one that it names."""
    lease: BodyLease = request.scope[BODY_LEASE_SCOPE_KEY]
    lease.extend(LEASE_BYTES)
    containers = service.containers
    form = _Form()
    async with contextlib.aclosing(form_events(request, containers.limits.bytes, LIMIT_SETTING)) as events:
        async for event in events:
            assert isinstance(event, PartHead)  # a part is read to its end
            if event.filename is None:
                await form.read_field(event, events)
                continue
            form.check_file(event)
            # `content` reads the form to its end, so nothing is left to loop over.
            return await containers.add_file(tenant, container_id, safe_filename(event.filename), form.content(events), param="file")
    if form.file_id is None:
        raise missing_parameter("file")
    return await _copy(service, tenant, container_id, form.file_id)


class _Form:
    """What a form has beside its file."""

    def __init__(self) -> None:
        self.file_id: str | None = None
        self._has_file = False

    async def read_field(self, head: PartHead, events: AsyncIterator[FormEvent]) -> None:
        """Read a part that is no file; unknown fields are ignored."""
        text = await read_field(head.name, events)
        if head.name == "file_id":
            self.file_id = text
        self._check_choice()

    def check_file(self, head: PartHead) -> None:
        """
        Check the beginning of a part that is a file.

        Raises:
            ClientError: there may be no such part.
        """
        if head.name != "file" or self._has_file:
            raise ClientError(f"There must be one file, named 'file'; got another one named '{shorten(head.name)}'.", param="file")
        self._has_file = True
        self._check_choice()

    async def content(self, events: AsyncIterator[FormEvent]) -> AsyncIterator[bytes]:
        """
        The file, and then the rest of the form: a mistake in it is found before the file replaces another of its name.

        Raises:
            ClientError: the form is wrong.
        """
        async for chunk in part_content(events):
            yield chunk
        async for event in events:
            assert isinstance(event, PartHead)
            if event.filename is not None:
                self.check_file(event)
            await self.read_field(event, events)

    def _check_choice(self) -> None:
        if self._has_file and self.file_id is not None:
            raise mutually_exclusive("file_id", ("file", "file_id"))
