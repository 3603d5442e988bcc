"""
A worker that joins a server over a WebSocket, answers for it, and joins again when the link is lost.

No conversation outlasts its link: by then the server has told its clients, and the engine here has left their
conversations.
"""

import asyncio
import contextlib
import logging
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
from antiphon.engines.upstream.websocket import connect_websocket
from antiphon.errors import ServerError
from antiphon.link import LinkEndpoint
from antiphon.runtime.core import url_fetch
from antiphon.runtime.core.engine_types import load_builder
from antiphon.runtime.speech.service import SpeechService
from antiphon.runtime.speech.transcribe_input import transcribe_file
from antiphon.runtime.workers.server import ConversationServer, LinkFrame
from antiphon.runtime.workers.transcribing import TranscribingEngine
from antiphon.stop_signals import StopSignals, stop_signals
from antiphon.subprocesses import Backoff
from antiphon.wire.internal.worker_link import (
    PATH,
    VERSION,
    VERSION_HEADER,
    Drain,
    FromWorker,
    Hello,
    JoinAccepted,
    JoinRefused,
    ToWorker,
    Undrain,
    WorkerDismissed,
)

MESSAGE_LIMIT_BYTES = 1 << 20
"""The largest WebSocket message accepted; the server sends frames in smaller pieces."""

_log = logging.getLogger("antiphon.runtime.workers")
_log.setLevel(logging.CRITICAL)  # picows logs here; what matters reaches the operator as a notice


class JoinTimeouts(Struct, frozen=True, kw_only=True):
    """
    Waiting times, in seconds.

    Attributes:
        connect_s: for the server to accept the link.
        backoff_s: before the next try, after a lost link, and after one, two and more failed tries.
        drain_s: for conversations under way when the worker stops.
    """

    connect_s: float = 10.0
    backoff_s: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
    drain_s: float = 30.0


class WorkerClient:
    """
    Keeps a worker joined.

    Args:
        engine: answers; already started.
        hello: describes the worker to the server.
        url: of the server, `ws://` or `wss://`, without a path.
        key: the API key that workers join with.
        notice: takes lines for the operator; repetitions are left out.
        report: takes those of them that only tell that all is well; by default as the others.
        exits_when_drained: whether `run` returns when the server's operator drains the worker; else it stays joined and
            idle.
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
        report: Callable[[str], None] | None = None,
        exits_when_drained: bool = False,
    ) -> None:
        self._engine = engine
        self._hello = hello
        self._url = url
        self._key = key
        self._notice = notice
        self._report = report or notice
        self._timeouts = timeouts or JoinTimeouts()
        self._exits_when_drained = exits_when_drained
        self._server: ConversationServer | None = None
        self._connect_timeout: asyncio.Timeout | None = None
        self._end_event = asyncio.Event()
        self._is_draining = False
        self._has_joined = self._is_refused = False
        self._last_notice = ""
        self._unjoined_count = 0  # since it was joined last

    def stop(self) -> None:
        """Take no more sessions; `run` returns when those under way are over, at the latest after `drain_s`."""
        loop, drain_s = asyncio.get_running_loop(), self._timeouts.drain_s
        self._end_event.set()
        # A dial that is under way ends at once, rather than after its own timeout.
        if self._connect_timeout is not None:
            self._connect_timeout.reschedule(loop.time())
        loop.call_later(drain_s, self._abort)
        count = 0 if self._server is None else self._server.count
        remaining = f"running sessions have {drain_s:g} s, a second signal ends them at once" if count else "no sessions are running"
        self._drain(f"Stopping: this worker takes no more sessions; {remaining}.")

    async def run(self) -> None:
        """Stay joined until the worker is stopped, or drained if it exits then."""
        failures, backoff = 0, Backoff(self._timeouts.backoff_s, jitter=0.5)  # not all workers at once after a restart of the server
        while not self._end_event.is_set():
            self._has_joined = self._is_refused = False
            await self._join()
            failures = 0 if self._has_joined else failures + 1
            await self._back_off(backoff.delay_s(failures))

    async def _back_off(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._end_event.wait()
        except TimeoutError:
            pass

    async def _join(self) -> None:
        """One link, from the first dial to its end."""
        lost_future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_lost(reason: str) -> None:
            if not lost_future.done():
                lost_future.set_result(reason)

        async with ConversationServer(self._hello.slots, self._on_link_frame, on_lost, self._notice_remaining) as serving:
            transport = _WebSocketTransport(serving.endpoint)
            failure = await self._connect(transport)
            if failure is not None:
                if not self._end_event.is_set():
                    self._notice_unjoined(failure)
                return
            self._server = serving
            serving.serve(self._engine)
            serving.endpoint.send(structs.replace(self._hello, is_draining=self._is_draining))
            if self._is_draining:
                serving.drain(hangs_up=self._end_event.is_set())
            reason = await lost_future
            self._server = None
            self._notice_link_lost(transport.close_reason or reason)

    async def _connect(self, transport: "_WebSocketTransport") -> str | None:
        """Open the WebSocket; returns why that failed, or None."""
        timeout_s = self._timeouts.connect_s
        try:
            async with asyncio.timeout(None) as self._connect_timeout:  # `stop` sets it
                return await _dial(transport, self._url + PATH, self._key, timeout_s)
        except TimeoutError:
            return f"it did not answer within {timeout_s:g} seconds."
        finally:
            self._connect_timeout = None

    # Frames about the link

    def _on_link_frame(self, frame: LinkFrame) -> None:
        match frame:
            case JoinAccepted(id):
                self._has_joined = True
                self._unjoined_count = 0
                state = ", but takes no sessions, as it was drained" if self._is_draining else ""
                self._notice_once(f"Joined {self._url} as {id}{state}.", is_well=not state)
            case JoinRefused(message):
                self._is_refused = True
                self._notice_once(f"{self._url} refused this worker: {message}")
            case Drain() if not self._is_draining:
                if self._exits_when_drained:
                    self._end_event.set()
                self._drain(f"The operator of {self._url} drained this worker: it takes no more sessions.")
            case Undrain() if self._is_draining and not self._end_event.is_set():
                self._is_draining = False
                self._notice_once(f"The operator of {self._url} resumed this worker: it takes sessions again.", is_well=True)
                if self._server is not None:
                    self._server.resume()
            case WorkerDismissed():
                self._end_event.set()
                self._drain(f"The operator of {self._url} removed this worker: it exits after its last session.")
            case _:
                pass

    def _drain(self, reason: str) -> None:
        """Take no more sessions on this link and on any later one."""
        self._is_draining = True
        self._notice_once(reason)
        if self._server is not None:
            self._notice_remaining(self._server.count)
            self._server.drain(hangs_up=self._end_event.is_set())

    def _abort(self) -> None:
        if self._server is not None:
            self._notice_once(f"Time is up: {_format_sessions(self._server.count)} cut short.")
            self._server.endpoint.abort("the worker is stopping")

    # For the operator

    def _notice_remaining(self, count: int) -> None:
        if self._server is None or self._server.endpoint.is_over or not self._is_draining:
            return
        hint = "" if self._end_event.is_set() else " This worker stays joined and idle until it is stopped or removed."
        self._notice_once(f"Draining: {_format_sessions(count)} left." if count else f"Drained: no sessions left.{hint}")

    def _notice_link_lost(self, reason: str) -> None:
        """Report a lost link, unless the server already gave a reason."""
        if self._end_event.is_set() or self._is_refused:
            return
        if self._has_joined:
            self._notice_once(f"The link to {self._url} was lost: {reason}.")
        else:
            self._notice_unjoined(f"{reason}.")

    def _notice_unjoined(self, reason: str) -> None:
        """Report a failure to join: the first, then each time that there were twice as many."""
        self._unjoined_count += 1
        if self._unjoined_count & (self._unjoined_count - 1) == 0:
            again = "" if self._unjoined_count == 1 else f" ({self._unjoined_count} times so far)"
            self._notice_once(f"{self._url} could not be joined{again}: {reason} This worker keeps trying.")

    def _notice_once(self, line: str, *, is_well: bool = False) -> None:
        if line != self._last_notice:
            self._last_notice = line
            (self._report if is_well else self._notice)(line)


def _format_sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """
    Settings of a worker.

    Attributes:
        kinds: of conversation that it takes.
        slots: conversations at the same time; None for as many as the engine allows.
        name: shown to the server's operator.
        adds_speech: whether speech recognition and a voice are added to the engine here, rather than by the server.
        exits_when_drained: whether it exits when the server's operator has drained it.
        drain_s: seconds that sessions under way get when it stops.
    """

    kinds: Sequence[str]
    slots: int | None
    name: str
    adds_speech: bool = False
    exits_when_drained: bool = False
    drain_s: float = 30.0


def serve(
    config: Config,
    *,
    url: str,
    key: str,
    options: WorkerOptions,
    notice: Callable[[str], None],
    report: Callable[[str], None],
) -> None:
    """
    Answer for the server at `url` with the first configured model, until a signal.

    Args:
        notice: takes lines for the operator.
        report: takes those that only tell that all is well.

    Raises:
        ApiError: the engine can't be built or started.
    """
    entry = config.models[0]
    context = BuildContext(
        weights_folder=config.models_dir,
        base_folder=entry.origin_folder,
        notice=notice,
        secrets=config.secrets,
        fetch=url_fetch.fetcher(()),
    )
    engine = load_builder(entry.engine)(entry.name, entry.options, context)
    speech = SpeechService(config.speech, config.models_dir, config.secrets, notice) if options.adds_speech else None
    served_engine = engine if speech is None else _with_speech(engine, speech, entry.engine)

    async def serve_until_signal() -> None:
        on_first_signal = _handle_signals()
        try:
            await engine.start()
            if speech is not None:
                await speech.warm_up()
            hello, timeouts = _build_hello(served_engine, entry.name, options), JoinTimeouts(drain_s=options.drain_s)
            client = WorkerClient(
                served_engine, hello, url, key, notice, timeouts, report=report, exits_when_drained=options.exits_when_drained
            )
            on_first_signal.append(client.stop)
            await client.run()
        finally:
            await engine.stop()
            if speech is not None:
                await speech.stop()

    with contextlib.suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_until_signal())


def _with_speech(engine: Engine, speech: SpeechService, name: str) -> Engine:
    """
    The engine with speech recognition and a voice.

    Raises:
        ServerError: they are not installed, or the engine has its own.
    """
    if engine.capabilities.listens:
        raise ServerError(f"The engine '{name}' has its own speech recognition: leave out --speech.")
    with_speech = speech.with_speech(engine)
    if speech.missing_reason is not None:
        raise ServerError(f"Speech is not available here: {speech.missing_reason}")
    if with_speech is engine:
        raise ServerError(f"The engine '{name}' has its own voice, so speech recognition can't be added to it.")
    return TranscribingEngine(with_speech, lambda file: transcribe_file(file, speech))


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
    """
    A list that takes what the first signal to stop calls; while it is empty, and at the second signal, the task is
    cancelled.
    """
    task, on_first_signal, signals = asyncio.current_task(), list[Callable[[], None]](), StopSignals()

    def on_signal(number: int) -> None:
        step = signals.next_step(number)
        if step is not None and on_first_signal:
            on_first_signal.pop()()
        elif step is not None and task is not None:
            task.cancel()

    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    return on_first_signal


class _WebSocketTransport(WSListener):
    """
    A WebSocket to a server, as the transport of a link.

    Attributes:
        close_reason: the server's reason for closing it; empty if it gave none.
        has_opened: whether the handshake was completed.
    """

    def __init__(self, endpoint: "LinkEndpoint[ToWorker, FromWorker]") -> None:
        super().__init__()
        self.close_reason = ""
        self.has_opened = False
        self._endpoint = endpoint
        self._transport: WSTransport | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.has_opened = True
        self._transport = transport
        self._endpoint.connect(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        match frame.msg_type:
            # The link's frames have lengths of their own, so messages may be taken in pieces.
            case WSMsgType.BINARY | WSMsgType.CONTINUATION:
                self._endpoint.receive(frame.get_payload_as_bytes())
            case WSMsgType.CLOSE:
                self.close_reason = frame.get_payload_as_bytes()[2:].decode(errors="replace").rstrip(".")
                # RFC 6455, 5.5.1: a Close frame is answered with one.
                transport.send_close(frame.get_close_code())
                transport.disconnect()
            case _:
                pass

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self._endpoint.connection_lost()

    def pause_writing(self) -> None:
        self._endpoint.pause()

    def resume_writing(self) -> None:
        self._endpoint.resume()

    def write(self, chunk: bytes) -> None:
        if self._transport is not None:
            self._transport.send(WSMsgType.BINARY, chunk)

    def close(self, _reason: str) -> None:
        """Close the WebSocket; the last bytes get a second to be sent."""
        if self._transport is not None:
            self._transport.send_close(WSCloseCode.OK)
            # By force after a second: a server that hangs would never answer the close.
            asyncio.get_running_loop().call_later(1.0, self._transport.disconnect, False)
            self._transport.disconnect()


async def _dial(transport: _WebSocketTransport, url: str, key: str, timeout_s: float) -> str | None:
    """
    Open the WebSocket.

    Returns:
        Why that failed, as the end of a sentence; None if it did not.

    Raises:
        TimeoutError: it took longer than `timeout_s`.
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
        return "the answer was not that of a WebSocket server."
    except ConnectionRefusedError:
        return "nothing listens at this address."
    except OSError as error:
        return f"{error.strerror or 'nothing listens at this address'}."  # no `strerror` if several addresses were tried
    # If the server hangs up instead of answering, picows reports an open WebSocket and nothing after that.
    return None if transport.has_opened else "it hung up instead of answering."


class _Error(Struct, frozen=True):
    message: str


class _Refusal(Struct, frozen=True):
    error: _Error


def _refusal_message(error: WSInvalidStatusError) -> str:
    """The server's reason for refusing the link."""
    try:
        return msgspec.json.decode(error.raw_body or b"", type=_Refusal).error.message
    except msgspec.DecodeError:
        status = error.response.status if error.response is not None else "nothing"
        return f"it answered {status}; is it the address of an antiphon server?"
