"""A server with the Images API: a request for a picture, and its answer whole or as a stream."""

import asyncio
import binascii
import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import structlog
from msgspec import Struct

from antiphon.config.tools.images import ImagesEntry
from antiphon.engine_api.engine import Fetch
from antiphon.errors import ApiError, ClientError, shorten
from antiphon.offload import offload
from antiphon.speech.http import map_exceptions, new_session
from antiphon.tool_api import ImageTokens
from antiphon.tools.image_generation.formats import MEDIA_TYPES, image_format, image_size
from antiphon.wire.codec.sse import DONE, EventTooLarge, SseParser

CONNECT_TIMEOUT_S = 10.0
ERROR_BODY_BYTES = 64 << 10
ENVELOPE_BYTES = 256 << 10
"""How much an answer may have besides the picture."""

CLIENT_STATUSES = (400, 413, 415, 422)
"""Statuses with which a server says what is wrong with the request; its message is then passed on."""

NAME = "images server"


class ImageFailure(Exception):
    """
    There is no picture.

    Attributes:
        error: as in the item, with `code`, `message`, `param` and `type`; for the client and the model.
        detail: for the operator; empty where the client is at fault.
    """

    def __init__(
        self, message: str, *, code: str = "server_error", type: str = "server_error", detail: str = "", more: Mapping[str, object] = {}
    ) -> None:
        super().__init__(message)
        self.detail = detail
        self.error: dict[str, Any] = {"code": code, "message": message, "param": None, "type": type, **more}


class ImageRequest(Struct, frozen=True, kw_only=True):
    """
    A picture to be made, or with `pictures` changed.

    Attributes:
        fields: others of the Images API, such as `size`.
    """

    model: str
    prompt: str
    fields: Mapping[str, Any]
    partial_images: int = 0
    pictures: Sequence[bytes] = ()
    mask: bytes | None = None


class GeneratedImage(Struct, frozen=True, kw_only=True):
    """
    A picture, or an earlier stage of one; the rest is None where the server and the picture don't say it.

    Attributes:
        base64: the picture, without `data:`.
    """

    base64: str
    output_format: str | None = None
    size: str | None = None
    quality: str | None = None
    background: str | None = None
    revised_prompt: str | None = None
    svg_usage: dict[str, Any] | None = None
    tokens: ImageTokens = ImageTokens()


OnPartial = Callable[[int, GeneratedImage], None]
"""Takes the number of an earlier stage of a picture, and the stage."""


class _Tokens(Struct):
    image_tokens: int = 0
    text_tokens: int = 0


class _Usage(Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Tokens | None = None
    output_tokens_details: _Tokens | None = None


class _Picture(Struct):
    b64_json: str | None = None
    url: str | None = None
    revised_prompt: str | None = None


class _Answer(Struct):
    """An answer, or an event of a stream, which has the picture's fields itself."""

    type: str = ""
    data: list[_Picture] | None = None
    b64_json: str | None = None
    url: str | None = None
    revised_prompt: str | None = None
    partial_image_index: int = 0
    output_format: str | None = None
    size: str | None = None
    quality: str | None = None
    background: str | None = None
    usage: _Usage | None = None
    svg_usage: dict[str, Any] | None = None
    error: Any = None


_log = structlog.get_logger(__name__)
_answers = msgspec.json.Decoder(_Answer)


class ImagesEndpoint:
    """
    One server.

    Args:
        api_key: its key; None for none.
        fetch: fetches pictures that it names by URLs elsewhere.
    """

    def __init__(self, entry: ImagesEntry, api_key: str | None, fetch: Fetch) -> None:
        self._entry = entry
        self._api_key = api_key
        self._fetch = fetch
        self._slots = asyncio.Semaphore(entry.parallel)
        self._session: aiohttp.ClientSession | None = None
        self._max_base64 = (entry.max_mib << 20) * 4 // 3 + 4

    async def make(self, request: ImageRequest, on_partial: OnPartial) -> GeneratedImage:
        """
        Have a picture made.

        Raises:
            ImageFailure: the server refused or failed, took too long, or is busy.
        """
        try:
            async with asyncio.timeout(self._entry.timeout_s), self._slots, map_exceptions(NAME, self._entry.base_url):
                return await self._request(request, on_partial)
        except TimeoutError:
            limit = f"{self._entry.timeout_s:g} seconds (tools.images.timeout_s)"
            raise ImageFailure(f"The picture took longer than {limit}.", code="timeout") from None
        except ClientError as error:  # The server named a URL that can't be fetched.
            raise ImageFailure(f"The {NAME} answered with a picture that can't be downloaded.") from error
        except ImageFailure as failure:
            if failure.detail:
                _log.warning("A server of images failed.", model=self._entry.model, reason=failure.detail)
            raise
        except ApiError as error:
            _log.warning("A server of images failed.", model=self._entry.model, reason=error.operator_message)
            if error.code == "upstream_unreachable":  # Its message has the address in it.
                raise ImageFailure(f"The {NAME} can't be reached.", code=error.code) from None
            raise ImageFailure(error.message, code=error.code or "server_error", type=error.type) from None

    async def close(self) -> None:
        """Close its connections; idempotent."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = new_session(self._api_key, self._entry.headers, CONNECT_TIMEOUT_S)
        return self._session

    async def _request(self, request: ImageRequest, on_partial: OnPartial) -> GeneratedImage:
        fields: dict[str, Any] = {"model": request.model, "prompt": request.prompt, "n": 1, **request.fields}
        # GPT Image models refuse it and always answer in base64; other servers need it (docs/decisions/0054).
        if "response_format" in self._entry.fields:
            fields["response_format"] = "b64_json"
        if request.partial_images:
            fields |= {"stream": True, "partial_images": request.partial_images}
        session, base_url = self._open_session(), self._entry.base_url
        if request.pictures:
            posting = session.post(f"{base_url}/images/edits", data=_form(fields, request), allow_redirects=False)
        else:
            posting = session.post(f"{base_url}/images/generations", json=fields, allow_redirects=False)
        async with posting as response:
            if response.status != 200:
                raise _failure_of_status(response.status, await _read(response, ERROR_BODY_BYTES, cut=True))
            if response.content_type == "text/event-stream":
                return await self._read_stream(response, request, on_partial)
            body = await _read(response, self._max_base64 + ENVELOPE_BYTES)
            if body is None:
                raise self._too_large()
            return await self._picture(await _decode(body))

    async def _read_stream(self, response: aiohttp.ClientResponse, request: ImageRequest, on_partial: OnPartial) -> GeneratedImage:
        parser = SseParser(self._max_base64 + ENVELOPE_BYTES)
        partials = 0
        async for event in _events(response, parser, self._too_large):
            answer = await _decode(event)
            if answer.type.endswith(".partial_image"):
                partials += 1
                # A client that asked for two must not get more, whatever the server sends.
                if partials <= request.partial_images and answer.b64_json:
                    on_partial(answer.partial_image_index, await self._picture(answer))
            elif answer.type.endswith(".completed"):
                return await self._picture(answer)
            elif answer.error is not None or answer.type == "error":
                raise _failure_of_error(answer.error if isinstance(answer.error, dict) else msgspec.json.decode(event), 500)
        raise ImageFailure(f"The {NAME} ended its answer before the picture was complete.")

    async def _picture(self, answer: _Answer) -> GeneratedImage:
        if answer.error is not None:
            raise _failure_of_error(answer.error, 500)
        picture = answer.data[0] if answer.data else _Picture(answer.b64_json, answer.url, answer.revised_prompt)
        text = picture.b64_json
        if text is None and picture.url is not None:
            text = await self._download(picture.url)
        if not text:
            raise ImageFailure(f"The {NAME} answered without a picture.")
        text = text.partition(",")[2] if text[:5] == "data:" else text
        if len(text) > self._max_base64:
            raise self._too_large()
        format, size = await offload(len(text), _look_at, text)
        return GeneratedImage(
            base64=text,
            output_format=format or answer.output_format,
            size=size or _definite(answer.size),
            quality=_definite(answer.quality),
            background=_definite(answer.background),
            revised_prompt=picture.revised_prompt or answer.revised_prompt,
            svg_usage=answer.svg_usage,
            tokens=_count(answer.usage),
        )

    async def _download(self, url: str) -> str:
        """Download a picture that the server named by a URL; returns base64."""
        if url.startswith("data:"):
            return url
        # Only the operator's own server may be at any address and gets the key; all else goes through the guard of URLs.
        if urlsplit(url)[:2] != urlsplit(self._entry.base_url)[:2]:
            content, _ = await self._fetch(url, "url", ("image/", "application/octet-stream"))
            return binascii.b2a_base64(content, newline=False).decode()
        async with self._open_session().get(url, allow_redirects=False) as response:
            body = await _read(response, self._entry.max_mib << 20)
            if response.status != 200:
                raise ImageFailure(f"The {NAME} answered with a picture that can't be downloaded.")
            if body is None:
                raise self._too_large()
        return await offload(len(body), lambda: binascii.b2a_base64(body, newline=False).decode())

    def _too_large(self) -> ImageFailure:
        return ImageFailure(f"The picture is larger than {self._entry.max_mib} MiB (tools.images.max_mib).")


def _form(fields: Mapping[str, Any], request: ImageRequest) -> aiohttp.FormData:
    form = aiohttp.FormData()
    for name, value in fields.items():
        for key, text in _form_fields(name, value):
            form.add_field(key, text)
    # OpenAI's SDKs write arrays in forms as `image[]`.
    name = "image" if len(request.pictures) == 1 else "image[]"
    for index, picture in enumerate(request.pictures):
        format = image_format(picture) or "png"
        form.add_field(name, io.BytesIO(picture), filename=f"image_{index}.{format}", content_type=MEDIA_TYPES[format])
    if request.mask is not None:
        form.add_field("mask", io.BytesIO(request.mask), filename="mask.png", content_type="image/png")
    return form


def _form_fields(name: str, value: Any) -> Sequence[tuple[str, str]]:
    """The fields of a form for a value; an object's members stand for themselves: `svg[model]`."""
    if isinstance(value, dict):
        return [field for key, each in value.items() for field in _form_fields(f"{name}[{key}]", each)]
    return [(name, value if isinstance(value, str) else msgspec.json.encode(value).decode())]


async def _read(response: aiohttp.ClientResponse, limit_bytes: int, *, cut: bool = False) -> bytes | None:
    """The body; None if it is larger than the limit, or its beginning with `cut`."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit_bytes:
            return bytes(body[:limit_bytes]) if cut else None
    return bytes(body)


async def _events(response: aiohttp.ClientResponse, parser: SseParser, too_large: Callable[[], ImageFailure]) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            for event in parser.feed(chunk):
                if event != DONE:
                    yield event
        for event in parser.end():
            yield event
    except EventTooLarge:
        raise too_large() from None


async def _decode(body: bytes) -> _Answer:
    try:
        return await offload(len(body), _answers.decode, body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ImageFailure(f"The {NAME} answered with something that is not of the Images API.") from None


def _look_at(text: str) -> tuple[str | None, str | None]:
    """A picture's format and size, from all of its base64, which must be valid."""
    try:
        picture = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise ImageFailure(f"The {NAME} answered with a picture that is no base64.") from None
    return image_format(picture), image_size(picture)


def _definite(value: str | None) -> str | None:
    return None if value == "auto" else value


def _count(usage: _Usage | None) -> ImageTokens:
    if usage is None:
        return ImageTokens()
    inputs, outputs = usage.input_tokens_details, usage.output_tokens_details
    return ImageTokens(
        input_image=inputs.image_tokens if inputs else 0,
        input_text=inputs.text_tokens if inputs else usage.input_tokens,
        output_image=outputs.image_tokens if outputs else usage.output_tokens,
        output_text=outputs.text_tokens if outputs else 0,
    )


def _failure_of_status(status: int, body: bytes | None) -> ImageFailure:
    try:
        error = msgspec.json.decode(body or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        error = None
    return _failure_of_error(error, status)


def _failure_of_error(error: object, status: int) -> ImageFailure:
    """The failure that an error object describes. Only mistakes in the request are passed on in the server's own words."""
    if isinstance(error, dict) and isinstance(error.get("error"), dict | str):
        error = error["error"]
    fields = error if isinstance(error, dict) else {"message": error}
    code, kind, message, param = (
        value if isinstance(value := fields.get(name), str) else None for name in ("code", "type", "message", "param")
    )
    is_refusal = "user_error" in (kind or "") or code in ("moderation_blocked", "content_policy_violation")
    # What a server says about itself names keys, hosts and files: it goes to the log (docs/decisions/0054).
    if message is None or not (status in CLIENT_STATUSES or is_refusal):
        return _failure_of_server(status, f"{status}: {shorten(message or 'no message', 1000)}")
    details = fields.get("moderation_details")
    more = {"moderation_details": details} if _is_moderation(details) else {}
    return ImageFailure(
        shorten(message, 1000), code=code or "invalid_value", type=kind or "invalid_request_error", more={"param": param, **more}
    )


def _failure_of_server(status: int, detail: str) -> ImageFailure:
    if status in (401, 403):
        message = f"The {NAME} refused this server's credentials. Its operator has to fix this; you can't."
        return ImageFailure(message, code="upstream_credentials", detail=detail)
    if status in (429, 503):
        message = f"The {NAME} takes no more requests at the moment."
        return ImageFailure(message, code="rate_limit_exceeded", type="rate_limit_error", detail=detail)
    return ImageFailure(f"The {NAME} failed." if status == 500 else f"The {NAME} failed ({status}).", detail=detail)


def _is_moderation(details: object) -> bool:
    return (
        isinstance(details, dict)
        and details.get("moderation_stage") in ("input", "output", "unknown")
        and isinstance(details.get("categories"), list)
        and all(isinstance(each, str) for each in details["categories"])
    )
