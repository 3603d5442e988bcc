"""
A worker that dials in: it joins a server, answers what that sends, and joins again when the link is gone.

Nothing is kept over a lost link: the server has told its clients already, and the engine here leaves their conversations.
"""

import asyncio
import contextlib
import itertools
import logging
import random
import signal
import ssl
from collections.abc import Callable, Sequence

import msgspec
import uvloop
from msgspec import Struct
from picows import WSCloseCode, WSError, WSFrame, WSInvalidStatusError, WSListener, WSMsgType, WSTransport, ws_connect

from antiphon import talk
from antiphon.config import Config
from antiphon.engines.base import Engine, Place
from antiphon.engines.worker_end import End
from antiphon.runtime import fetching
from antiphon.runtime.registry import _build
from antiphon.runtime.worker_serving import Of, Serving
from antiphon.wire.worker_link import PATH, VERSION, Hello, Refused, ToWorker, Welcome

MESSAGE_LIMIT_BYTES = 1 << 20
"""The most in one message of the server's, which cuts what it sends into smaller pieces."""

_log = logging.getLogger("antiphon.runtime.workers")
_log.setLevel(logging.CRITICAL)  # the library's own log; what matters of it is told by a notice


class Patience(Struct, frozen=True, kw_only=True):
    """
    How long is waited for what.

    Attributes:
        dialling_s: for a server to take the link.
        pauses_s: before it is dialled again, after one, two and more times in vain.
        drain_s: for conversations under way when the worker is to stop.
    """

    dialling_s: float = 10.0
    pauses_s: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
    drain_s: float = 30.0


class Joining:
    """
    Keeps a worker joined.

    Args:
        engine: what answers, started.
        hello: what the server is told.
        url: the server's, `ws://` or `wss://`, without a path.
        key: that workers join with.
        notice: takes lines for the operator; one that would repeat the last is left out.
    """

    def __init__(
        self, engine: Engine, hello: Hello, url: str, key: str, notice: Callable[[str], None], patience: Patience | None = None
    ) -> None:
        self._engine = engine
        self._hello = hello
        self._url = url
        self._key = key
        self._notice = notice
        self._patience = patience or Patience()
        self._serving: Serving | None = None
        self._draining = asyncio.Event()
        self._has_joined = False
        self._noticed = ""

    def drain(self) -> None:
        """Take no more conversations; `run` returns when those under way are over, or have had time enough."""
        self._draining.set()
        if self._serving is not None:
            self._serving.drain()
            end = self._serving.end
            asyncio.get_running_loop().call_later(self._patience.drain_s, end.drop, "the worker is stopping")

    async def run(self) -> None:
        """Be joined until drained."""
        failures = 0
        while not self._draining.is_set():
            self._has_joined = False
            await self._join()
            failures = 0 if self._has_joined else failures + 1
            pauses_s = self._patience.pauses_s
            await self._pause(random.uniform(0.5, 1.0) * pauses_s[min(failures, len(pauses_s) - 1)])  # not all at once after a restart

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._draining.wait()
        except TimeoutError:
            pass

    async def _join(self) -> None:
        """One link, from the first dial to its end."""
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def lost(reason: str) -> None:
            if not over.done():
                over.set_result(reason)

        async with Serving(self._hello.slots, self._told, lost) as serving:
            pipe = _SocketPipe(serving.end)
            trouble = await _dial(pipe, self._url + PATH, self._key, self._patience.dialling_s)
            if trouble is not None:
                self._tell(f"{self._url} could not be joined: {trouble}")
                return
            self._serving = serving
            serving.serve(self._engine)
            serving.end.send(self._hello)
            if self._draining.is_set():
                serving.drain()
            reason = await over
            self._serving = None
            if self._has_joined and not self._draining.is_set():
                self._tell(f"The link to {self._url} is gone: {pipe.farewell or reason}.")

    def _told(self, frame: Of) -> None:
        match frame:
            case Welcome(id):
                self._has_joined = True
                self._tell(f"Joined {self._url} as {id}.")
            case Refused(message):
                self._tell(f"{self._url} does not take this worker: {message}")
            case _:
                pass

    def _tell(self, line: str) -> None:
        if line != self._noticed:
            self._noticed = line
            self._notice(line)


def serve(config: Config, *, url: str, key: str, kinds: Sequence[str], slots: int | None, name: str, notice: Callable[[str], None]) -> None:
    """
    Answer with the first model that is configured for the server at `url`, until a signal.

    Args:
        name: what the server's operator sees the worker by.
        notice: takes lines for the operator.

    Raises:
        Fault: the engine can't be had.
    """
    entry = config.models[0]
    place = Place(weights=config.models_dir, base=entry.origin_folder, notice=notice, secrets=config.secrets, fetch=fetching.fetcher(()))
    engine = _build(entry.engine)(entry.name, entry.options, place)

    async def joined() -> None:
        await engine.start()
        try:
            hello = Hello(
                version=VERSION,
                abilities=engine.abilities,
                model=entry.name,
                kinds=msgspec.convert(kinds, tuple[talk.Kind, ...]),
                slots=slots or engine.abilities.sessions,
                name=name,
            )
            joining = Joining(engine, hello, url, key, notice)
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, _drain_or_stop(joining, notice))
            await joining.run()
        finally:
            await engine.stop()

    with contextlib.suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(joined())


def _drain_or_stop(joining: Joining, notice: Callable[[str], None]) -> Callable[[], None]:
    """What a signal does: the first one drains, the second stops at once."""
    task = asyncio.current_task()
    signals = itertools.count()

    def signalled() -> None:
        if next(signals) == 0:
            notice("Taking no more conversations; those under way are finished first.")
            joining.drain()
        elif task is not None:
            task.cancel()

    return signalled


class _SocketPipe(WSListener):
    """
    A WebSocket to a server, as what carries a link.

    Attributes:
        farewell: why the server closed it, where it said so.
    """

    def __init__(self, end: "End[ToWorker]") -> None:
        super().__init__()
        self.farewell = ""
        self._end = end
        self._transport: WSTransport | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The handshake is over."""
        self._transport = transport
        self._end.connect(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Some frames of the link, or parts of them."""
        match frame.msg_type:
            case WSMsgType.BINARY | WSMsgType.CONTINUATION:
                self._end.receive(frame.get_payload_as_bytes())
            case WSMsgType.CLOSE:
                self.farewell = frame.get_payload_as_bytes()[2:].decode(errors="replace").rstrip(".")
                transport.send_close(frame.get_close_code())
                transport.disconnect()
            case _:
                pass

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The server is gone."""
        self._transport = None
        self._end.gone()

    def pause_writing(self) -> None:
        """The server reads slower than is written."""
        self._end.pause()

    def resume_writing(self) -> None:
        """The server has caught up."""
        self._end.resume()

    def write(self, piece: bytes) -> None:
        """Send these bytes."""
        if self._transport is not None:
            self._transport.send(WSMsgType.BINARY, piece)

    def close(self, _reason: str) -> None:
        """Hang up; a server that does not take the last bytes soon is not waited for."""
        if self._transport is not None:
            self._transport.send_close(WSCloseCode.OK)
            asyncio.get_running_loop().call_later(1.0, self._transport.disconnect, False)
            self._transport.disconnect()


async def _dial(pipe: _SocketPipe, url: str, key: str, patience_s: float) -> str | None:
    """Open the WebSocket, or say why it can't be."""
    tls = ssl.create_default_context() if url.startswith("wss:") else None
    try:
        async with asyncio.timeout(patience_s):
            await ws_connect(
                lambda: pipe,
                url,
                ssl_context=tls,
                extra_headers={"Authorization": f"Bearer {key}"},
                max_redirects=0,
                max_frame_size=MESSAGE_LIMIT_BYTES,
                websocket_handshake_timeout=patience_s + 1,
                logger_name=_log,
            )
    except TimeoutError:
        return f"it did not answer in {patience_s:g} seconds."
    except WSInvalidStatusError as error:
        return _message_of(error)
    except ssl.SSLError as error:
        return f"its TLS can't be trusted: {error.reason or error}."
    except WSError:
        return "it did not answer as a server does."
    except ConnectionRefusedError:
        return "nothing listens there."
    except OSError as error:
        return f"{error.strerror or 'nothing listens there'}."  # without words of its own where there were several addresses
    return None


class _Error(Struct, frozen=True):
    message: str


class _Refusal(Struct, frozen=True):
    error: _Error


def _message_of(refused: WSInvalidStatusError) -> str:
    """What a server said when it refused the link."""
    try:
        return msgspec.json.decode(refused.raw_body or b"", type=_Refusal).error.message
    except msgspec.DecodeError:
        status = refused.response.status if refused.response is not None else "nothing"
        return f"it answered {status}; is it the address of an antiphon server?"
