"""
A request that is passed on as it came: its session counts what passes, and ends the answer as the protocol has it.

What the answer says is the model server's; the engine has mended what would break a client.
"""

from collections.abc import Iterable, Sequence

import msgspec

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.fast_path import TextSeries
from antiphon.errors import ApiError, ServerError, UpstreamError
from antiphon.protocols.chat.assembly import Assembly
from antiphon.protocols.chat.failure import to_chat_error
from antiphon.protocols.chat.session import chat_usage, engine_error
from antiphon.protocols.output_table import Outcome
from antiphon.protocols.session import (
    Close,
    Effect,
    Event,
    FromClient,
    FromEngine,
    FromTool,
    Hangup,
    PersistFailed,
    ReportAttempts,
    ReportRetry,
    Send,
    SendToEngine,
    Shutdown,
    TextRun,
    Tick,
)
from antiphon.wire.chat.response import ChatUsage

_INPUT_FIELDS = {"completions": "prompt", "embeddings": "input"}
"""What each API calls the input."""

BYTES_PER_TOKEN = 4
"""For an estimate of what a server does not count."""

_Effects = list[Effect[bytes]]


class RelaySession:
    """
    The machine of one request.

    Args:
        keeps_content: whether `content` is wanted.
        context_window: of the model, in tokens; None if unknown.

    Attributes:
        outcome: how it ended; None before.
        usage: its tokens; None if they are unknown.
    """

    def __init__(self, relay: commands.Relay, context_window: int | None, *, keeps_content: bool = False) -> None:
        self.outcome: Outcome | None = None
        self.usage: ChatUsage | None = None
        self._relay = relay
        self._input_tokens = len(relay.body) // BYTES_PER_TOKEN
        self._output_tokens = 0
        self._context_window = context_window
        self._content: list[bytes] | None = [] if keeps_content else None
        self._has_begun = False
        self._assembly: Assembly | None = None

    @property
    def tokens(self) -> int:
        """Input and output tokens; estimated where the server did not report them."""
        return self._input_tokens + self._output_tokens if self.usage is None else self.usage.total_tokens

    @property
    def rewrite_status(self) -> None:
        """What is passed on is not rewritten."""
        return None

    def content(self) -> str:
        """The answer, an event of a stream a line, if it was to be kept."""
        return b"\n".join(self._content or ()).decode(errors="replace")

    def handle(self, event: Event[commands.Relay]) -> list[Effect[bytes]]:
        if self.outcome is not None:
            return []
        if isinstance(event, FromEngine):
            return self._handle_engine_events(event.events)
        match event:
            case FromClient():
                return self._begin()
            case Hangup():
                self.outcome = "cancelled"
                return [*self._cancel(), Close()]
            case Shutdown(error):
                return [*self._cancel(), *self._fail(error)]
            case Tick() | PersistFailed() | FromTool():  # this session sets no timer, stores nothing and calls no tools
                return []

    def begin_text(self, series: TextSeries) -> TextRun[bytes] | None:
        is_ours = series.id == self._relay.id and series.around is not None and self._relay.stream
        if self.outcome is not None or self._content is not None or not is_ours:
            return None
        before, behind = series.around or (b"", b"")
        return TextRun(lambda text: before + text.encode() + behind, None)

    def end_text(self, count: int) -> None:
        self._output_tokens += count

    def _begin(self) -> _Effects:
        if self._has_begun:
            return []
        self._has_begun = True
        relay = self._relay
        self._relay = msgspec.structs.replace(relay, body=b"")  # the engine has it now
        return [SendToEngine(relay)]

    def _handle_engine_events(self, events: Sequence[engine_events.EngineEvent]) -> _Effects:
        effects: _Effects = []
        id = self._relay.id
        for event in events:
            if type(event) is engine_events.RelayData and event.id == id:
                if event.is_chunk:
                    try:
                        self._assembly = self._assembly or Assembly()
                        self._assembly.add(event.data)
                    except UpstreamError as error:
                        return [*effects, *self._cancel(), *self._fail(error)]
                else:
                    effects.append(Send(event.data))
                self._output_tokens += 1 if self._relay.stream else len(event.data) // BYTES_PER_TOKEN
                if self._content is not None:
                    self._content.append(event.data)
            elif isinstance(event, engine_events.EngineLost):
                return [*effects, *self._fail(UpstreamError(event.message, code=event.code))]
            elif getattr(event, "id", None) == id:
                effects += self._handle_unusual(event)
                if self.outcome is not None:
                    break
        return effects

    def _handle_unusual(self, event: engine_events.EngineEvent) -> _Effects:
        match event:
            case engine_events.Usage():
                self.usage = chat_usage([event])
            case engine_events.RetryScheduled():
                return [ReportRetry()]
            case engine_events.AttemptsReported():
                return [ReportAttempts(event)]
            case engine_events.ResponseEnded(reason="cancelled"):  # by the engine on its own, as the client still waits
                return self._fail(ServerError("The model was stopped before it had finished.", code="server_error"))
            case engine_events.ResponseEnded(reason=reason):
                self.outcome = "completed" if reason == "stop" else "incomplete"
                return [*self._whole_answer(), Close()]
            case engine_events.ResponseFailed():
                return self._fail(engine_error(event))
            case _:
                pass  # about the queue, or the worker
        return []

    def _whole_answer(self) -> _Effects:
        return [] if self._assembly is None else [Send(self._assembly.result())]

    def _cancel(self) -> _Effects:
        return [SendToEngine(commands.Cancel(self._relay.id))] if self._has_begun else []

    def _fail(self, error: ApiError) -> _Effects:
        self.outcome = "failed"
        name = _INPUT_FIELDS.get(self._relay.path)
        if name is None:
            error = to_chat_error(error, self._context_window)
        elif error.param == "input":
            error.param = name
        effects: _Effects = [Send(msgspec.json.encode(error.body()))] if self._relay.stream else []
        return [*effects, Close(error)]


class RelayEncoder:
    """
    Writes the events of a stream that is passed on.

    Attributes:
        stream_end: what follows the last event.
        is_stateless: an event is written alike whatever was written before it.
    """

    stream_end = b"data: [DONE]\n\n"
    is_stateless = True

    def encode_sse_into(self, events: Iterable[bytes], buffer: bytearray) -> None:
        """Append `events` to `buffer`, each as one server-sent event."""
        for data in events:
            # Line ends in JSON stand between its values, never within a text.
            buffer += b"data: %b\n\n" % (data if b"\n" not in data else data.replace(b"\n", b" "))
