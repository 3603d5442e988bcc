"""
A worker that dials in: it joins a server, answers what that sends, and joins again when the link is gone.

Nothing is kept over a lost link: the server has told its clients already, and the engine here leaves their conversations.
"""

import asyncio
import contextlib
import logging
import random
import signal
import ssl
from collections.abc import Callable, Sequence

import msgspec
import uvloop
from msgspec import Struct, structs
from picows import WSCloseCode, WSError, WSFrame, WSInvalidStatusError, WSListener, WSMsgType, WSTransport

from antiphon import __version__
from antiphon.config.load import Config
from antiphon.engine_api.engine import BuildContext, Engine
from antiphon.engine_api.options import ConversationKind
from antiphon.engines.remote.link import LinkEndpoint
from antiphon.engines.upstream.websocket import connect_websocket
from antiphon.errors import ServerError
from antiphon.runtime.core import url_fetch
from antiphon.runtime.core.engine_types import load_builder
from antiphon.runtime.speech.service import SpeechService
from antiphon.runtime.speech.transcribe_input import transcribe_file
from antiphon.runtime.workers.server import ConversationServer, LinkFrame
from antiphon.runtime.workers.transcribing import TranscribingEngine
from antiphon.wire.internal.worker_link import (
    PATH,
    VERSION,
    VERSION_HEADER,
    Drain,
    Hello,
    JoinAccepted,
    JoinRefused,
    ToWorker,
    Undrain,
    WorkerDismissed,
)

MESSAGE_LIMIT_BYTES = 1 << 20
"""The most in one message of the server's, which cuts what it sends into smaller pieces."""

_log = logging.getLogger("antiphon.runtime.workers")
_log.setLevel(logging.CRITICAL)  # the library's own log; what matters of it is told by a notice


class JoinTimeouts(Struct, frozen=True, kw_only=True):
    """
    How long is waited for what.

    Attributes:
        dialling_s: for a server to take the link.
        pauses_s: before it is dialled again, after one, two and more times in vain.
        drain_s: for conversations under way when the worker is to stop.
    """

    connect_s: float = 10.0
    backoff_s: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
    drain_s: float = 30.0


class WorkerClient:
    """
    Keeps a worker joined.

    Args:
        engine: what answers, started.
        hello: what the server is told.
        url: the server's, `ws://` or `wss://`, without a path.
        key: that workers join with.
        notice: takes lines for the operator; one that would repeat the last is left out.
        exits: whether `run` returns when the server's operator has drained the worker; else it stays joined, and idle.
    """

    def __init__(
        self,
        engine: Engine,
        hello: Hello,
        url: str,
        key: str,
        notice: Callable[[str], None],
        timeouts: JoinTimeouts | None = None,
        *,
        exits_when_drained: bool = False,
    ) -> None:
        self._engine = engine
        self._hello = hello
        self._url = url
        self._key = key
        self._notice = notice
        self._timeouts = timeouts or JoinTimeouts()
        self._exits_when_drained = exits_when_drained
        self._server: ConversationServer | None = None
        self._connect_timeout: asyncio.Timeout | None = None
        self._end_event = asyncio.Event()
        self._is_draining = False
        self._has_joined = self._is_refused = False
        self._last_notice = ""

    def stop(self) -> None:
        """Take no more sessions; `run` returns when those under way are over, or have had time enough."""
        loop, drain_s = asyncio.get_running_loop(), self._timeouts.drain_s
        self._end_event.set()
        if self._connect_timeout is not None:
            self._connect_timeout.reschedule(loop.time())
        loop.call_later(drain_s, self._abort)
        count = 0 if self._server is None else self._server.count
        has = f"sessions under way have {drain_s:g} s, and a second signal cuts them short" if count else "there are no sessions"
        self._drain(f"Stopping: no more sessions are taken; {has}.")

    async def run(self) -> None:
        """Be joined until there is nothing more to do."""
        failures = 0
        while not self._end_event.is_set():
            self._has_joined = self._is_refused = False
            await self._join()
            failures = 0 if self._has_joined else failures + 1
            pauses_s = self._timeouts.backoff_s
            await self._back_off(random.uniform(0.5, 1.0) * pauses_s[min(failures, len(pauses_s) - 1)])  # not all at once after a restart

    async def _back_off(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._end_event.wait()
        except TimeoutError:
            pass

    async def _join(self) -> None:
        """One link, from the first dial to its end."""
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def lost(reason: str) -> None:
            if not over.done():
                over.set_result(reason)

        async with ConversationServer(self._hello.slots, self._on_link_frame, lost, self._notice_remaining) as serving:
            pipe = _WebSocketTransport(serving.endpoint)
            trouble = await self._connect(pipe)
            if trouble is not None:
                if not self._end_event.is_set():
                    self._notice_once(f"{self._url} could not be joined: {trouble}")
                return
            self._server = serving
            serving.serve(self._engine)
            serving.endpoint.send(structs.replace(self._hello, is_draining=self._is_draining))
            if self._is_draining:
                serving.drain(hangs_up=self._end_event.is_set())
            reason = await over
            self._server = None
            self._notice_link_lost(pipe.close_reason or reason)

    async def _connect(self, transport: "_WebSocketTransport") -> str | None:
        """Open the WebSocket, or say why it can't be."""
        patience_s = self._timeouts.connect_s
        try:
            async with asyncio.timeout(None) as self._dialling:  # which is for `stop` to set
                return await _dial(transport, self._url + PATH, self._key, patience_s)
        except TimeoutError:
            return f"it did not answer in {patience_s:g} seconds."
        finally:
            self._connect_timeout = None

    # What the server says of the link

    def _on_link_frame(self, frame: LinkFrame) -> None:
        match frame:
            case JoinAccepted(id):
                self._has_joined = True
                self._notice_once(f"Joined {self._url} as {id}{', and takes no sessions, as it was drained' if self._is_draining else ''}.")
            case JoinRefused(message):
                self._is_refused = True
                self._notice_once(f"{self._url} does not take this worker: {message}")
            case Drain() if not self._is_draining:
                if self._exits_when_drained:
                    self._end_event.set()
                self._drain(f"The operator of {self._url} drains this worker: no more sessions are taken.")
            case Undrain() if self._is_draining and not self._end_event.is_set():
                self._is_draining = False
                self._notice_once(f"The operator of {self._url} resumes this worker: sessions are taken again.")
                if self._server is not None:
                    self._server.resume()
            case WorkerDismissed():
                self._end_event.set()
                self._drain(f"The operator of {self._url} has removed this worker: it ends with its last session.")
            case _:
                pass

    def _drain(self, reason: str) -> None:
        """Take no more sessions, now and after every link that may come."""
        self._is_draining = True
        self._notice_once(reason)
        if self._server is not None:
            self._notice_remaining(self._server.count)
            self._server.drain(hangs_up=self._end_event.is_set())

    def _abort(self) -> None:
        if self._server is not None:
            self._notice_once(f"Cut short: {_format_sessions(self._server.count)}, as the time is over.")
            self._server.endpoint.abort("the worker is stopping")

    # For the operator

    def _notice_remaining(self, count: int) -> None:
        if self._server is None or self._server.endpoint.is_over or not self._is_draining:
            return
        stays = "" if self._end_event.is_set() else " This worker stays joined, and idle, until it is stopped or removed."
        self._notice_once(f"Draining: {_format_sessions(count)} left." if count else f"Drained: no sessions left.{stays}")

    def _notice_link_lost(self, reason: str) -> None:
        """The link is gone; where the server has not said anything, nobody has heard why."""
        if self._end_event.is_set() or self._is_refused:
            return
        if self._has_joined:
            self._notice_once(f"The link to {self._url} is gone: {reason}.")
        else:
            self._notice_once(f"{self._url} could not be joined: {reason}.")

    def _notice_once(self, line: str) -> None:
        if line != self._last_notice:
            self._last_notice = line
            self._notice(line)


def _format_sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """
    How a worker is to answer.

    Attributes:
        kinds: of conversation that it takes.
        slots: how many at the same time; None for as many as the engine says.
        name: what the server's operator sees it by.
        speaks: whether ears and a voice are put around the engine here, rather than by the server.
        exits: whether it ends when the server's operator has drained it.
        drain_s: what sessions under way get to finish when it is to stop.
    """

    kinds: Sequence[str]
    slots: int | None
    name: str
    adds_speech: bool = False
    exits_when_drained: bool = False
    drain_s: float = 30.0


def serve(config: Config, *, url: str, key: str, options: WorkerOptions, notice: Callable[[str], None]) -> None:
    """
    Answer with the first model that is configured for the server at `url`, until a signal.

    Args:
        notice: takes lines for the operator.

    Raises:
        ApiError: the engine can't be had.
    """
    entry = config.models[0]
    place = BuildContext(
        weights_folder=config.models_dir,
        base_folder=entry.origin_folder,
        notice=notice,
        secrets=config.secrets,
        fetch=url_fetch.fetcher(()),
    )
    engine = load_builder(entry.engine)(entry.name, entry.options, place)
    speech = SpeechService(config.speech, config.models_dir, config.secrets, notice) if options.adds_speech else None
    speaking = engine if speech is None else _with_speech(engine, speech, entry.engine)

    async def joined() -> None:
        first = _handle_signals()
        try:
            await engine.start()
            if speech is not None:
                await speech.load()
            hello, patience = _build_hello(speaking, entry.name, options), JoinTimeouts(drain_s=options.drain_s)
            joining = WorkerClient(speaking, hello, url, key, notice, patience, exits_when_drained=options.exits_when_drained)
            first.append(joining.stop)
            await joining.run()
        finally:
            await engine.stop()
            if speech is not None:
                await speech.stop()

    with contextlib.suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(joined())


def _with_speech(engine: Engine, speech: SpeechService, name: str) -> Engine:
    """
    The engine with ears and a voice.

    Raises:
        ServerError: they are not here, or it has its own.
    """
    if engine.capabilities.listens:
        raise ServerError(f"The engine '{name}' has ears of its own: leave out --speech.")
    around = speech.with_speech(engine)
    if speech.missing_reason is not None:
        raise ServerError(f"There are no ears and no voice here: {speech.missing_reason}")
    if around is engine:
        raise ServerError(f"The engine '{name}' has a voice of its own, and can't be given ears.")
    return TranscribingEngine(around, lambda file: transcribe_file(file, speech))


def _build_hello(engine: Engine, model: str, options: WorkerOptions) -> Hello:
    return Hello(
        version=VERSION,
        abilities=engine.capabilities,
        model=model,
        kinds=msgspec.convert(options.kinds, tuple[ConversationKind, ...]),
        slots=options.slots or engine.capabilities.sessions,
        name=options.name,
        program=__version__,
    )


def _handle_signals() -> list[Callable[[], None]]:
    """What the first SIGINT or SIGTERM does, to be put in here; while nothing is in here, and at the second one, all is over at once."""
    task, first = asyncio.current_task(), list[Callable[[], None]]()

    def signalled() -> None:
        if first:
            first.pop()()
        elif task is not None:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
    return first


class _WebSocketTransport(WSListener):
    """
    A WebSocket to a server, as what carries a link.

    Attributes:
        farewell: why the server closed it, where it said so.
        was_opened: whether the handshake came to its end.
    """

    def __init__(self, end: "LinkEndpoint[ToWorker]") -> None:
        super().__init__()
        self.close_reason = ""
        self.has_opened = False
        self._end = end
        self._transport: WSTransport | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The handshake is over."""
        self.has_opened = True
        self._transport = transport
        self._end.connect(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Some frames of the link, or parts of them."""
        match frame.msg_type:
            case WSMsgType.BINARY | WSMsgType.CONTINUATION:
                self._end.receive(frame.get_payload_as_bytes())
            case WSMsgType.CLOSE:
                self.close_reason = frame.get_payload_as_bytes()[2:].decode(errors="replace").rstrip(".")
                transport.send_close(frame.get_close_code())
                transport.disconnect()
            case _:
                pass

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The server is gone."""
        self._transport = None
        self._end.connection_lost()

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


async def _dial(transport: _WebSocketTransport, url: str, key: str, timeout_s: float) -> str | None:
    """
    Open the WebSocket, or say why it can't be.

    Raises:
        TimeoutError: it did not come about in that time.
    """
    headers = {"Authorization": f"Bearer {key}", VERSION_HEADER: str(VERSION)}
    tls = ssl.create_default_context() if url.startswith("wss:") else None
    try:
        await connect_websocket(transport, url, headers, tls, timeout_s=timeout_s, message_limit_bytes=MESSAGE_LIMIT_BYTES, log=_log)
    except TimeoutError:
        raise
    except WSInvalidStatusError as error:
        return _refusal_message(error)
    except ssl.SSLError as error:
        return f"its TLS can't be trusted: {error.reason or error}."
    except WSError:
        return "it did not answer as a server does."
    except ConnectionRefusedError:
        return "nothing listens there."
    except OSError as error:
        return f"{error.strerror or 'nothing listens there'}."  # without words of its own where there were several addresses
    # A server that hangs up instead of answering is an opened WebSocket to the library, of which nothing more is ever heard.
    return None if transport.has_opened else "it hung up instead of answering."


class _Error(Struct, frozen=True):
    message: str


class _Refusal(Struct, frozen=True):
    error: _Error


def _refusal_message(error: WSInvalidStatusError) -> str:
    """What a server said when it refused the link."""
    try:
        return msgspec.json.decode(error.raw_body or b"", type=_Refusal).error.message
    except msgspec.DecodeError:
        status = error.response.status if error.response is not None else "nothing"
        return f"it answered {status}; is it the address of an antiphon server?"
