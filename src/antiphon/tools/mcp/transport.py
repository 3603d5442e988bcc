"""HTTP for the library `mcp`: dials addresses that were judged, counts bytes, and remembers what happened."""

import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from http import HTTPStatus

import httpcore2
import httpx2

from antiphon.tools.mcp.dialing import AddressGuard

_EVENT_STREAM = "text/event-stream"

_STREAM_FACTOR = 8
"""How many answers may come on one event stream that was opened by GET, which carries those of the whole session."""


MAX_PARTS = 10_000
"""
Of one exchange, counted by their `"type"`: parts of a result, and types in schemas. The library builds an object for each
part, in one step that nothing else can run beside: 40,000 in 1 MiB took 0.2 s, 10,000 take 50 ms.
"""

MAX_LIST_PARTS = 50_000
"""`MAX_PARTS` of a list of tools, whose schemas cost less."""


MAX_ANSWERS = 500
"""
Of a session, to what the server asks: pings, and sampling or elicitation, which are refused. Each takes a request of its
own, some 2 ms of the event loop, and 1 MiB has 10,000 questions.
"""


_PART_MARK = re.compile(rb'"type"|\\u00(?:74|79|70|65)')
"""
`"type"`, or one of its letters as an escape, by which it could be written otherwise: no encoder escapes letters of ASCII.
"""

_MARK_BYTES = 6
"""The length of each of them."""


class PartCounter:
    """Counts the parts of an answer, however it comes in pieces."""

    def __init__(self) -> None:
        self._end = b""

    def count(self, chunk: bytes) -> int:
        """How many parts the next piece completes."""
        text = self._end + chunk
        # Too short to have a mark in it, so none counts twice.
        self._end = text[-(_MARK_BYTES - 1) :]
        return sum(1 for _ in _PART_MARK.finditer(text))


class Exchange:
    """
    What happened to the HTTP requests of one call, or of one list.

    The library tells an HTTP error without its status, and a lost connection in many ways (measured with `mcp` 2.3).

    Attributes:
        status: the last status.
        problem: why there is no answer, as the end of a sentence for the client; None while nothing is known.
        received_bytes: of all answers.
        parts: in all answers, at most `max_parts`.
        is_session_lost: whether the server does not know the session, and so has run nothing: status 404 to a request
            that names one. A new session is to be begun then. Source: MCP 2025-11-25, transports, "Session Management".
    """

    __slots__ = ("is_session_lost", "max_parts", "parts", "problem", "received_bytes", "status")

    def __init__(self, max_parts: int = MAX_PARTS) -> None:
        self.max_parts = max_parts
        self.status: int | None = None
        self.problem: str | None = None
        self.received_bytes = 0
        self.parts = 0
        self.is_session_lost = False


current_exchange: ContextVar[Exchange | None] = ContextVar("current_exchange", default=None)
"""The exchange that requests belong to; the library sends a request in the context of who asked for it."""


class ConnectionRefusal(httpcore2.ConnectError):
    """An address may not be dialled; the message says why, as the end of a sentence."""


class BodyFailure(httpx2.StreamError):
    """An answer's body is too large or was cut off. The library takes such an error as that of one request alone."""


class _GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Dials the addresses that the guard allows: a name that resolves otherwise a moment later gains nothing."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            addresses = await self._guard(host, port)
        except OSError as error:
            raise ConnectionRefusal(str(error)) from None
        failure: httpcore2.ConnectError | httpcore2.ConnectTimeout = httpcore2.ConnectError("the server could not be reached")
        for address in addresses:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            # The next address may answer, such as the IPv4 one on a machine without IPv6.
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise ConnectionRefusal("its address is not public")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class Pools:
    """
    The connections of this process. Those to addresses that clients name are never used for the operator's servers, nor
    the other way round: a connection that is open is not judged again.
    """

    def __init__(self, guard: AddressGuard) -> None:
        context = ssl.create_default_context()
        self._public = httpcore2.AsyncConnectionPool(
            ssl_context=context, max_connections=None, keepalive_expiry=15, network_backend=_GuardedBackend(guard)
        )
        self._own = httpcore2.AsyncConnectionPool(ssl_context=context, max_connections=None, keepalive_expiry=15)

    def pool(self, is_own: bool) -> httpcore2.AsyncConnectionPool:
        """The connections to the operator's servers, or to all others."""
        return self._own if is_own else self._public

    async def close(self) -> None:
        """Close the connections."""
        await self._public.aclose()
        await self._own.aclose()


class SessionTransport(httpx2.AsyncBaseTransport):
    """
    The requests of one session.

    Args:
        answer_bytes: the most of one exchange's answers.
        on_failure: called when a request of an open session fails in a way that the library would not notice.

    Attributes:
        exchange: of requests that belong to no call.
        is_open: whether the session is open: before, a failure ends the attempt to open it.
        statuses: of the requests that opened the session, in order.
    """

    def __init__(self, pool: httpcore2.AsyncConnectionPool, answer_bytes: int, on_failure: Callable[[], None]) -> None:
        self.exchange = Exchange()
        self.is_open = False
        self.statuses: list[int] = []
        self._pool = pool
        self._answer_bytes = answer_bytes
        self._on_failure = on_failure
        self._answers = 0

    @property
    def asks_too_much(self) -> bool:
        """Whether the server sent more requests than it may."""
        return self._answers > MAX_ANSWERS

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = current_exchange.get() or self.exchange
        # Nothing is unpacked: it would be more than was counted.
        request.headers["accept-encoding"] = "identity"
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        # JSON-RPC 2.0: a message without a `method` is a response, here to what the server has asked.
        if request.method == "POST" and b'"method"' not in request.content:
            self._answers += 1
            if self.asks_too_much:
                return self._fail(exchange, _asked_too_much())
        try:
            reply = await self._pool.handle_async_request(
                httpcore2.Request(
                    method=request.method,
                    url=httpcore2.URL(
                        scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
                    ),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        except httpcore2.TimeoutException:
            return self._fail(exchange, "the server did not answer in time")
        except ConnectionRefusal as error:
            return self._fail(exchange, str(error))
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.UnsupportedProtocol, OSError):
            return self._fail(exchange, "the server could not be reached")
        exchange.status = reply.status
        exchange.is_session_lost = reply.status == HTTPStatus.NOT_FOUND and "mcp-session-id" in request.headers
        if not self.is_open:
            self.statuses.append(reply.status)
        headers = httpx2.Headers(reply.headers)
        # MCP 2025-11-25, transports, "Listening for Messages from the Server": a GET opens a stream of its own.
        is_own_stream = request.method == "GET" and headers.get("content-type", "").startswith(_EVENT_STREAM)
        assert not isinstance(reply.stream, bytes)
        body = _Body(reply.stream, self._answer_bytes, exchange, self, is_own_stream=is_own_stream, headers=headers)
        if self.is_open and reply.status >= 300:
            self._on_failure()
        return httpx2.Response(status_code=reply.status, headers=reply.headers, stream=body, extensions=reply.extensions)

    def _fail(self, exchange: Exchange, problem: str) -> httpx2.Response:
        # The first problem is the cause; what follows, such as a broken connection, comes of it.
        exchange.problem = exchange.problem or problem
        if not self.is_open:
            raise httpx2.ConnectError(problem)
        self._on_failure()
        # As an answer it fails one call; as an exception it would end the session under all others.
        return httpx2.Response(status_code=HTTPStatus.BAD_GATEWAY)


class _Body(httpx2.AsyncByteStream):
    """An answer's body, counted as it is read; beyond a limit it fails."""

    def __init__(
        self,
        stream: object,
        answer_bytes: int,
        exchange: Exchange,
        session: SessionTransport,
        *,
        is_own_stream: bool,
        headers: httpx2.Headers,
    ) -> None:
        self._stream = stream
        self._session = session
        self._limit = answer_bytes
        self._exchange = exchange
        # A stream of the whole session is not counted with the one call in whose time it was opened.
        self._counter = Exchange() if is_own_stream else exchange
        self._max_bytes = answer_bytes * _STREAM_FACTOR if is_own_stream else answer_bytes
        self._max_parts = MAX_LIST_PARTS if is_own_stream else exchange.max_parts
        self._part_counter = PartCounter()
        self._is_packed = headers.get("content-encoding", "identity") != "identity"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_packed:
            raise self._failure("its answer is compressed, although that was not requested")
        assert hasattr(self._stream, "__aiter__")
        try:
            async for chunk in self._stream:
                self._counter.received_bytes += len(chunk)
                if self._counter.received_bytes > self._max_bytes:
                    raise self._failure(f"its answer is larger than {self._limit >> 10} KiB (tools.mcp_answer_kib)")
                self._counter.parts += self._part_counter.count(chunk)
                if self._session.asks_too_much:
                    raise self._failure(_asked_too_much())
                if self._counter.parts > self._max_parts:
                    raise self._failure(f"its answer has more than {self._max_parts} parts")
                yield chunk
        except httpcore2.TimeoutException:
            raise self._failure("the server stopped in the middle of its answer") from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError):
            raise self._failure("the server broke the connection in the middle of its answer") from None

    async def aclose(self) -> None:
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            # A connection that breaks while it is closed has nothing more to tell.
            with contextlib.suppress(httpcore2.NetworkError, httpcore2.ProtocolError, OSError):
                await close()

    def _failure(self, problem: str) -> BodyFailure:
        self._exchange.problem = self._exchange.problem or problem
        return BodyFailure(problem)


def _asked_too_much() -> str:
    return f"it sent more than {MAX_ANSWERS} requests of its own"
