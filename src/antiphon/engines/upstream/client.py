"""
An upstream server: its address and credentials, how long to wait for it, and how to send it a request, with retries and
circuit breaker.

Nothing here knows what requests and answers mean. Addresses and headers come from the configuration and never from a
request.
"""

import asyncio
import math
import random
import re
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec
from msgspec import Struct

from antiphon import __version__
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.model_options import convert_options, option_problems
from antiphon.engines.upstream.circuit_breaker import CircuitBreaker, CircuitState
from antiphon.engines.upstream.concurrency import ConcurrencyLimit
from antiphon.engines.upstream.connection_pool import HttpConnectionPool, UpstreamAddress
from antiphon.engines.upstream.failure_log import FailureLog
from antiphon.engines.upstream.fast_path import ReadAccount
from antiphon.engines.upstream.faults import overloaded_error
from antiphon.engines.upstream.http_connection import HttpConnection
from antiphon.engines.upstream.http_exchange import (
    DEFAULT_MAX_RESPONSE_BYTES,
    DEFAULT_MAX_RESPONSE_EVENTS,
    ExchangeListener,
    HttpExchange,
    ResponseLimits,
    UpstreamFailure,
)
from antiphon.errors import ApiError, ClientError, ServerError, UpstreamError, did_you_mean
from antiphon.masking import is_secret, mask_address

BACKOFF_S = (0.1, 0.4, 1.0)
"""
Pauses before each retry. Up to half as much is added at random, so that many clients don't retry at the same moment.
"""

MAX_RETRY_WAIT_S = 2.0
"""If an upstream's `Retry-After` is longer, the client gets the error at once."""

MAX_REST_S = 60.0
"""An upstream that fails again after its rest rests for twice as long, up to this."""

MIN_SECRET_CHARS = 6
"""Shorter values are not redacted: they would occur in ordinary text."""

_RESERVED_HEADERS = frozenset(
    {"host", "authorization", "content-type", "content-length", "transfer-encoding", "connection", "accept-encoding", "accept"}
)


def rest_jitter() -> float:
    """A factor for a rest, so that many processes don't try an upstream again at the same moment."""
    return random.uniform(0.75, 1.25)


class UpstreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    An upstream's settings in the configuration.

    Attributes:
        base_url: including the version, such as `http://127.0.0.1:8000/v1`.
        api_key_env: the environment variable that holds its key.
        headers: sent with every request.
        ca_file: certificates to trust, in PEM, besides the system's.
        concurrency: the maximum of requests at once.
        queue: how many more may wait.
        retries: how often a request is sent again that got no answer.
        failures: so many in a row open the circuit breaker.
        rest_s: how long it stays open.
        max_response_bytes: a response that comes to more ends as incomplete.
        max_response_events: the same for the events of its stream.
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
    max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES
    max_response_events: int = DEFAULT_MAX_RESPONSE_EVENTS

    def __post_init__(self) -> None:
        """
        Check the values.

        Raises:
            ValueError: some are out of range, or headers can't be sent.
        """
        if problems := [*self._problems()]:
            raise ValueError(". ".join(problems))

    def _problems(self) -> Iterator[str]:
        for name in ("timeout_connect_s", "timeout_first_byte_s", "timeout_idle_s", "timeout_queue_s", "rest_s"):
            if not 0 < getattr(self, name) < math.inf:
                yield f"`{name}` must be more than 0, and a number"
        if self.concurrency < 1 or self.failures < 1 or self.queue < 0 or not 0 <= self.retries <= len(BACKOFF_S):
            yield f"`concurrency` and `failures` must be at least 1, `queue` at least 0, `retries` from 0 to {len(BACKOFF_S)}"
        if self.max_response_bytes < 1 or self.max_response_events < 1:
            yield "`max_response_bytes` and `max_response_events` must be at least 1"
        for name, value in self.headers.items():
            if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not re.fullmatch(r"[\x20-\x7e]*", value):
                yield f"`headers` has '{name}': the name is not valid, or the value is not one line of ASCII"
            if name.lower() in _RESERVED_HEADERS:
                yield f"`headers` has '{name}', which this server sets itself"


Options = TypeVar("Options", bound=Struct)
T = TypeVar("T")


def parse_options(kind: type[Options], model: str, options: Mapping[str, object]) -> Options:
    """
    The options of a model's table.

    Raises:
        ServerError: some are unknown, missing or wrong; it names each.
    """
    return convert_options(
        {name: value for name, value in options.items() if name != "api_key"},
        kind,
        f"The options of model '{model}' are wrong: ",
        [*_key_problems(options), *_address_problems(options.get("base_url")), *_ability_problems(options.get("abilities"))],
    )


def _key_problems(options: Mapping[str, object]) -> Iterator[str]:
    if "api_key" in options:
        yield "Put the key in an environment variable, and that variable's name in `api_key_env`."


def _address_problems(base_url: object) -> Iterator[str]:
    if isinstance(base_url, str):
        try:
            # Only the engine `realtime` has a WebSocket's address; others refuse it when they use it.
            _parse_base_url(re.sub("^ws", "http", base_url))
        except ValueError as error:
            yield f"{error}."


def _ability_problems(overrides: object) -> Iterator[str]:
    if not isinstance(overrides, Mapping):
        return
    # Hosted tools are set by the engine's own option `tools`, where it has one.
    names = set(Capabilities.__struct_fields__) - {"hosted"}
    for name in sorted(overrides.keys() - names):
        yield f"There is no ability '{name}'.{did_you_mean(name, names)}"
    abilities = {name: value for name, value in overrides.items() if name in names}
    yield from (f"In `abilities`, {problem}" for problem in option_problems(abilities, Capabilities))


def parse_capabilities(defaults: Capabilities, overrides: Mapping[str, object], model: str) -> Capabilities:
    """
    What an upstream can do: the defaults of its kind with the overrides from its `abilities`.

    Raises:
        ServerError: an override is no capability, or has a wrong value.
    """
    if problems := [*_ability_problems(overrides)]:
        raise ServerError(f"The options of model '{model}' are wrong: {' '.join(problems)}")
    return msgspec.convert(msgspec.to_builtins(defaults) | dict(overrides), Capabilities, strict=False)


class UpstreamClient:
    """
    The upstream of one model.

    Attributes:
        host: its name or address.
        tls: None for plain HTTP.
        response_limits: how much one response may come to.
        headers: credentials, user agent, and those from the configuration; names in lower case.

    Raises:
        ServerError: its address, its certificates or its key can't be used.
    """

    def __init__(self, model: str, options: UpstreamOptions, build_context: BuildContext) -> None:
        self._options = options
        self.response_limits = ResponseLimits(options.max_response_bytes, options.max_response_events)
        self._model = model
        self._build_context = build_context
        self._failure_log = FailureLog(model, build_context.upstream_name)
        try:
            url = _parse_base_url(options.base_url)
        except ValueError as error:
            raise ServerError(f"Model '{model}': {error}.") from None
        self.host = str(url.hostname)
        self._target = url.path.rstrip("/"), f"?{url.query}" if url.query else ""
        self.tls = _tls_context(build_context.base_folder, options.ca_file, model) if url.scheme == "https" else None
        self._netloc = url.netloc
        self._pool = HttpConnectionPool(
            UpstreamAddress(self.host, url.port or (443 if self.tls else 80), self.tls), options.timeout_connect_s
        )
        build_context.observer.on_upstream_state(model, CircuitState.CLOSED.value)
        self._max_retries = 0 if build_context.has_alternatives else options.retries
        self._breaker = CircuitBreaker(
            sys.maxsize if build_context.has_alternatives else options.failures,
            options.rest_s,
            self._on_breaker_state,
            max_cooldown_s=max(MAX_REST_S, options.rest_s),
            jitter=rest_jitter,
        )
        key = _api_key(options, build_context, model)
        self.headers = _headers(options, key)
        self._encoded_headers = _encode_headers(url, self.headers)
        query_secrets = [value for name, value in parse_qsl(url.query) if is_secret(name)]
        secrets = (key, *options.headers.values(), *query_secrets)
        self._secrets = tuple(value for value in secrets if value and len(value) >= MIN_SECRET_CHARS)
        self.concurrency_limit = ConcurrencyLimit(options.concurrency, options.queue, options.timeout_queue_s)

    def websocket_url(self, path: str, query: str) -> str:
        """The address of a WebSocket at `path` below `base_url`; `query` goes before the query of `base_url`."""
        base_path, base_query = self._target
        return f"{'wss' if self.tls else 'ws'}://{self._netloc}{base_path}{path}?{query}{base_query.replace('?', '&', 1)}"

    def encode_request(self, method: str, path: str, body: bytes = b"", *, at_root: bool = False) -> bytes:
        """
        The bytes of an HTTP/1.1 request for `path` below `base_url`; with `at_root`, beside its version: servers have
        what is no part of OpenAI's API there.
        """
        base_path, query = self._target
        if at_root:
            base_path = re.sub(r"/v\d+$", "", base_path)
        return b"%b %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (
            method.encode(),
            f"{base_path}{path}{query}".encode(),
            self._encoded_headers,
            len(body),
            body,
        )

    def start(self, request: bytes, listener: ExchangeListener, on_exchange: Callable[[HttpExchange], None]) -> bool:
        """
        Send a request in this call, and pass the answer to `listener`, if a connection is idle and the circuit breaker is
        closed. Returns whether it was sent; if so, `finish` its exchange, or where that fails give it to `stream`.

        Args:
            on_exchange: is given the exchange as it begins, to pause it.
        """
        if self._breaker.state is not CircuitState.CLOSED or (connection := self._pool.lease_idle()) is None:
            return False
        self._start_exchange(connection, request, listener, on_exchange, self._options.timeout_first_byte_s, self.response_limits)
        return True

    def finish(self, exchange: HttpExchange, *, is_abandoned: bool) -> None:
        """End an exchange that has not failed; `is_abandoned` where nobody waited for its outcome."""
        exchange.abort()
        if is_abandoned:
            self._breaker.record_abandonment()
        else:
            self._breaker.record_success()

    async def stream(
        self,
        request: bytes,
        listener: ExchangeListener,
        on_exchange: Callable[[HttpExchange], None],
        on_retry: Callable[[], None] = lambda: None,
        started_exchange: HttpExchange | None = None,
    ) -> None:
        """
        Send a request, and pass the answer to `listener`; returns when it ended.

        Args:
            on_exchange: is given each exchange as it begins, to pause it.
            on_retry: called after each refusal that is not the last, before the pause.
            started_exchange: the first, where `start` has begun it.

        Raises:
            ApiError: the answer failed, or there was none.
        """
        await self._retry(
            lambda: self._send_request(request, listener, on_exchange),
            on_retry,
            None if started_exchange is None else lambda: self._send_request(request, listener, on_exchange, started_exchange),
        )

    async def connect(self, dial: Callable[[], Awaitable[T | UpstreamFailure]]) -> T:
        """
        The connection that `dial` opens, such as a WebSocket; retried and counted as requests are.

        Raises:
            ApiError: it can't be opened.
        """
        return await self._retry(dial)

    async def fetch(self, path: str, timeout_s: float, body: bytes | None = None, *, at_root: bool = False) -> bytes | UpstreamFailure:
        """
        The body at `path`. Tried once, and a failure doesn't count for the circuit breaker.

        Nothing is sent while the circuit breaker is open.

        Args:
            body: JSON to send by POST.
            at_root: as in `encode_request`.
        """
        if self._breaker.state is not CircuitState.CLOSED:
            return UpstreamFailure(_circuit_open_error(self._options.rest_s), "circuit_open")
        listener = _BodyListener()
        request = self.encode_request("GET" if body is None else "POST", path, body or b"", at_root=at_root)
        failure = await self._exchange_once(request, listener, lambda _exchange: None, timeout_s, ResponseLimits(), is_new=False)
        return failure or listener.body

    def redact(self, error: ApiError) -> ApiError:
        """The error, with this server's credentials removed from its texts, in case the upstream repeated them."""
        for secret in self._secrets:
            error.message = error.message.replace(secret, "…")
            error.operator_message = error.operator_message.replace(secret, "…")
            error.type = error.type.replace(secret, "…")
            error.code = error.code and error.code.replace(secret, "…")
            error.param = error.param and error.param.replace(secret, "…")
        return error

    def report_failure(self, error: ApiError, reason: str) -> ApiError:
        """Count and log that a request failed; `reason` is one word. Returns the error as its client may see it."""
        error.cause = reason
        self.redact(error)
        # What is wrong with a request may quote it, and its client is told.
        self.count_failure(reason, "" if isinstance(error, ClientError) else error.operator_message)
        return error

    def count_failure(self, reason: str, message: str = "") -> None:
        """
        Count a failure in the metrics and log it, without effect on the circuit breaker.

        Args:
            reason: one word.
            message: what the upstream said, without secrets.
        """
        self._build_context.observer.on_upstream_error(self._model, reason)
        self._failure_log.add(reason, message)

    def count_mend(self, kind: str) -> None:
        """Count an answer that was mended; `kind` is one word."""
        self._build_context.observer.on_upstream_mend(self._model, kind)

    def close(self) -> None:
        """Close every connection; idempotent."""
        self._pool.close()

    async def _retry(
        self,
        attempt: Callable[[], Awaitable[T | UpstreamFailure]],
        on_retry: Callable[[], None] = lambda: None,
        started_attempt: Callable[[], Awaitable[T | UpstreamFailure]] | None = None,
    ) -> T:
        backoff_s = iter(BACKOFF_S[: self._max_retries])
        outcome: T | UpstreamFailure | None = None
        try:
            outcome = await (self._try_guarded(attempt) if started_attempt is None else self._record(started_attempt))
            while isinstance(outcome, UpstreamFailure):
                await self._back_off(outcome, next(backoff_s, None), on_retry)
                outcome = await self._try_guarded(attempt)
            return outcome
        finally:
            outcome = None  # its error has a traceback that leads here, and on to the request

    async def _back_off(self, failure: UpstreamFailure, pause_s: float | None, on_retry: Callable[[], None]) -> None:
        self.report_failure(failure.error, failure.reason)
        if pause_s is None or not failure.may_retry or failure.retry_after_s > MAX_RETRY_WAIT_S:
            try:
                raise failure.error
            finally:
                del failure  # as above
        on_retry()
        await asyncio.sleep(max(pause_s * random.uniform(1.0, 1.5), failure.retry_after_s))

    async def _try_guarded(self, attempt: Callable[[], Awaitable[T | UpstreamFailure]]) -> T | UpstreamFailure:
        wait_s = self._breaker.retry_after_s()
        if wait_s is not None:
            return UpstreamFailure(_circuit_open_error(wait_s), "circuit_open")
        return await self._record(attempt)

    async def _record(self, attempt: Callable[[], Awaitable[T | UpstreamFailure]]) -> T | UpstreamFailure:
        """The outcome of an attempt, of which the circuit breaker is told."""
        try:
            outcome = await attempt()
        except BaseException:
            self._breaker.record_abandonment()
            raise
        if isinstance(outcome, UpstreamFailure) and outcome.counts_against_upstream:
            self._breaker.record_failure()
        else:
            self._breaker.record_success()
        return outcome

    async def _send_request(
        self,
        request: bytes,
        listener: ExchangeListener,
        on_exchange: Callable[[HttpExchange], None],
        started_exchange: HttpExchange | None = None,
    ) -> UpstreamFailure | None:
        first_byte_s, limits = self._options.timeout_first_byte_s, self.response_limits
        if started_exchange is not None:
            failure = await _outcome(started_exchange)
        else:
            failure = await self._exchange_once(request, listener, on_exchange, first_byte_s, limits, is_new=False)
        # RFC 9112 9.3.1: a server may close an idle connection at any time, just as it is used; that is no failure yet.
        if failure is not None and failure.is_stale:
            failure = await self._exchange_once(request, listener, on_exchange, first_byte_s, limits, is_new=True)
        return failure

    async def _exchange_once(
        self,
        request: bytes,
        listener: ExchangeListener,
        on_exchange: Callable[[HttpExchange], None],
        first_byte_s: float,
        limits: ResponseLimits,
        *,
        is_new: bool,
    ) -> UpstreamFailure | None:
        try:
            connection = await self._pool.lease(is_new=is_new)
        except UpstreamError as error:
            return UpstreamFailure(error, "unreachable", may_retry=error.status != 504, counts_against_upstream=True)
        return await _outcome(self._start_exchange(connection, request, listener, on_exchange, first_byte_s, limits))

    def _start_exchange(
        self,
        connection: HttpConnection,
        request: bytes,
        listener: ExchangeListener,
        on_exchange: Callable[[HttpExchange], None],
        first_byte_s: float,
        limits: ResponseLimits,
    ) -> HttpExchange:
        idle_s = self._options.timeout_idle_s
        exchange = HttpExchange(connection.loop, listener, first_byte_s, idle_s, limits, self._breaker.record_success)
        on_exchange(exchange)
        exchange.start(connection, request)
        return exchange

    def _on_breaker_state(self, state: CircuitState) -> None:
        self._build_context.observer.on_upstream_state(self._model, state.value)
        if state is CircuitState.OPEN:
            self._build_context.notice(
                f"Model '{self._model}': its server failed {self._options.failures} times in a row, "
                f"and gets no requests for {self._options.rest_s:g} s."
            )
        if state is CircuitState.CLOSED:
            self._build_context.notice(f"Model '{self._model}': its server answers again.")


async def _outcome(exchange: HttpExchange) -> UpstreamFailure | None:
    try:
        return await exchange.outcome
    finally:
        exchange.abort()  # closes nothing unless this was cancelled


class _BodyListener:
    body = b""

    def on_events(self, events: list[bytes]) -> bool:
        self.body = events[0]
        return True

    def on_stream_end(self) -> bool:
        return False

    def on_limit(self) -> bool:
        return False

    def open_fast_path(self, read: bytes, pieces: list[bytes], account: ReadAccount) -> None:
        """It is not a stream of text."""


def _parse_base_url(base_url: str) -> SplitResult:
    wrong = ValueError(f"`base_url` must be like 'http://127.0.0.1:8000/v1', without a name or password, but is '{mask_address(base_url)}'")
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
        build_context.notice(
            f"Model '{model}': {options.api_key_env} is not set in the environment, so its server gets requests without a key."
        )
        return None
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ServerError(f"Model '{model}': the key in {options.api_key_env} must be ASCII without spaces.")
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
    return overloaded_error(
        "The model server failed several times in a row, and gets no requests for a while. Please try again later.", wait_s
    )
