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
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Place
from antiphon.engines.upstream.circuit_breaker import Breaker, State
from antiphon.engines.upstream.concurrency import Slots
from antiphon.engines.upstream.connection_pool import Address, Pool
from antiphon.engines.upstream.http_exchange import Exchange, Failure, Listener
from antiphon.errors import Fault, OurFault, UpstreamTrouble

BACKOFF_S = (0.1, 0.4, 1.0)
"""How long to wait before another try; each is made up to half as long again by chance, so that many clients don't return as one."""

LONGEST_RETRY_AFTER_S = 2.0
"""An upstream that wants longer is taken at its word: the client is told."""

SHORTEST_SECRET = 6
"""A value shorter than that is no secret, and may be part of any word."""


_OURS = frozenset(
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
            if name.lower() in _OURS:
                raise ValueError(f"`headers` has '{name}', which is not for the configuration to set")


Options = TypeVar("Options", bound=UpstreamOptions)
T = TypeVar("T")


def options_from(kind: type[Options], model: str, options: Mapping[str, object]) -> Options:
    """
    The options of a model's table.

    Raises:
        OurFault: one is unknown, missing or wrong.
    """
    if "api_key" in options:
        raise OurFault(f"Model '{model}': put the key into an environment variable, and that variable's name into `api_key_env`.")
    try:
        return msgspec.convert(dict(options), kind, strict=False)
    except msgspec.ValidationError as error:
        raise OurFault(f"The options of model '{model}' are wrong: {error}.") from None


def abilities_from(usual: Abilities, otherwise: Mapping[str, object], model: str) -> Abilities:
    """
    What an upstream can do, some of it `otherwise` than is usual.

    Raises:
        OurFault: `otherwise` has what is no ability.
    """
    known = msgspec.to_builtins(usual)
    # Which tools are handed on as they are is for the engine's own option to say, where it has one.
    if unknown := otherwise.keys() - (known.keys() - {"hosted"}):
        raise OurFault(f"The options of model '{model}' are wrong: there is no ability '{min(unknown)}'.")
    try:
        return msgspec.convert(known | dict(otherwise), Abilities, strict=False)
    except msgspec.ValidationError as error:
        raise OurFault(f"The options of model '{model}' are wrong: {error} (in `abilities`).") from None


class Upstream:
    """
    One upstream as one model uses it.

    Attributes:
        host: its name or address.
        tls: whom it may trust; None without TLS.
        headers: what tells it who asks, and whatever else the operator wants it told.
        slots: how many requests it is given at once.

    Raises:
        OurFault: its address, its certificates or its key can't be used.
    """

    def __init__(self, model: str, options: UpstreamOptions, place: Place) -> None:
        self._options = options
        self._model = model
        self._place = place
        url = _checked(options.base_url, model)
        self.host = str(url.hostname)
        self._target = url.path.rstrip("/"), f"?{url.query}" if url.query else ""
        self.tls = _trust(place.base, options.ca_file, model) if url.scheme == "https" else None
        self._netloc = url.netloc
        self._pool = Pool(Address(self.host, url.port or (443 if self.tls else 80), self.tls), options.timeout_connect_s)
        place.watcher.upstream_is(model, State.CLOSED.value)
        self._breaker = Breaker(options.failures, options.rest_s, self._note_state)
        key = _key(options, place, model)
        self.headers = _headers(options, key)
        self._head = _head(url, self.headers)
        self._secrets = tuple(value for value in (key, *options.headers.values()) if value and len(value) >= SHORTEST_SECRET)
        self.slots = Slots(options.concurrency, options.queue, options.timeout_queue_s)

    def socket_url(self, path: str, query: str) -> str:
        """Where a WebSocket for `path` below the base address is opened; `query` goes before the base address's own."""
        before, own = self._target
        return f"{'wss' if self.tls else 'ws'}://{self._netloc}{before}{path}?{query}{own.replace('?', '&', 1)}"

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of a request for `path` below the base address."""
        before, query = self._target
        return b"%b %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (
            method.encode(),
            f"{before}{path}{query}".encode(),
            self._head,
            len(body),
            body,
        )

    async def stream(self, request: bytes, listener: Listener, watch: Callable[[Exchange], None]) -> None:
        """
        Send a request, and let `listener` hear the answer to its end.

        Args:
            watch: is given each exchange as it begins, to pause it.

        Raises:
            Fault: the answer failed, or there was none.
        """
        backoff_s = iter(BACKOFF_S[: self._options.retries])
        while (failure := await self._tried(lambda: self._asked(request, listener, watch))) is not None:
            await self._back_off(failure, next(backoff_s, None))

    async def link(self, dial: Callable[[], Awaitable[T | Failure]]) -> T:
        """
        What `dial` gives, which is a connection of another kind than `stream` has, tried and counted as requests are.

        Raises:
            Fault: there can't be one.
        """
        backoff_s = iter(BACKOFF_S[: self._options.retries])
        while isinstance(outcome := await self._tried(dial), Failure):
            await self._back_off(outcome, next(backoff_s, None))
        return outcome

    async def fetch(self, path: str, patience_s: float) -> bytes | Failure:
        """
        The JSON at `path`, tried once and without weight: whatever comes of it is not held against the upstream.

        One that is being left alone is not asked.
        """
        if self._breaker.state is not State.CLOSED:
            return Failure(_resting(self._options.rest_s), "circuit_open")
        listener = _Whole()
        failure = await self._once(self.request("GET", path), listener, lambda _exchange: None, patience_s, is_new=False)
        return failure or listener.body

    def hushed(self, fault: Fault) -> Fault:
        """The fault without what this server authenticates itself with, should the upstream have repeated it."""
        for secret in self._secrets:
            fault.message = fault.message.replace(secret, "…")
        return fault

    def note(self, reason: str) -> None:
        """Count a failure that says nothing of the next request; `reason` in a word."""
        self._place.watcher.upstream_failed(self._model, reason)

    def close(self) -> None:
        """Give up every connection; idempotent."""
        self._pool.close()

    async def _back_off(self, failure: Failure, pause_s: float | None) -> None:
        self.note(failure.reason)
        if pause_s is None or not failure.may_retry or failure.after_s > LONGEST_RETRY_AFTER_S:
            raise self.hushed(failure.fault)
        await asyncio.sleep(max(pause_s * random.uniform(1.0, 1.5), failure.after_s))

    async def _tried(self, attempt: Callable[[], Awaitable[T | Failure]]) -> T | Failure:
        wait_s = self._breaker.refuses_for_s()
        if wait_s is not None:
            return Failure(_resting(wait_s), "circuit_open")
        with self._learning():
            outcome = await attempt()
            if isinstance(outcome, Failure) and outcome.counts:
                self._breaker.failed()
            else:
                self._breaker.succeeded()
        return outcome

    async def _asked(self, request: bytes, listener: Listener, watch: Callable[[Exchange], None]) -> Failure | None:
        failure = await self._once(request, listener, watch, self._options.timeout_first_byte_s, is_new=False)
        if failure is not None and failure.is_stale:
            failure = await self._once(request, listener, watch, self._options.timeout_first_byte_s, is_new=True)
        return failure

    @contextlib.contextmanager
    def _learning(self) -> Iterator[None]:
        """Whatever ends the request without an outcome leaves the breaker as wise as before."""
        try:
            yield
        except BaseException:
            self._breaker.learnt_nothing()
            raise

    async def _once(
        self, request: bytes, listener: Listener, watch: Callable[[Exchange], None], first_byte_s: float, *, is_new: bool
    ) -> Failure | None:
        try:
            connection = await self._pool.lease(is_new=is_new)
        except UpstreamTrouble as trouble:
            return Failure(trouble, "unreachable", may_retry=trouble.status != 504, counts=True)
        exchange = Exchange(listener, first_byte_s, self._options.timeout_idle_s, self._breaker.succeeded)
        watch(exchange)
        exchange.start(connection, request)
        try:
            return await exchange.outcome
        finally:
            exchange.abort()  # nothing is left to abort, unless this was called off

    def _note_state(self, state: State) -> None:
        self._place.watcher.upstream_is(self._model, state.value)
        if state is State.OPEN:
            self._place.notice(
                f"Model '{self._model}': its server failed {self._options.failures} times in a row, "
                f"and is left alone for {self._options.rest_s:g} s."
            )
        if state is State.CLOSED:
            self._place.notice(f"Model '{self._model}': its server answers again.")


class _Whole:
    """The listener of an answer that is one body."""

    body = b""

    def hear(self, events: list[bytes]) -> bool:
        self.body = events[0]
        return True

    def no_more(self) -> bool:
        return False


def _checked(base_url: str, model: str) -> SplitResult:
    wrong = OurFault(
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


def _trust(base: Path, ca_file: str | None, model: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(base / ca_file)
        except (OSError, ssl.SSLError) as error:
            raise OurFault(f"Model '{model}': `ca_file` {base / ca_file} can't be used: {error.strerror or error}.") from None
    return context


def _key(options: UpstreamOptions, place: Place, model: str) -> str | None:
    if options.api_key_env is None:
        return None
    key = place.secrets.get(options.api_key_env, "").strip()
    if not key:
        place.notice(f"Model '{model}': {options.api_key_env} is not set in the environment, so its server is asked without a key.")
        return None
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise OurFault(f"Model '{model}': the key in {options.api_key_env} is not one word of ASCII.")
    return key


def _headers(options: UpstreamOptions, key: str | None) -> dict[str, str]:
    own = {"user-agent": f"antiphon/{__version__}"}
    if key is not None:
        own["authorization"] = f"Bearer {key}"
    return own | {name.lower(): value for name, value in options.headers.items()}


def _head(url: SplitResult, headers: Mapping[str, str]) -> bytes:
    own = {
        "host": url.netloc,
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
    }
    return "".join(f"{name}: {value}\r\n" for name, value in (own | dict(headers)).items()).encode()


def _resting(wait_s: float) -> Fault:
    return UpstreamTrouble(
        "The model server failed several times in a row, and is being left alone for a while. Please try again later.",
        status=503,
        code="server_is_overloaded",
        type="service_unavailable_error",
        retry_after_s=wait_s,
    )
