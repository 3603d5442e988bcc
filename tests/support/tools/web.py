"""A web of one process: a server that answers as scripts say, and pages that are fetched from a table."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from antiphon.errors import ClientError


class Request(NamedTuple):
    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes


Answer = bytes | Sequence[bytes] | None
"""What a server writes: bytes, pieces of them, or None to say nothing until the client leaves."""


def answer(status: int, body: object = b"", **headers: str) -> bytes:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(payload)}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return (head + "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode() + payload


class WebServer:
    """Answers each request with what `respond` makes of it, and remembers it."""

    def __init__(self, respond: Callable[[Request], Answer]) -> None:
        self.respond, self.requests = respond, list[Request]()
        self.tasks: set[asyncio.Task[object]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            try:
                yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            finally:
                if self.tasks:
                    await asyncio.wait(self.tasks)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, target, _ = head.split(" ", 2)
            headers = {key.lower(): value for line in head.splitlines()[1:] if line for key, value in [line.split(": ", 1)]}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            params = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
            self.requests.append(Request(method, urlsplit(target).path, params, headers, body))
            reply = self.respond(self.requests[-1])
            for piece in [reply] if isinstance(reply, bytes) else reply or ():
                writer.write(piece)
                await writer.drain()
            if reply is None:
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class WebPage(NamedTuple):
    url: str
    body: bytes
    content_type: str = "text/html"
    charset: str = ""


class Pages:
    """A fetcher of the pages in a table; a text in it is where a redirect leads."""

    def __init__(self, pages: Mapping[str, WebPage | bytes | str]) -> None:
        self.pages, self.urls = pages, list[str]()

    async def __call__(self, url: str, check_url: Callable[[str], str | None], max_bytes: int, timeout_s: float, /) -> WebPage:
        self.urls.append(url)
        page = self.pages.get(url)
        if isinstance(page, str):
            if (reason := check_url(page)) is not None:
                raise ClientError(f"Failed to download 'url': {reason}.", code="invalid_url", param="url")
            return await self(page, check_url, max_bytes, timeout_s)
        if page is None:
            raise ClientError("Failed to download 'url': the server answered with status 404.", code="invalid_url", param="url")
        return WebPage(url, page) if isinstance(page, bytes) else page
