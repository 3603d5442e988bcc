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

from antiphon.engine_api import commands, history as turns
from antiphon.engine_api.engine import Fetch
from antiphon.errors import ClientMistake

MOST_BYTES = 20 << 20
"""Of one picture or document."""

TOGETHER_BYTES = 64 << 20
"""Of all that one request has fetched."""

MOST_FETCHES = 32
AT_ONCE = 4
PATIENCE_S = 30.0

SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
)
"""How the pictures begin that models are given. It tells more than the type that somebody says a picture has."""

Medium = turns.ImagePart | turns.FilePart

_DATA_URL = re.compile(r"data:(?P<type>[a-z]+/[a-z0-9.+-]+)?(?:;[a-z0-9_-]+=[^;,]*)*;base64,", re.IGNORECASE)


async def settled(ask: commands.Respond, fetch: Fetch, *, urls_pass: bool, takes_files: bool = True) -> commands.Respond:
    """
    The same request, with nothing left in it that the upstream is not to fetch.

    Args:
        urls_pass: whether the upstream fetches pictures itself; documents it never does.
        takes_files: whether it takes documents at all; they are not fetched for one that does not.

    Raises:
        ClientMistake: something can't or may not be fetched, or is not what it should be.
    """
    media = [part for part in _parts(ask) if isinstance(part, turns.ImagePart | turns.FilePart)]
    for part in media:
        _check(part)
    brought = (turns.ImagePart,) * (not urls_pass) + (turns.FilePart,) * takes_files
    wanted = {part.url: part for part in media if part.url is not None and isinstance(part, brought) and _is_remote(part)}
    if not wanted:
        return ask
    if len(wanted) > MOST_FETCHES:
        raise ClientMistake(f"The input names {len(wanted)} URLs; at most {MOST_FETCHES} are fetched.", code="invalid_url", param="input")
    inlined = await _fetched(wanted, fetch)
    return structs.replace(ask, history=tuple(_with(turn, inlined) for turn in ask.history))


def _is_remote(part: Medium) -> bool:
    is_here = isinstance(part, turns.FilePart) and part.inline is not None
    return not is_here and part.url is not None and part.url.lower().startswith(("http://", "https://"))


async def _fetched(wanted: dict[str, Medium], fetch: Fetch) -> dict[str, str]:
    """Data URLs by the URLs that they stand for."""
    inlined: dict[str, str] = {}
    doors = asyncio.Semaphore(AT_ONCE)

    async def bring(url: str, part: Medium) -> None:
        async with doors:
            if sum(map(len, inlined.values())) * 3 // 4 > TOGETHER_BYTES:
                raise _too_large("The input's pictures and documents together take", TOGETHER_BYTES)
            inlined[url] = await (_picture(url, fetch) if isinstance(part, turns.ImagePart) else _document(url, fetch))

    try:
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            for url, part in wanted.items():
                tasks.create_task(bring(url, part))
    except TimeoutError:
        raise ClientMistake(
            f"Failed to download what the input names: it took longer than {PATIENCE_S:g} seconds.", code="invalid_url", param="input"
        ) from None
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return inlined


async def _picture(url: str, fetch: Fetch) -> str:
    body, _ = await fetch(url, "image_url", ("image/",))
    return _data_url(_kind(body), body)


async def _document(url: str, fetch: Fetch) -> str:
    body, content_type = await fetch(url, "file_url", ("application/", "text/"))
    return _data_url(content_type, body)


def _parts(ask: commands.Respond) -> Iterator[turns.Part]:
    for turn in ask.history:
        if isinstance(turn, turns.Message | turns.ToolResult):
            yield from turn.parts


def _with(turn: turns.Turn, inlined: dict[str, str]) -> turns.Turn:
    if not isinstance(turn, turns.Message | turns.ToolResult):
        return turn
    return structs.replace(turn, parts=tuple(_in_request(part, inlined) for part in turn.parts))


def _in_request(part: turns.Part, inlined: dict[str, str]) -> turns.Part:
    match part:
        case turns.ImagePart(url=str(url)) if url in inlined:
            return structs.replace(part, url=inlined[url])
        case turns.FilePart(url=str(url)) if url in inlined:
            return structs.replace(part, url=None, inline=inlined[url], filename=part.filename or _file_name(url))
    return part


def _file_name(url: str) -> str:
    return unquote(PurePosixPath(urlsplit(url).path).name) or "file"


def _data_url(content_type: str, body: bytes) -> str:
    return f"data:{content_type};base64,{base64.b64encode(body).decode()}"


# What is in the request already


def _check(part: Medium) -> None:
    """
    Refuse what is no picture or no base64.

    Raises:
        ClientMistake: so it is.
    """
    if isinstance(part, turns.ImagePart) and part.url is not None and part.url[:5].lower() == "data:":
        _kind(_decoded(part.url, "image_url", "invalid_base64_image"))
    if isinstance(part, turns.FilePart) and part.inline is not None and part.inline[:5].lower() == "data:":
        _decoded(part.inline, "file_data", "invalid_value")


def _decoded(url: str, param: str, code: str) -> bytes:
    header = _DATA_URL.match(url)
    if header is None:
        raise ClientMistake(f"Invalid '{param}': a data URL must say its type and be base64.", code=code, param="input")
    if (len(url) - header.end()) * 3 // 4 > MOST_BYTES + 2:
        raise _too_large(f"'{param}' takes", MOST_BYTES)
    try:
        return binascii.a2b_base64(url[header.end() :], strict_mode=True)
    except ValueError:  # also where it is not ASCII
        raise ClientMistake(f"Invalid '{param}': what follows 'base64,' is not valid base64.", code=code, param="input") from None


def _kind(body: bytes) -> str:
    kind = next((kind for signature, kind in SIGNATURES if signature.match(body)), None)
    if kind is None:
        raise ClientMistake(
            "You gave an unsupported image. Please make sure your image is of one of the following formats: 'png', 'jpeg', 'webp', 'gif'.",
            code="invalid_image_format",
            param="input",
        )
    return kind


def _too_large(what: str, most_bytes: int) -> ClientMistake:
    return ClientMistake(f"{what} more than the {most_bytes} bytes allowed.", code="image_file_too_large", param="input")
