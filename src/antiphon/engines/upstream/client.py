"""
A server upstream: where it is, what it may cost to wait for it, and how a request gets there and its answer back.

Nothing here knows what is asked or answered. Addresses and headers come from the configuration and never from a request.
"""

import asyncio
import contextlib
import math
import random
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct

from antiphon import __version__
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext
from antiphon.engines.upstream.circuit_breaker import CircuitBreaker, CircuitState
from antiphon.engines.upstream.concurrency import ConcurrencyLimit
from antiphon.engines.upstream.connection_pool import HttpConnectionPool, UpstreamAddress
from antiphon.engines.upstream.http_exchange import ExchangeListener, HttpExchange, UpstreamFailure
from antiphon.errors import ApiError, ServerError, UpstreamError

BACKOFF_S = (0.1, 0.4, 1.0)
"""How long to wait before another try; each is made up to half as long again by chance, so that many clients don't return as one."""

MAX_RETRY_WAIT_S = 2.0
"""An upstream that wants longer is taken at its word: the client is told."""

MIN_SECRET_CHARS = 6
"""A value shorter than that is no secret, and may be part of any word."""


_RESERVED_HEADERS = frozenset(
    {"host", "authorization", "content-type", "content-length", "transfer-encoding", "connection", "accept-encoding", "accept"}
)


class UpstreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What the configuration says of an upstream.

    Attributes:
        base_url: up to and with the version, such as `http://127.0.0.1:8000/v1`.
        api_key_env: the environment variable that holds its key.
        headers: sent with every request.
        ca_file: certificates to trust, in PEM, besides the system's.
        concurrency: the most requests at once.
        queue: how many more may wait.
        retries: how often a request is tried again that came to nothing.
        failures: so many in a row, and the upstream is left alone for a while.
        rest_s: how long that is.
    """

    base_url: str
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    ca_file: str | None = None
    timeout_connect_s: float = 5.0
    timeout_first_byte_s: float = 300.0
    timeout_idle_s: float = 120.0
    timeout_queue_s: float = 60.0
    concurrency: int = 256
    queue: int = 1024
    retries: int = 2
    failures: int = 5
    rest_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what can't be meant."""
        for name in ("timeout_connect_s", "timeout_first_byte_s", "timeout_idle_s", "timeout_queue_s", "rest_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"`{name}` must be more than 0, and a number")
        if self.concurrency < 1 or self.failures < 1 or self.queue < 0 or not 0 <= self.retries <= len(BACKOFF_S):
            raise ValueError(f"`concurrency` and `failures` must be at least 1, `queue` at least 0, `retries` from 0 to {len(BACKOFF_S)}")
        for name, value in self.headers.items():
            if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not re.fullmatch(r"[\x20-\x7e]*", value):
                raise ValueError(f"`headers` has '{name}', which is no header, or its value is no line of ASCII")
            if name.lower() in _RESERVED_HEADERS:
                raise ValueError(f"`headers` has '{name}', which is not for the configuration to set")


Options = TypeVar("Options", bound=UpstreamOptions)
T = TypeVar("T")


def parse_options(kind: type[Options], model: str, options: Mapping[str, object]) -> Options:
    """
    The options of a model's table.

    Raises:
        ServerError: one is unknown, missing or wrong.
    """
    if "api_key" in options:
        raise ServerError(f"Model '{model}': put the key into an environment variable, and that variable's name into `api_key_env`.")
    try:
        return msgspec.convert(dict(options), kind, strict=False)
    except msgspec.ValidationError as error:
        raise ServerError(f"The options of model '{model}' are wrong: {error}.") from None


def parse_capabilities(defaults: Capabilities, overrides: Mapping[str, object], model: str) -> Capabilities:
    """
    What an upstream can do, some of it `otherwise` than is usual.

    Raises:
        ServerError: `otherwise` has what is no ability.
    """
    known = msgspec.to_builtins(defaults)
    # Which tools are handed on as they are is for the engine's own option to say, where it has one.
    if unknown := overrides.keys() - (known.keys() - {"hosted"}):
        raise ServerError(f"The options of model '{model}' are wrong: there is no ability '{min(unknown)}'.")
    try:
        return msgspec.convert(known | dict(overrides), Capabilities, strict=False)
    except msgspec.ValidationError as error:
        raise ServerError(f"The options of model '{model}' are wrong: {error} (in `abilities`).") from None


class UpstreamClient:
    """
    One upstream as one model uses it.

    Attributes:
        host: its name or address.
        tls: whom it may trust; None without TLS.
        headers: what tells it who asks, and whatever else the operator wants it told.
        slots: how many requests it is given at once.

    Raises:
        ServerError: its address, its certificates or its key can't be used.
    """

    def __init__(self, model: str, options: UpstreamOptions, build_context: BuildContext) -> None:
        self._options = options
        self._model = model
        self._build_context = build_context
        url = _parse_base_url(options.base_url, model)
        self.host = str(url.hostname)
        self._target = url.path.rstrip("/"), f"?{url.query}" if url.query else ""
        self.tls = _tls_context(build_context.base_folder, options.ca_file, model) if url.scheme == "https" else None
        self._netloc = url.netloc
        self._pool = HttpConnectionPool(
            UpstreamAddress(self.host, url.port or (443 if self.tls else 80), self.tls), options.timeout_connect_s
        )
        build_context.observer.on_upstream_state(model, CircuitState.CLOSED.value)
        self._breaker = CircuitBreaker(options.failures, options.rest_s, self._on_breaker_state)
        key = _api_key(options, build_context, model)
        self.headers = _headers(options, key)
        self._encoded_headers = _encode_headers(url, self.headers)
        self._secrets = tuple(value for value in (key, *options.headers.values()) if value and len(value) >= MIN_SECRET_CHARS)
        self.concurrency_limit = ConcurrencyLimit(options.concurrency, options.queue, options.timeout_queue_s)

    def websocket_url(self, path: str, query: str) -> str:
        """Where a WebSocket for `path` below the base address is opened; `query` goes before the base address's own."""
        before, own = self._target
        return f"{'wss' if self.tls else 'ws'}://{self._netloc}{before}{path}?{query}{own.replace('?', '&', 1)}"

    def encode_request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of a request for `path` below the base address."""
        before, query = self._target
        return b"%b %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (
            method.encode(),
            f"{before}{path}{query}".encode(),
            self._encoded_headers,
            len(body),
            body,
        )

    async def stream(self, request: bytes, listener: ExchangeListener, on_exchange: Callable[[HttpExchange], None]) -> None:
        """
        Send a request, and let `listener` hear the answer to its end.

        Args:
            watch: is given each exchange as it begins, to pause it.

        Raises:
            ApiError: the answer failed, or there was none.
        """
        backoff_s = iter(BACKOFF_S[: self._options.retries])
        while (failure := await self._try_guarded(lambda: self._send_request(request, listener, on_exchange))) is not None:
            await self._back_off(failure, next(backoff_s, None))

    async def connect(self, dial: Callable[[], Awaitable[T | UpstreamFailure]]) -> T:
        """
        What `dial` gives, which is a connection of another kind than `stream` has, tried and counted as requests are.

        Raises:
            ApiError: there can't be one.
        """
        backoff_s = iter(BACKOFF_S[: self._options.retries])
        while isinstance(outcome := await self._try_guarded(dial), UpstreamFailure):
            await self._back_off(outcome, next(backoff_s, None))
        return outcome

    async def fetch(self, path: str, timeout_s: float) -> bytes | UpstreamFailure:
        """
        The JSON at `path`, tried once and without weight: whatever comes of it is not held against the upstream.

        One that is being left alone is not asked.
        """
        if self._breaker.state is not CircuitState.CLOSED:
            return UpstreamFailure(_circuit_open_error(self._options.rest_s), "circuit_open")
        listener = _BodyListener()
        failure = await self._exchange_once(self.encode_request("GET", path), listener, lambda _exchange: None, timeout_s, is_new=False)
        return failure or listener.body

    def redact(self, error: ApiError) -> ApiError:
        """The fault without what this server authenticates itself with, should the upstream have repeated it."""
        for secret in self._secrets:
            error.message = error.message.replace(secret, "…")
        return error

    def count_failure(self, reason: str) -> None:
        """Count a failure that says nothing of the next request; `reason` in a word."""
        self._build_context.observer.on_upstream_error(self._model, reason)

    def close(self) -> None:
        """Give up every connection; idempotent."""
        self._pool.close()

    async def _back_off(self, failure: UpstreamFailure, pause_s: float | None) -> None:
        self.count_failure(failure.reason)
        if pause_s is None or not failure.may_retry or failure.retry_after_s > MAX_RETRY_WAIT_S:
            raise self.redact(failure.error)
        await asyncio.sleep(max(pause_s * random.uniform(1.0, 1.5), failure.retry_after_s))

    async def _try_guarded(self, attempt: Callable[[], Awaitable[T | UpstreamFailure]]) -> T | UpstreamFailure:
        wait_s = self._breaker.retry_after_s()
        if wait_s is not None:
            return UpstreamFailure(_circuit_open_error(wait_s), "circuit_open")
        with self._record_abandonment():
            outcome = await attempt()
            if isinstance(outcome, UpstreamFailure) and outcome.counts_against_upstream:
                self._breaker.record_failure()
            else:
                self._breaker.record_success()
        return outcome

    async def _send_request(
        self, request: bytes, listener: ExchangeListener, on_exchange: Callable[[HttpExchange], None]
    ) -> UpstreamFailure | None:
        failure = await self._exchange_once(request, listener, on_exchange, self._options.timeout_first_byte_s, is_new=False)
        if failure is not None and failure.is_stale:
            failure = await self._exchange_once(request, listener, on_exchange, self._options.timeout_first_byte_s, is_new=True)
        return failure

    @contextlib.contextmanager
    def _record_abandonment(self) -> Iterator[None]:
        """Whatever ends the request without an outcome leaves the breaker as wise as before."""
        try:
            yield
        except BaseException:
            self._breaker.record_abandonment()
            raise

    async def _exchange_once(
        self, request: bytes, listener: ExchangeListener, on_exchange: Callable[[HttpExchange], None], first_byte_s: float, *, is_new: bool
    ) -> UpstreamFailure | None:
        try:
            connection = await self._pool.lease(is_new=is_new)
        except UpstreamError as trouble:
            return UpstreamFailure(trouble, "unreachable", may_retry=trouble.status != 504, counts_against_upstream=True)
        exchange = HttpExchange(listener, first_byte_s, self._options.timeout_idle_s, self._breaker.record_success)
        on_exchange(exchange)
        exchange.start(connection, request)
        try:
            return await exchange.outcome
        finally:
            exchange.abort()  # nothing is left to abort, unless this was called off

    def _on_breaker_state(self, state: CircuitState) -> None:
        self._build_context.observer.on_upstream_state(self._model, state.value)
        if state is CircuitState.OPEN:
            self._build_context.notice(
                f"Model '{self._model}': its server failed {self._options.failures} times in a row, "
                f"and is left alone for {self._options.rest_s:g} s."
            )
        if state is CircuitState.CLOSED:
            self._build_context.notice(f"Model '{self._model}': its server answers again.")


class _BodyListener:
    """The listener of an answer that is one body."""

    body = b""

    def on_events(self, events: list[bytes]) -> bool:
        self.body = events[0]
        return True

    def on_stream_end(self) -> bool:
        return False


def _parse_base_url(base_url: str, model: str) -> SplitResult:
    wrong = ServerError(
        f"Model '{model}': `base_url` must be like 'http://127.0.0.1:8000/v1', without a name or password, but is '{base_url}'."
    )
    try:
        url = urlsplit(base_url)
        is_fine = url.scheme in ("http", "https") and url.hostname and url.port != 0 and url.username is None and not url.fragment
    except ValueError:
        raise wrong from None
    if not is_fine or not re.fullmatch(r"[\x21-\x7e]+", base_url):
        raise wrong
    return url


def _tls_context(base: Path, ca_file: str | None, model: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(base / ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ServerError(f"Model '{model}': `ca_file` {base / ca_file} can't be used: {error.strerror or error}.") from None
    return context


def _api_key(options: UpstreamOptions, build_context: BuildContext, model: str) -> str | None:
    if options.api_key_env is None:
        return None
    key = build_context.secrets.get(options.api_key_env, "").strip()
    if not key:
        build_context.notice(f"Model '{model}': {options.api_key_env} is not set in the environment, so its server is asked without a key.")
        return None
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ServerError(f"Model '{model}': the key in {options.api_key_env} is not one word of ASCII.")
    return key


def _headers(options: UpstreamOptions, key: str | None) -> dict[str, str]:
    own = {"user-agent": f"antiphon/{__version__}"}
    if key is not None:
        own["authorization"] = f"Bearer {key}"
    return own | {name.lower(): value for name, value in options.headers.items()}


def _encode_headers(url: SplitResult, headers: Mapping[str, str]) -> bytes:
    own = {
        "host": url.netloc,
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
    }
    return "".join(f"{name}: {value}\r\n" for name, value in (own | dict(headers)).items()).encode()


def _circuit_open_error(wait_s: float) -> ApiError:
    return UpstreamError(
        "The model server failed several times in a row, and is being left alone for a while. Please try again later.",
        status=503,
        code="server_is_overloaded",
        type="service_unavailable_error",
        retry_after_s=wait_s,
    )
