"""The tool `code_interpreter`: the function `python`, run in a container, and the items and events of its calls."""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from msgspec import Struct

from antiphon.engine_api.events import HostedToolDone, HostedToolProgress, HostedToolStarted
from antiphon.engine_api.history import TextPart
from antiphon.engine_api.options import FunctionTool
from antiphon.errors import ApiError, ClientError, unsupported_value
from antiphon.tool_api import Citation, ServerToolCall, ToolOutput
from antiphon.tools.base import Report, ToolContext
from antiphon.tools.code_interpreter.containers import Containers
from antiphon.tools.code_interpreter.folder import is_presentable
from antiphon.tools.code_interpreter.kernels import CallOutcome, Kernels
from antiphon.tools.code_interpreter.records import Container, ContainerFile
from antiphon.wire.responses import items, tools as wire_tools
from antiphon.wire.responses.hosted_calls import CodeInterpreterCall
from antiphon.wire.responses.parts import InputFile, InputImage

TYPE = "code_interpreter"
FUNCTION_NAME = "python"
"""The name that models are trained on."""

MAX_CODE_CHARS = 1_000_000

_FUNCTION = FunctionTool(
    FUNCTION_NAME,
    "Runs Python code and returns what it prints, with the value of its last expression, as a notebook does. Variables stay for the "
    "next call. There is no network. Read and write files in /mnt/data; to give the user a file that you wrote there, link to it as "
    "[name](sandbox:/mnt/data/name).",
    {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The Python code to run."}},
        "required": ["code"],
        "additionalProperties": False,
    },
)

_AUTO_NAME = "auto"
_MAX_NAME_BYTES = 200  # of the 255 that file systems allow
_LOST_VARIABLES = "[The interpreter was restarted: variables of earlier calls are gone, files are still there.]\n"


class OpenUpload(Struct, frozen=True):
    """An uploaded file: its name, and its bytes in chunks."""

    filename: str
    chunks: AsyncIterator[bytes]


class Uploads(Protocol):
    """The files that clients have uploaded."""

    async def open(self, tenant: str, file_id: str, param: str) -> OpenUpload:
        """
        An uploaded file; `param` is the field that names it.

        Raises:
            ClientError: 404; there is none, or it is another tenant's.
        """


class InputCopy(Struct, frozen=True):
    """A file of the request's input that code is to see; either uploaded, or whole in base64."""

    origin: str
    file_id: str | None
    filename: str
    content: str | None


class CodeInterpreterKind:
    """The row of the toolbox. It owns what it is given: `close` closes all of it."""

    types = frozenset({TYPE})

    def __init__(self, containers: Containers, kernels: Kernels, uploads: Uploads) -> None:
        self._containers = containers
        self._kernels = kernels
        self._uploads = uploads

    def open(self, tools: Sequence[tuple[str, wire_tools.Tool]], context: ToolContext) -> "CodeInterpreter":
        """
        Open the tool; of several, the first.

        Raises:
            ClientError: the container isn't there or has expired, or it is to have what no container has here.
        """
        path, tool = tools[0]
        assert isinstance(tool, wire_tools.CodeInterpreterTool)
        param = f"{path}.container"
        if isinstance(tool.container, str):
            # At once, as opening has no `await`: a wrong id is an error of the request before the response begins.
            self._containers.check(context.tenant, tool.container, param)
            return CodeInterpreter(self._containers, self._kernels, self._uploads, context, param, tool.container, None)
        auto = tool.container
        if isinstance(auto.network_policy, wire_tools.NetworkAllowlist):
            raise unsupported_value(f"{param}.network_policy.type", "allowlist", None, ["disabled"])
        if isinstance(auto.memory_limit, str):
            self._containers.check_memory_limit(auto.memory_limit, f"{param}.memory_limit")
        return CodeInterpreter(self._containers, self._kernels, self._uploads, context, param, None, auto)

    @property
    def containers(self) -> Containers:
        """The containers, for their routes."""
        return self._containers

    async def sweep(self) -> None:
        """End and delete what has expired; to be called every minute or so."""
        await self._kernels.sweep()

    async def close(self) -> None:
        """End all code and close the containers; idempotent."""
        await self._kernels.close()
        await self._containers.close()


class CodeInterpreter:
    """The tool of one response; all of its calls use one container."""

    def __init__(
        self,
        containers: Containers,
        kernels: Kernels,
        uploads: Uploads,
        context: ToolContext,
        param: str,
        container_id: str | None,
        auto: wire_tools.AutoContainer | None,
    ) -> None:
        self._containers = containers
        self._kernels = kernels
        self._uploads = uploads
        self._context = context
        self._param = param
        self._container_id = container_id
        self._auto = auto
        self._lock = asyncio.Lock()
        self._has_input = False
        self._unused_id: str | None = None  # of a container that was made for this response, and in which no call has run

    @property
    def functions(self) -> Sequence[FunctionTool]:
        """The function `python`."""
        return (_FUNCTION,)

    @property
    def must_prepare(self) -> bool:
        """Whether the request names a container or files, so that a wrong id fails the request and not a call."""
        return self._container_id is not None or bool(self._file_ids)

    async def prepare(self, report: Report) -> None:
        """Check that the container and its files exist; without either there is nothing to do before the first call."""
        try:
            await self._find_container()
        except ApiError:
            if (container_id := self._unused_id) is not None:
                self._unused_id = None
                # Before the client is told, so that it finds none.
                with contextlib.suppress(ApiError):  # if it can't be deleted now, it expires
                    await self._containers.delete(self._context.tenant, container_id)
            raise

    async def run(self, call: ServerToolCall, report: Report) -> ToolOutput:
        """Run the code of a call."""
        code = read_code(call.arguments)
        if code is None:
            wanted_shape = f"a JSON object with `code`, a text of at most {MAX_CODE_CHARS} characters"
            return ToolOutput((TextPart(f"The arguments must be {wanted_shape}."),))
        try:
            container = await self._find_container()
        except ApiError as error:
            # The container that the request named, or that this response used, is gone: no further call could do better.
            if self._container_id is not None and error.code in ("container_expired", "not_found"):
                raise
            return ToolOutput((TextPart(error.message),))
        self._unused_id = None
        item_id = f"ci_{secrets.token_hex(24)}"
        item = {"id": item_id, "type": "code_interpreter_call", "container_id": container.id}
        report(HostedToolStarted(item_id, {**item, "status": "in_progress", "code": "", "outputs": []}))
        for event in _opening_events(code):
            report(HostedToolProgress(item_id, event))
        try:
            outcome = await self._kernels.run(container, code)
        except ApiError as error:
            report(HostedToolDone(item_id, self.fail({**item, "code": code}, error.message)))
            return ToolOutput((TextPart(error.message),))
        if outcome.run.problem is None:
            report(HostedToolProgress(item_id, {"type": "response.code_interpreter_call.completed"}))
        # At a limit the code did not do what it was to do; an exception is a result like any other (docs/decisions/0052).
        status = "completed" if outcome.run.problem is None else "failed"
        report(HostedToolDone(item_id, {**item, "status": status, "code": code, "outputs": _outputs(outcome)}))
        return ToolOutput((TextPart(_describe(outcome)),), tuple(each for file in outcome.files for each in _cite(container, file)))

    def fail(self, item: Mapping[str, Any], message: str) -> dict[str, Any]:
        """The item of a call that did not end by itself."""
        return {**item, "status": "failed", "outputs": [{"type": "logs", "logs": f"{message}\n"}]}

    def close(self) -> None:
        """Delete a container that no call has used: no item names it, and it would count against the limit until it expires."""
        if self._unused_id is not None:
            self._containers.delete_later(self._context.tenant, self._unused_id)
            self._unused_id = None

    @property
    def _file_ids(self) -> Sequence[str]:
        return self._auto.file_ids if self._auto is not None and isinstance(self._auto.file_ids, list) else []

    async def _find_container(self) -> Container:
        """The container of this response, with the files that belong to it."""
        # Calls of one turn run at the same time, and must not make a container each.
        async with self._lock:
            container = await self._get_or_create()
            self._container_id = container.id
            if not self._has_input:
                await self._copy_input(container)
                self._has_input = True
            return container

    async def _get_or_create(self) -> Container:
        tenant = self._context.tenant
        if self._container_id is not None:
            return await self._containers.use(tenant, self._container_id, self._param)
        assert self._auto is not None
        memory_limit = self._auto.memory_limit if isinstance(self._auto.memory_limit, str) else None
        # Code interpreter guide, auto mode: a container that an earlier call in the context used is used again while it lives.
        for item in reversed(self._context.items):
            if isinstance(item, CodeInterpreterCall):
                try:
                    container = await self._containers.use(tenant, item.container_id)
                except ClientError:
                    continue  # It has expired, or belongs to another server.
                if memory_limit in (None, container.memory_limit):
                    return container
        container = await self._containers.create(tenant, _AUTO_NAME, memory_limit=memory_limit)
        self._unused_id = container.id
        return container

    async def _copy_input(self, container: Container) -> None:
        origins = await self._containers.origins(container)
        # A file is copied once, so what code has made of its copy stays.
        for index, file_id in enumerate(self._file_ids):
            if file_id not in origins:
                await self._copy_upload(container, file_id, f"{self._param}.file_ids[{index}]")
                origins.add(file_id)
        for copy in await asyncio.to_thread(find_input, self._context.items):
            if copy.origin not in origins:
                origins.add(copy.origin)
                await self._copy_part(container, copy)

    async def _copy_part(self, container: Container, copy: InputCopy) -> None:
        """Copy a file of the input; one that can't be copied is left out, as the model has it anyway."""
        try:
            if copy.file_id is not None:
                await self._copy_upload(container, copy.file_id, "input")
            elif copy.content is not None:
                content = await asyncio.to_thread(decode_base64, copy.content)
                await self._add(container, copy.filename, _once(content), "input", copy.origin)
        except ClientError:
            pass

    async def _copy_upload(self, container: Container, file_id: str, param: str) -> None:
        upload = await self._uploads.open(self._context.tenant, file_id, param)
        await self._add(container, upload.filename, upload.chunks, param, file_id)

    async def _add(self, container: Container, filename: str, chunks: AsyncIterator[bytes], param: str, origin: str) -> None:
        name = plain_name(filename)
        await self._containers.add_file(self._context.tenant, container.id, name, chunks, param=param, origin=origin)


def read_code(arguments: str) -> str | None:
    """The code in a call's arguments; some models write bare code instead of JSON. None if there is none, or too much."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    code = value.get("code") if isinstance(value, dict) else value
    if not isinstance(code, str) or not code.strip() or len(code) > MAX_CODE_CHARS:
        return None
    return code.encode(errors="replace").decode()  # JSON may have lone surrogates, which can't be encoded.


def find_input(conversation: Sequence[items.Item]) -> list[InputCopy]:
    """The files and pictures in the messages of a conversation that come with their bytes or were uploaded."""
    copies = []
    for item in conversation:
        for part in item.content if isinstance(item, items.Message) and not isinstance(item.content, str) else ():
            if isinstance(part, InputFile | InputImage) and (copy := _copy_of(part)) is not None:
                copies.append(copy)
    return copies


def plain_name(filename: str) -> str:
    """A file name without folders and without what no name in a container may have."""
    # The end of a long one, which has the suffix. Cut first: clients send names of any length.
    name = filename[-_MAX_NAME_BYTES:].replace("\\", "/").rpartition("/")[2]
    name = "".join(each if is_presentable(each) or each == "." else "_" for each in name)
    # Less than a whole character at the cut is left out.
    name = name.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore")
    return name if is_presentable(name) else "file"


def decode_base64(text: str) -> bytes:
    """
    The bytes of a data URL, or of base64 alone.

    Raises:
        ClientError: it is neither.
    """
    try:
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError):
        raise ClientError("The file is no valid base64.", code="invalid_value", param="input") from None


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _copy_of(part: InputFile | InputImage) -> InputCopy | None:
    if isinstance(part.file_id, str):
        return InputCopy(part.file_id, part.file_id, "", None)
    content = part.file_data if isinstance(part, InputFile) else part.image_url
    # Nothing is fetched for a container: only what came with the request is copied.
    if not isinstance(content, str) or content.startswith(("http:", "https:")):
        return None
    # RFC 2397: the type ends at the first parameter, or where the content begins.
    subtype = content.partition(",")[0].partition(";")[0].partition("/")[2] if content.startswith("data:") else ""
    filename = part.filename if isinstance(part, InputFile) else None
    name = plain_name(filename if isinstance(filename, str) else f"input.{subtype or 'bin'}")
    return InputCopy(f"inline-{hashlib.sha256(content.encode()).hexdigest()}-{name}", None, name, content)


def _opening_events(code: str) -> list[dict[str, Any]]:
    call, text = "response.code_interpreter_call", "response.code_interpreter_call_code"
    return [
        {"type": f"{call}.in_progress"},
        {"type": f"{text}.delta", "delta": code},
        {"type": f"{text}.done", "code": code},
        {"type": f"{call}.interpreting"},
    ]


def _outputs(outcome: CallOutcome) -> list[dict[str, str]]:
    run = outcome.run
    logs = run.logs if run.problem is None else f"{run.logs}{run.problem}\n"
    outputs = [{"type": "logs", "logs": logs}] if logs else []
    return outputs + [{"type": "image", "url": f"data:image/png;base64,{base64.b64encode(png).decode()}"} for png in run.images]


def _describe(outcome: CallOutcome) -> str:
    """The result of a call as text for the model."""
    run = outcome.run
    text = (_LOST_VARIABLES if outcome.lost_variables else "") + run.logs
    if run.problem is not None:
        text += f"{run.problem} {'Variables are still there.' if run.is_alive else 'Variables are gone, files are still there.'}\n"
    if run.images:
        text += f"[{len(run.images)} {'picture was' if len(run.images) == 1 else 'pictures were'} shown.]\n"
    for file in outcome.files:
        text += f"[File: {file.path}]\n"
    return text or "[No output.]"


def _cite(container: Container, file: ContainerFile) -> list[Citation]:
    annotation = {"type": "container_file_citation", "container_id": container.id, "file_id": file.id, "filename": file.filename}
    paths = dict.fromkeys((file.path, quote(file.path)))  # models write a space in a link as it is, or as `%20`
    return [Citation(marker=f"sandbox:{path}", annotation=annotation, replacement=None, kind="range") for path in paths]
