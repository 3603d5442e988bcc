"""
The tool `image_generation`: the model says what to draw, and a server with the Images API draws it.

Source: `ImageGeneration` and `ImageGenerationCall` in openai-python; the order of events is that of recorded streams.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.config.tools.images import ImagesEntry
from antiphon.engine_api.engine import Fetch, refuse_to_fetch
from antiphon.engine_api.events import HostedToolDone, HostedToolProgress, HostedToolStarted
from antiphon.engine_api.history import TextPart
from antiphon.engine_api.options import FunctionTool
from antiphon.errors import ClientError, ServerError
from antiphon.tool_api import ServerToolCall, ToolOutput
from antiphon.tools.base import Report, ToolContext
from antiphon.tools.image_generation.endpoint import GeneratedImage, ImageFailure, ImageRequest, ImagesEndpoint
from antiphon.tools.image_generation.formats import image_format
from antiphon.tools.image_generation.options import ImageOptions, read_options
from antiphon.tools.image_generation.pictures import PictureSources, ReadFile, load_pictures, pictures_of
from antiphon.wire.responses import tools as wire_tools
from antiphon.wire.responses.parts import InputImage

TYPE = "image_generation"
EVENTS = "response.image_generation_call"
MAX_PROMPT_CHARS = 32_000
"""The longest prompt. Source: `prompt` in the Images API."""


class _Arguments(Struct, forbid_unknown_fields=True):
    """The arguments that the model writes."""

    prompt: Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)]
    action: Literal["generate", "edit"] | None = None


_arguments = msgspec.json.Decoder(_Arguments)


async def refuse_to_read(_tenant: str, _file_id: str, param: str) -> bytes:
    """A `ReadFile` for servers without files: it refuses every file."""
    raise ClientError(f"Invalid '{param}': files are not read here.", code="invalid_value", param=param)


class ImageGeneration:
    """
    The kind of tool.

    Args:
        entries: the servers, at least one; requests without a model go to the first.
        secrets: values of the environment variables with their keys.
        read_file: reads uploaded files.
        fetch: fetches pictures that requests, or the servers, name by URL.

    Raises:
        ServerError: a key can't be sent.
    """

    def __init__(
        self,
        entries: Sequence[ImagesEntry],
        secrets: Mapping[str, str],
        read_file: ReadFile = refuse_to_read,
        fetch: Fetch = refuse_to_fetch,
    ) -> None:
        self._endpoints = [(entry, ImagesEndpoint(entry, _key(entry, secrets), fetch)) for entry in entries]
        self._read_file = read_file
        self._fetch = fetch

    @property
    def types(self) -> frozenset[str]:
        return frozenset({TYPE})

    def open(self, tools: Sequence[tuple[str, wire_tools.Tool]], context: ToolContext) -> "OpenImageGeneration":
        (path, tool), *others = tools
        if others:
            raise ClientError(f"There may be one tool '{TYPE}'; got another one.", code="invalid_value", param=others[0][0])
        assert isinstance(tool, wire_tools.ImageGenerationTool)
        options = read_options(tool, path, [entry for entry, _ in self._endpoints])
        endpoint = next(endpoint for entry, endpoint in self._endpoints if entry is options.entry)
        return OpenImageGeneration(options, endpoint, PictureSources(context.tenant, self._read_file, self._fetch), context)

    async def close(self) -> None:
        for _, endpoint in self._endpoints:
            await endpoint.close()


def _key(entry: ImagesEntry, secrets: Mapping[str, str]) -> str | None:
    key = secrets.get(entry.key_env or "", "").strip()
    # Anything else could not be sent in a header.
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise ServerError(f"[[tools.images]] '{entry.model}': the key in {entry.key_env} must be ASCII without spaces.")
    return key or None


class OpenImageGeneration:
    """The tool of one response; it remembers the pictures that it made, which further calls may change."""

    def __init__(self, options: ImageOptions, endpoint: ImagesEndpoint, sources: PictureSources, context: ToolContext) -> None:
        self._options = options
        self._endpoint = endpoint
        self._sources = sources
        self._context = context
        self._mask: bytes | None = None
        self._results: list[str] = []
        self._numbers = itertools.count(1)

    @property
    def functions(self) -> Sequence[FunctionTool]:
        return (_function(self._options),)

    @property
    def must_prepare(self) -> bool:
        return self._options.mask is not None

    async def prepare(self, report: Report) -> None:
        mask = self._options.mask
        if mask is not None and self._mask is None:
            path = f"{self._options.path}.input_image_mask"
            self._mask = await self._sources.load_named(mask.file_id, mask.image_url, path)
            # Images API, `mask`: a PNG whose transparent areas say where the picture may change.
            if image_format(self._mask) != "png":
                raise ClientError(f"Invalid '{path}': expected a PNG image.", code="invalid_value", param=path)

    async def run(self, call: ServerToolCall, report: Report) -> ToolOutput:
        try:
            arguments = _arguments.decode(call.arguments)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return _text_output(f"The arguments are wrong: {error}.")
        pictures = pictures_of(self._context.items, self._results) if self._options.action != "generate" else []
        if self._options.action != "auto":
            is_edit = self._options.action == "edit"
        else:
            is_edit = self._options.requires_pictures or arguments.action == "edit"
        if is_edit and not self._options.entry.edits:
            return _text_output("Pictures can't be changed here; a new one can be made.")
        if is_edit and not pictures:
            return _text_output("There is no picture in the conversation that could be changed.")
        id = f"ig_{call.call_id}_{next(self._numbers)}"
        item: dict[str, Any] = {"id": id, "type": f"{TYPE}_call", "status": "in_progress"}
        report(HostedToolStarted(id, item))
        for stage in ("in_progress", "generating"):
            # `output_index` stands for the place that the session sets.
            report(HostedToolProgress(id, {"type": f"{EVENTS}.{stage}", "item_id": id, "output_index": 0}))
        try:
            contents, failures = await self._load(pictures) if is_edit else ([], [])
            image = await self._make(id, arguments.prompt, contents, report)
        except ImageFailure as failure:
            report(HostedToolDone(id, _failed_item(item, failure.error)))
            return _text_output(f"There is no picture: {failure}")
        self._results.append(image.base64)
        final_item = {**item, **self._resolve(image, is_edit), "status": "completed", "result": image.base64}
        report(HostedToolProgress(id, {"type": f"{EVENTS}.completed", "item_id": id, "output_index": 0}))
        report(HostedToolDone(id, final_item))
        text = f"The picture is made ({final_item['size']}, {final_item['output_format']}), and the user sees it: don't link to it."
        if failures:
            text += f" {len(failures)} of the conversation's pictures could not be used: {failures[-1].message}"
        return ToolOutput((TextPart(text),), image_tokens=image.tokens)

    def fail(self, item: Mapping[str, Any], message: str) -> dict[str, Any]:
        return _failed_item(item, {"code": "server_error", "message": message, "param": None, "type": "server_error"})

    async def _load(self, pictures: Sequence[InputImage | str]) -> tuple[list[bytes], list[ClientError]]:
        """The pictures that can be changed, and why the others can't: one of those must not stop all further edits."""
        try:
            contents, failures = await load_pictures(self._sources, pictures)
            # A mask is of one picture, and would be laid over another one.
            if failures and (not contents or self._mask is not None):
                raise failures[0]
        except ClientError as error:
            raise ImageFailure(error.message, code=error.code or "invalid_value", type=error.type) from None
        return contents, failures

    async def _make(self, id: str, prompt: str, pictures: Sequence[bytes], report: Report) -> GeneratedImage:
        def on_partial(index: int, image: GeneratedImage) -> None:
            fields = self._resolve(image, bool(pictures))
            event = {"type": f"{EVENTS}.partial_image", "item_id": id, "output_index": 0}
            event |= {name: fields[name] for name in ("background", "output_format", "quality", "size")}
            report(HostedToolProgress(id, {**event, "partial_image_b64": image.base64, "partial_image_index": index}))

        request = ImageRequest(
            model=self._options.model,
            prompt=prompt,
            fields=_fields(self._options.fields, is_edit=bool(pictures)),
            partial_images=self._options.partial_images,
            pictures=pictures,
            mask=self._mask if pictures else None,
        )
        return await self._endpoint.make(request, on_partial)

    def _resolve(self, image: GeneratedImage, is_edit: bool) -> dict[str, Any]:
        """What the item says of the picture: what it really has, where that is known, and else what was asked for."""
        wish = self._options.fields
        background = image.background or wish.get("background", "auto")
        size = image.size or wish.get("size", "auto")
        fields: dict[str, Any] = {
            "action": "edit" if is_edit else "generate",
            "background": "opaque" if background == "auto" else background,
            "output_format": image.output_format or wish.get("output_format", "png"),
            "quality": image.quality or wish.get("quality", "auto"),
            "size": size,
            "revised_prompt": image.revised_prompt,
        }
        return fields if image.svg_usage is None else {**fields, "svg_usage": image.svg_usage}


def _function(options: ImageOptions) -> FunctionTool:
    """What the model gets: it chooses the action where the request leaves it open."""
    properties: dict[str, Any] = {
        "prompt": {
            "type": "string",
            "description": "What the picture shows, in full: subject, style, composition, colours, and any text in it.",
        }
    }
    if options.action == "auto" and options.entry.edits and options.mask is None:
        about = "`edit` changes the pictures of the conversation, or combines them; `generate` makes a new one, the default."
        properties["action"] = {"type": "string", "enum": ["generate", "edit"], "description": about}
    what = (
        "Changes the pictures of the conversation" if options.requires_pictures else "Makes a picture, or changes those of the conversation"
    )
    if options.action == "generate" or not options.entry.edits:
        what = "Makes a picture"
    schema = {"type": "object", "properties": properties, "required": ["prompt"], "additionalProperties": False}
    return FunctionTool(name=TYPE, description=f"{what}, which the user then sees.", parameters=schema)


def _fields(fields: Mapping[str, Any], *, is_edit: bool) -> dict[str, Any]:
    """The fields for this request: `input_fidelity` is left out where nothing is edited, as only edits take it."""
    return {name: value for name, value in fields.items() if is_edit or name != "input_fidelity"}


def _failed_item(item: Mapping[str, Any], error: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "status": "failed", "result": None, "error": dict(error)}


def _text_output(text: str) -> ToolOutput:
    return ToolOutput((TextPart(text),))
