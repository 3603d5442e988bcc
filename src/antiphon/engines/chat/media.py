"""
The pictures and documents of a conversation, as they may be sent on: checked, and where the upstream is not to fetch them, in the request.

An upstream stands in its operator's network, and would fetch from there whatever a client names. So what is named by address is
fetched here, by the rules of `Place.fetch`, and sent as a data URL.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from msgspec import structs

from antiphon.engine_api import commands, history
from antiphon.engine_api.engine import Fetch
from antiphon.errors import ClientError

MAX_BYTES = 20 << 20
"""Of one picture or document."""

MAX_TOTAL_BYTES = 64 << 20
"""Of all that one request has fetched."""

MAX_FETCHES = 32
MAX_CONCURRENT_FETCHES = 4
FETCH_TIMEOUT_S = 30.0

IMAGE_SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
)
"""How the pictures begin that models are given. It tells more than the type that somebody says a picture has."""

MediaPart = history.ImagePart | history.FilePart

_DATA_URL = re.compile(r"data:(?P<type>[a-z]+/[a-z0-9.+-]+)?(?:;[a-z0-9_-]+=[^;,]*)*;base64,", re.IGNORECASE)


async def inline_media(request: commands.Respond, fetch: Fetch, *, pass_image_urls: bool, supports_files: bool = True) -> commands.Respond:
    """
    The same request, with nothing left in it that the upstream is not to fetch.

    Args:
        urls_pass: whether the upstream fetches pictures itself; documents it never does.
        takes_files: whether it takes documents at all; they are not fetched for one that does not.

    Raises:
        ClientError: something can't or may not be fetched, or is not what it should be.
    """
    media = [part for part in _parts(request) if isinstance(part, history.ImagePart | history.FilePart)]
    for part in media:
        _check_data_url(part)
    brought = (history.ImagePart,) * (not pass_image_urls) + (history.FilePart,) * supports_files
    wanted = {part.url: part for part in media if part.url is not None and isinstance(part, brought) and _is_remote(part)}
    if not wanted:
        return request
    if len(wanted) > MAX_FETCHES:
        raise ClientError(f"The input names {len(wanted)} URLs; at most {MAX_FETCHES} are fetched.", code="invalid_url", param="input")
    inlined = await _fetch_all(wanted, fetch)
    return structs.replace(request, history=tuple(_with_inline_media(turn, inlined) for turn in request.history))


def _is_remote(part: MediaPart) -> bool:
    is_here = isinstance(part, history.FilePart) and part.inline is not None
    return not is_here and part.url is not None and part.url.lower().startswith(("http://", "https://"))


async def _fetch_all(parts_by_url: dict[str, MediaPart], fetch: Fetch) -> dict[str, str]:
    """Data URLs by the URLs that they stand for."""
    inlined: dict[str, str] = {}
    doors = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)

    async def bring(url: str, part: MediaPart) -> None:
        async with doors:
            if sum(map(len, inlined.values())) * 3 // 4 > MAX_TOTAL_BYTES:
                raise _too_large("The input's pictures and documents together take", MAX_TOTAL_BYTES)
            inlined[url] = await (_fetch_image(url, fetch) if isinstance(part, history.ImagePart) else _fetch_file(url, fetch))

    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S), asyncio.TaskGroup() as tasks:
            for url, part in parts_by_url.items():
                tasks.create_task(bring(url, part))
    except TimeoutError:
        raise ClientError(
            f"Failed to download what the input names: it took longer than {FETCH_TIMEOUT_S:g} seconds.", code="invalid_url", param="input"
        ) from None
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return inlined


async def _fetch_image(url: str, fetch: Fetch) -> str:
    body, _ = await fetch(url, "image_url", ("image/",))
    return _data_url(_image_type(body), body)


async def _fetch_file(url: str, fetch: Fetch) -> str:
    body, content_type = await fetch(url, "file_url", ("application/", "text/"))
    return _data_url(content_type, body)


def _parts(request: commands.Respond) -> Iterator[history.HistoryPart]:
    for turn in request.history:
        if isinstance(turn, history.Message | history.ToolResult):
            yield from turn.parts


def _with_inline_media(item: history.HistoryItem, data_urls: dict[str, str]) -> history.HistoryItem:
    if not isinstance(item, history.Message | history.ToolResult):
        return item
    return structs.replace(item, parts=tuple(_inline_part(part, data_urls) for part in item.parts))


def _inline_part(part: history.HistoryPart, data_urls: dict[str, str]) -> history.HistoryPart:
    match part:
        case history.ImagePart(url=str(url)) if url in data_urls:
            return structs.replace(part, url=data_urls[url])
        case history.FilePart(url=str(url)) if url in data_urls:
            return structs.replace(part, url=None, inline=data_urls[url], filename=part.filename or _file_name(url))
    return part


def _file_name(url: str) -> str:
    return unquote(PurePosixPath(urlsplit(url).path).name) or "file"


def _data_url(content_type: str, body: bytes) -> str:
    return f"data:{content_type};base64,{base64.b64encode(body).decode()}"


# What is in the request already


def _check_data_url(part: MediaPart) -> None:
    """
    Refuse what is no picture or no base64.

    Raises:
        ClientError: so it is.
    """
    if isinstance(part, history.ImagePart) and part.url is not None and part.url[:5].lower() == "data:":
        _image_type(_decode_data_url(part.url, "image_url", "invalid_base64_image"))
    if isinstance(part, history.FilePart) and part.inline is not None and part.inline[:5].lower() == "data:":
        _decode_data_url(part.inline, "file_data", "invalid_value")


def _decode_data_url(url: str, param: str, code: str) -> bytes:
    header = _DATA_URL.match(url)
    if header is None:
        raise ClientError(f"Invalid '{param}': a data URL must say its type and be base64.", code=code, param="input")
    if (len(url) - header.end()) * 3 // 4 > MAX_BYTES + 2:
        raise _too_large(f"'{param}' takes", MAX_BYTES)
    try:
        return binascii.a2b_base64(url[header.end() :], strict_mode=True)
    except ValueError:  # also where it is not ASCII
        raise ClientError(f"Invalid '{param}': what follows 'base64,' is not valid base64.", code=code, param="input") from None


def _image_type(body: bytes) -> str:
    kind = next((kind for signature, kind in IMAGE_SIGNATURES if signature.match(body)), None)
    if kind is None:
        raise ClientError(
            "You gave an unsupported image. Please make sure your image is of one of the following formats: 'png', 'jpeg', 'webp', 'gif'.",
            code="invalid_image_format",
            param="input",
        )
    return kind


def _too_large(what: str, max_bytes: int) -> ClientError:
    return ClientError(f"{what} more than the {max_bytes} bytes allowed.", code="image_file_too_large", param="input")
