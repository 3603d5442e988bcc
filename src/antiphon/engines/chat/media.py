"""
Images and documents of a request: checked, and put into the request as data URLs where the upstream must not fetch
them.

An upstream that fetched a client's URLs could be made to read its operator's own network (SSRF). So URLs are fetched
here, by the rules of `BuildContext.fetch`.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from msgspec import structs

from antiphon.engine_api import commands, history
from antiphon.engine_api.documents import IMAGE_SIGNATURES, MAX_DOCUMENT_BYTES, new_document, text_part
from antiphon.engine_api.engine import Fetch
from antiphon.errors import ClientError
from antiphon.offload import offload

MAX_TOTAL_BYTES = 64 << 20
"""The most that is fetched for one request."""

MAX_FETCHES = 32
MAX_CONCURRENT_FETCHES = 4
FETCH_TIMEOUT_S = 30.0

_UrlFetcher = Callable[[str, Fetch], Awaitable[str]]
"""Fetches what a URL names, and returns it as a data URL."""

MediaPart = history.ImagePart | history.FilePart

_DATA_URL = re.compile(r"data:(?P<type>[a-z]+/[a-z0-9.+-]+)?(?:;[a-z0-9_-]+=[^;,]*)*;base64,", re.IGNORECASE)


async def inline_media(request: commands.Respond, fetch: Fetch, *, pass_image_urls: bool, supports_files: bool = True) -> commands.Respond:
    """
    The request, with data URLs in place of those that the upstream must not fetch.

    Args:
        pass_image_urls: the upstream fetches images itself; documents it never does.
        supports_files: the upstream takes documents; else they are not fetched.

    Raises:
        ClientError: something can't or may not be fetched, or is no supported image or valid base64.
    """
    media = await offload(request.size_bytes, _checked_media, request)
    kinds = (history.ImagePart,) * (not pass_image_urls) + (history.FilePart,) * supports_files
    to_fetch = {part.url: part for part in media if part.url is not None and isinstance(part, kinds) and _is_remote(part)}
    if not to_fetch:
        return request
    data_urls = await _fetch_all(
        {url: _fetch_image if isinstance(part, history.ImagePart) else _fetch_file for url, part in to_fetch.items()}, fetch
    )
    return structs.replace(request, history=tuple(_with_inline_media(item, data_urls) for item in request.history))


def has_media(request: commands.Respond) -> bool:
    """Whether anything of a request is to be checked or fetched."""
    for item in request.history:
        if isinstance(item, history.Message | history.ToolResult):
            for part in item.parts:
                if type(part) is not history.TextPart and isinstance(part, MediaPart):
                    return True
    return False


async def inline_urls(urls: Mapping[str, str], fetch: Fetch) -> dict[str, str]:
    """
    Data URLs by the URLs that they replace.

    Args:
        urls: each with the name of the field that it came in, such as `image_url`.

    Raises:
        ClientError: one can't or may not be fetched, or is not what its field is for.
    """
    return await _fetch_all({url: _URL_FETCHERS.get(field, _fetch_image) for url, field in urls.items()}, fetch)


async def read_texts(request: commands.Respond, fetch: Fetch) -> commands.Respond:
    """
    The request with the texts of its documents in place of those that are text, for an upstream that takes none.

    Raises:
        ClientError: as `inline_media`.
    """
    if not await offload(request.size_bytes, lambda: any(isinstance(part, history.FilePart) for part in _parts(request))):
        return request
    request = await inline_media(request, fetch, pass_image_urls=True)
    return await offload(request.size_bytes, lambda: structs.replace(request, history=tuple(map(_with_texts, request.history))))


def _with_texts(item: history.HistoryItem) -> history.HistoryItem:
    if not isinstance(item, history.Message | history.ToolResult):
        return item
    texts = [text_part(part) if isinstance(part, history.FilePart) else None for part in item.parts]
    return structs.replace(item, parts=tuple(text or part for text, part in zip(texts, item.parts, strict=True)))


def _checked_media(request: commands.Respond) -> list[MediaPart]:
    media = [part for part in _parts(request) if isinstance(part, history.ImagePart | history.FilePart)]
    for part in media:
        _check_data_url(part)
    return media


def _is_remote(part: MediaPart) -> bool:
    has_content = isinstance(part, history.FilePart) and part.inline is not None
    return not has_content and part.url is not None and part.url.lower().startswith(("http://", "https://"))


async def _fetch_all(fetchers: Mapping[str, _UrlFetcher], fetch: Fetch) -> dict[str, str]:
    """Data URLs by the URLs that they replace."""
    if not fetchers:
        return {}
    if len(fetchers) > MAX_FETCHES:
        raise ClientError(f"The input names {len(fetchers)} URLs; at most {MAX_FETCHES} are fetched.", code="invalid_url", param="input")
    data_urls: dict[str, str] = {}
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)

    async def fetch_part(url: str, fetch_url: _UrlFetcher) -> None:
        async with semaphore:
            if sum(map(len, data_urls.values())) * 3 // 4 > MAX_TOTAL_BYTES:
                raise _too_large("The input's images and documents together are", MAX_TOTAL_BYTES)
            data_urls[url] = await fetch_url(url, fetch)

    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S), asyncio.TaskGroup() as tasks:
            for url, fetch_url in fetchers.items():
                tasks.create_task(fetch_part(url, fetch_url))
    except TimeoutError:
        raise ClientError(
            f"Failed to download the input's URLs: it took longer than {FETCH_TIMEOUT_S:g} seconds.", code="invalid_url", param="input"
        ) from None
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return data_urls


async def _fetch_image(url: str, fetch: Fetch) -> str:
    body, _ = await fetch(url, "image_url", ("image/",))
    return _data_url(_image_type(body), body)


async def _fetch_file(url: str, fetch: Fetch) -> str:
    body, content_type = await fetch(url, "file_url", ("application/", "text/"))
    document = await offload(len(body), new_document, body, _file_name(url), content_type.partition(";")[0].strip().lower())
    return document.url


async def _fetch_sound(url: str, fetch: Fetch) -> str:
    body, content_type = await fetch(url, "audio_url", ("audio/",))
    return await offload(len(body), _data_url, content_type.partition(";")[0].strip().lower(), body)


async def _fetch_video(url: str, fetch: Fetch) -> str:
    body, content_type = await fetch(url, "video_url", ("video/",))
    return await offload(len(body), _data_url, content_type.partition(";")[0].strip().lower(), body)


_URL_FETCHERS: dict[str, _UrlFetcher] = {"audio_url": _fetch_sound, "video_url": _fetch_video, "file_url": _fetch_file}
"""By the name of the field; any other is an image's."""


def _parts(request: commands.Respond) -> Iterator[history.HistoryPart]:
    for item in request.history:
        if isinstance(item, history.Message | history.ToolResult):
            yield from item.parts


def _with_inline_media(item: history.HistoryItem, data_urls: dict[str, str]) -> history.HistoryItem:
    if not isinstance(item, history.Message | history.ToolResult):
        return item
    return structs.replace(item, parts=tuple(_inline_part(part, data_urls) for part in item.parts))


def _inline_part(part: history.HistoryPart, data_urls: dict[str, str]) -> history.HistoryPart:
    match part:
        case history.ImagePart(url=str(url)) if url in data_urls:
            return structs.replace(part, url=data_urls[url])
        case history.FilePart(url=str(url)) if url in data_urls and data_urls[url].startswith("data:image/"):
            return history.ImagePart(data_urls[url])
        case history.FilePart(url=str(url)) if url in data_urls:
            return structs.replace(part, url=None, inline=data_urls[url], filename=part.filename or _file_name(url))
    return part


def _file_name(url: str) -> str:
    return unquote(PurePosixPath(urlsplit(url).path).name) or "file"


def _data_url(content_type: str, body: bytes) -> str:
    return f"data:{content_type};base64,{base64.b64encode(body).decode()}"


# Data URLs in the request


def _check_data_url(part: MediaPart) -> None:
    """
    Check a part that is a data URL.

    Raises:
        ClientError: it is no supported image, or not base64.
    """
    if isinstance(part, history.ImagePart) and part.url is not None and part.url[:5].lower() == "data:":
        _image_type(_decode_data_url(part.url, "image_url", "invalid_base64_image"))
    if isinstance(part, history.FilePart) and part.inline is not None and part.inline[:5].lower() == "data:":
        _decode_data_url(part.inline, "file_data", "invalid_value")


def _decode_data_url(url: str, param: str, code: str) -> bytes:
    header = _DATA_URL.match(url)
    if header is None:
        raise ClientError(f"Invalid '{param}': a data URL must say its type and be base64.", code=code, param="input")
    if (len(url) - header.end()) * 3 // 4 > MAX_DOCUMENT_BYTES + 2:
        raise _too_large(f"'{param}' is", MAX_DOCUMENT_BYTES)
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
    return ClientError(f"{what} larger than the {max_bytes} bytes allowed.", code="image_file_too_large", param="input")
