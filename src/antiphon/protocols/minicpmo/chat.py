"""
A MiniCPM-o session in chat: questions, each with its whole conversation, and their responses, one after the other.

No question remembers another. One that arrives while another is being answered waits for its turn.
"""

from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from antiphon.engine_api import commands, events as engine_events, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import Sampling, Voice
from antiphon.errors import ClientError, unsupported_parameter
from antiphon.protocols.dispatch import on, table
from antiphon.protocols.minicpmo.config import MinicpmoSessionConfig
from antiphon.protocols.minicpmo.outbox import Kind, MinicpmoOutbox
from antiphon.protocols.session import NewId
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.chat import ChatAppend
from antiphon.wire.minicpmo.client_events import SessionInit
from antiphon.wire.minicpmo.media import RATE_OUT_HZ, to_floats

WAITING_QUESTIONS_LIMIT = 8
"""How many questions may wait while another is being answered."""

LENGTH_PENALTY_DEFAULT = 1.1
"""
The original's default. Its clients send it anyway, so it is left out for engines that may refuse an unknown option.
"""

_NO_VOICE_CLONING_NOTE = "tts.ref_audio_data: this model speaks in its own voice"
_END_REASONS: dict[str, str] = {"stop": "turn_end"}
"""The original's names for end reasons; the others go by the engine's names."""


class _ChatResponse(Struct, kw_only=True):
    """
    A question and its response so far.

    Attributes:
        id: of the response, for the client.
        received_at: of the question, in Unix seconds.
    """

    id: str
    input_id: str
    request: commands.Respond
    is_streamed: bool
    received_at: float
    text_chunks: list[str] = field(default_factory=list)
    audio_chunks: list[bytes] = field(default_factory=list)
    metrics: JsonDict = field(default_factory=dict)


class MinicpmoChat:
    """
    The part of a session that runs once it was created, in the mode `chat`.

    Attributes:
        failure_message: None: a failed response does not end a chat.
    """

    def __init__(self, config: MinicpmoSessionConfig, init: SessionInit, outbox: MinicpmoOutbox, new_id: NewId) -> None:
        self.failure_message: str | None = None
        self._config = config
        self._init = init
        self._outbox = outbox
        self._new_id = new_id
        self._active_response: _ChatResponse | None = None
        self._waiting_responses: deque[_ChatResponse] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether the session waits for the client."""
        return self._active_response is None

    def append(self, event: ChatAppend) -> None:
        """
        Answer a question, now or after those that wait.

        Raises:
            ClientError: it can't be answered, or too many wait already.
        """
        if len(self._waiting_responses) >= WAITING_QUESTIONS_LIMIT:
            raise ClientError(
                f"{WAITING_QUESTIONS_LIMIT} questions are waiting for their responses. Wait until one of them is answered.",
                code="too_many_inputs",
                type="rate_limit_error",
            )
        self._waiting_responses.append(self._plan_response(event))
        self._start_next()

    def handle_event(self, event: engine_events.EngineEvent) -> None:
        """Send the client what follows from an engine event."""
        response, handler = self._active_response, _EVENT_HANDLERS.get(type(event))
        if response is not None and handler is not None and event.id == response.request.id:
            handler(self, event, response)

    def stop(self) -> None:
        """Cancel the active response: the session is over."""
        if self._active_response is not None:
            self._outbox.send_to_engine(commands.Cancel(self._active_response.request.id))

    # Questions

    def _plan_response(self, event: ChatAppend) -> _ChatResponse:
        capabilities = self._config.capabilities
        if event.speaks and not capabilities.audio_out:
            raise unsupported_parameter("input.tts.enabled", self._config.model)
        instructions, reference, rest = _split_system_prompt(event.messages)
        _check_parts(rest, len(event.messages) - len(rest), self._config)
        if not rest:
            raise ClientError("Invalid 'input.messages': expected a message to answer.", code="invalid_payload", param="input.messages")
        # MiniCPM-o: `messages` is the whole conversation, and its system messages take the place of the prompt of
        # `session.init`.
        if instructions is None:
            instructions = self._init.instructions if self._init.instructions is not None else self._config.instructions
        id = self._new_id("resp")
        request = commands.Respond(
            id=id,
            history=tuple(_with_detail(message, event.slices) for message in rest),
            instructions=instructions,
            sampling=Sampling(max_tokens=event.max_tokens, extra=_extra(event, capabilities)),
            reasoning_effort=_effort(event, capabilities),
            whole=not event.streaming,
            voice=self._voice(event.voice_reference or reference) if event.speaks else None,
        )
        return _ChatResponse(
            id=event.response_id or id,
            input_id=event.input_id or self._new_id("input"),
            request=request,
            is_streamed=event.streaming,
            received_at=self._outbox.at,
        )

    def _voice(self, reference: bytes | None) -> Voice:
        reference = reference or self._init.voice_reference or self._init.reference
        if reference is not None and not self._config.capabilities.clones:
            self._outbox.add_note(_NO_VOICE_CLONING_NOTE)
            reference = None
        return Voice(rate_hz=RATE_OUT_HZ, reference=reference)

    def _start_next(self) -> None:
        if self._active_response is None and self._waiting_responses:
            self._active_response = self._waiting_responses.popleft()
            self._outbox.send_to_engine(self._active_response.request)

    # Responses

    def _on_text(
        self, event: engine_events.TextDelta | engine_events.AudioTranscriptDelta | engine_events.RefusalDelta, response: _ChatResponse
    ) -> None:
        if not event.text:
            return
        response.text_chunks.append(event.text)
        if response.is_streamed:
            self._send_delta(response, "text", text=event.text)

    def _on_audio(self, event: engine_events.AudioDelta, response: _ChatResponse) -> None:
        if not event.pcm:
            return
        if response.is_streamed:
            self._send_delta(response, "audio", audio=to_floats(event.pcm), usage=self._outbox.token_totals.wire_usage())
        else:
            response.audio_chunks.append(event.pcm)

    def _on_metrics(self, event: engine_events.EngineMetrics, response: _ChatResponse) -> None:
        response.metrics.update(event.metrics)
        self._outbox.add_metrics(event.metrics)

    def _on_usage(self, event: engine_events.Usage, _response: _ChatResponse) -> None:
        self._outbox.token_totals.update(event)

    def _on_ended(self, event: engine_events.ResponseEnded, response: _ChatResponse) -> None:
        self._finish(response, _END_REASONS.get(event.reason, event.reason))

    def _on_failed(self, event: engine_events.ResponseFailed, response: _ChatResponse) -> None:
        param = event.param if event.status < 500 else None
        self._outbox.send_error(ClientError(event.message, code=event.code or "inference_failed", type=event.type, param=param))
        # A failed question does not end a chat: `response.done` follows the `error`, and the next question is answered.
        self._finish(response, "error")

    def _finish(self, response: _ChatResponse, reason: str) -> None:
        out = self._outbox
        out.token_totals.finish(response.request.id)
        out.add_metrics(response.metrics)
        out.send(
            events.ResponseDone,
            session_id=out.session_id,
            response_id=response.id,
            input_id=response.input_id,
            text="".join(response.text_chunks),
            # MiniCPM-o: the text is whole here even if it was streamed; audio is only here if it was not.
            audio=to_floats(b"".join(response.audio_chunks)) if response.audio_chunks else None,
            reason=reason,
            metrics=out.take_metrics({"wall_clock_ms": round((out.at - response.received_at) * 1000, 1)}),
            usage=out.token_totals.wire_usage(),
        )
        self._active_response = None
        self._start_next()

    def _send_delta(self, response: _ChatResponse, kind: Kind, **fields: object) -> None:
        self._outbox.send_delta(kind, response.id, response.input_id, **fields)


_EVENT_HANDLERS = table(
    on(engine_events.TextDelta, MinicpmoChat._on_text),
    on(engine_events.AudioTranscriptDelta, MinicpmoChat._on_text),
    on(engine_events.RefusalDelta, MinicpmoChat._on_text),
    on(engine_events.AudioDelta, MinicpmoChat._on_audio),
    on(engine_events.EngineMetrics, MinicpmoChat._on_metrics),
    on(engine_events.Usage, MinicpmoChat._on_usage),
    on(engine_events.ResponseEnded, MinicpmoChat._on_ended),
    on(engine_events.ResponseFailed, MinicpmoChat._on_failed),
)
"""What each engine event does; this protocol has no form for the others."""


# From a question to a request

_REQUIREMENTS: dict[type, Callable[[Capabilities], bool]] = {
    history.ImagePart: lambda capabilities: capabilities.images,
    history.AudioPart: lambda capabilities: capabilities.audio_in,
    history.SpeechPart: lambda capabilities: capabilities.audio_in,
    history.VideoPart: lambda capabilities: capabilities.videos,
}
"""The capability that a part of a message needs."""


def _check_parts(messages: Sequence[history.Message], first: int, config: MinicpmoSessionConfig) -> None:
    """
    Check that the engine can read every part of the messages.

    Args:
        first: the index of the first of them in the client's list.

    Raises:
        ClientError: it can't.
    """
    for index, message in enumerate(messages, first):
        for part_index, part in enumerate(message.parts):
            is_supported = _REQUIREMENTS.get(type(part))
            if is_supported is not None and not is_supported(config.capabilities):
                raise unsupported_parameter(f"input.messages[{index}].content[{part_index}]", config.model)


def _split_system_prompt(messages: Sequence[history.Message]) -> tuple[str | None, bytes | None, Sequence[history.Message]]:
    """The leading system messages as instructions and a reference voice, and the messages that follow them."""
    instructions: list[str] = []
    reference: bytes | None = None
    for index, message in enumerate(messages):
        if message.role != "system" or not all(isinstance(part, history.TextPart | history.SpeechPart) for part in message.parts):
            return "\n\n".join(instructions) if instructions else None, reference, messages[index:]
        instructions.append("\n".join(part.text for part in message.parts if isinstance(part, history.TextPart)))
        reference = next((part.pcm for part in message.parts if isinstance(part, history.SpeechPart)), reference)
    return None, None, ()


def _with_detail(message: history.Message, slices: int | None) -> history.Message:
    """The message, with `detail` high for its images if the client asks for more than one slice of each."""
    if slices is None or slices < 2:
        return message
    parts = tuple(history.ImagePart(url=part.url, detail="high") if isinstance(part, history.ImagePart) else part for part in message.parts)
    return history.Message(message.role, parts)


def _extra(event: ChatAppend, capabilities: Capabilities) -> JsonDict:
    """
    Options that only this protocol's own engines know. Defaults are left out, as other engines may refuse unknown
    options.
    """
    extra: JsonDict = {}
    if event.length_penalty is not None and event.length_penalty != LENGTH_PENALTY_DEFAULT:
        extra["length_penalty"] = event.length_penalty
    if event.slices is not None and event.slices > 1:
        extra["max_slice_nums"] = event.slices
    if event.is_omni:
        extra["omni_mode"] = True
    if event.thinks and not capabilities.efforts:
        extra["enable_thinking"] = True
    return extra


def _effort(event: ChatAppend, capabilities: Capabilities) -> str | None:
    """The reasoning effort; None if the client left it open or the engine has no efforts."""
    if not capabilities.efforts or event.thinks is None:
        return None
    if not event.thinks:
        return "none" if "none" in capabilities.efforts else None
    return "medium" if "medium" in capabilities.efforts else capabilities.efforts[-1]
