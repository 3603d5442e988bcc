"""
A MiniCPM-o session in chat: questions, each with all of its conversation, and their answers, one after the other.

Nothing is kept from one question to the next. A question that comes while another is answered waits for its turn.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from antiphon.engine_api import commands, events as engine_events, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import Sampling, Voice
from antiphon.errors import ClientError, unsupported_parameter
from antiphon.protocols.minicpmo.opening import MinicpmoSessionConfig
from antiphon.protocols.minicpmo.outbox import MinicpmoOutbox
from antiphon.protocols.session import NewId
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.chat import ChatAppend
from antiphon.wire.minicpmo.client_events import SessionInit
from antiphon.wire.minicpmo.media import RATE_OUT_HZ, to_floats

WAITING_QUESTIONS_LIMIT = 8
"""The most questions that wait while another is answered."""

LENGTH_PENALTY_DEFAULT = 1.1
"""What the original takes where nothing is said, and its clients say all the same; not told to engines that know of none."""

_NO_VOICE_CLONING_NOTE = "tts.ref_audio_data: this model speaks in its own voice"
_END_REASONS: dict[str, str] = {"stop": "turn_end"}
"""What clients know the ends of an answer as; others have the names that engines give them."""


class _ChatResponse(Struct, kw_only=True):
    """
    A question and what came of it.

    Attributes:
        id: of the response, for the client.
        asked_at: in Unix seconds.
    """

    id: str
    input_id: str
    request: commands.Respond
    is_streamed: bool
    received_at: float
    text_chunks: list[str] = field(default_factory=list)
    audio_chunks: list[bytes] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)


class MinicpmoChat:
    """
    What a session does once it has begun.

    Attributes:
        failed: why no more answers can be hoped for; here each is hoped for anew.
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
        """Whether it is the client's to say something."""
        return self._active_response is None

    def append(self, event: ChatAppend) -> None:
        """
        A question.

        Raises:
            ClientError: it can't be answered, or too many wait already.
        """
        if len(self._waiting_responses) >= WAITING_QUESTIONS_LIMIT:
            raise ClientError(
                f"There are {WAITING_QUESTIONS_LIMIT} questions waiting for their answers. Wait until one of them is answered.",
                code="too_many_inputs",
                type="rate_limit_error",
            )
        self._waiting_responses.append(self._plan_response(event))
        self._start_next()

    def handle_event(self, event: engine_events.EngineEvent) -> None:
        """The engine said so."""
        answer, taken = self._active_response, _EVENT_HANDLERS.get(type(event))
        if answer is not None and taken is not None and event.id == answer.request.id:
            taken(self, answer, event)

    def stop(self) -> None:
        """The session is over."""
        if self._active_response is not None:
            self._outbox.send_to_engine(commands.Cancel(self._active_response.request.id))

    # Questions

    def _plan_response(self, event: ChatAppend) -> _ChatResponse:
        abilities = self._config.capabilities
        if event.speaks and not abilities.audio_out:
            raise unsupported_parameter("input.tts.enabled", self._config.model)
        told, reference, rest = _split_system_prompt(event.messages)
        _check_parts(rest, len(event.messages) - len(rest), self._config)
        if not rest:
            raise ClientError("Invalid 'input.messages': expected one to answer.", code="invalid_payload", param="input.messages")
        if told is None:
            told = self._init.instructions if self._init.instructions is not None else self._config.instructions
        id = self._new_id("resp")
        ask = commands.Respond(
            id=id,
            history=tuple(_with_detail(message, event.slices) for message in rest),
            instructions=told,
            sampling=Sampling(max_tokens=event.max_tokens, extra=_extra(event, abilities)),
            reasoning_effort=_effort(event, abilities),
            whole=not event.streaming,
            voice=self._voice(event.voice_reference or reference) if event.speaks else None,
        )
        return _ChatResponse(
            id=event.response_id or id,
            input_id=event.input_id or self._new_id("input"),
            request=ask,
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

    # Answers

    def _on_text(
        self, response: _ChatResponse, event: engine_events.TextDelta | engine_events.AudioTranscriptDelta | engine_events.RefusalDelta
    ) -> None:
        if not event.text:
            return
        response.text_chunks.append(event.text)
        if response.is_streamed:
            self._send_delta(response, "text", text=event.text)

    def _on_audio(self, response: _ChatResponse, event: engine_events.AudioDelta) -> None:
        if not event.pcm:
            return
        if response.is_streamed:
            self._send_delta(response, "audio", audio=to_floats(event.pcm), usage=self._outbox.token_totals.wire_usage())
        else:
            response.audio_chunks.append(event.pcm)

    def _on_metrics(self, response: _ChatResponse, event: engine_events.EngineMetrics) -> None:
        response.metrics.update(event.metrics)
        self._outbox.add_metrics(event.metrics)

    def _on_usage(self, _response: _ChatResponse, event: engine_events.Usage) -> None:
        self._outbox.token_totals.update(event)

    def _on_ended(self, response: _ChatResponse, event: engine_events.ResponseEnded) -> None:
        self._finish(response, _END_REASONS.get(event.reason, event.reason))

    def _on_failed(self, response: _ChatResponse, event: engine_events.ResponseFailed) -> None:
        param = event.param if event.status < 500 else None
        self._outbox.send_error(ClientError(event.message, code=event.code or "inference_failed", type=event.type, param=param))
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
            audio=to_floats(b"".join(response.audio_chunks)) if response.audio_chunks else None,
            reason=reason,
            metrics=out.take_metrics({"wall_clock_ms": round((out.at - response.received_at) * 1000, 1)}),
            usage=out.token_totals.wire_usage(),
        )
        self._active_response = None
        self._start_next()

    def _send_delta(self, response: _ChatResponse, kind: str, **fields: Any) -> None:
        out = self._outbox
        out.send(
            events.OutputDelta,
            kind=kind,
            session_id=out.session_id,
            response_id=response.id,
            input_id=response.input_id,
            metrics=out.take_metrics(),
            **fields,
        )


_EVENT_HANDLERS: dict[type, Callable[[MinicpmoChat, _ChatResponse, Any], None]] = {
    engine_events.TextDelta: MinicpmoChat._on_text,
    engine_events.AudioTranscriptDelta: MinicpmoChat._on_text,
    engine_events.RefusalDelta: MinicpmoChat._on_text,
    engine_events.AudioDelta: MinicpmoChat._on_audio,
    engine_events.EngineMetrics: MinicpmoChat._on_metrics,
    engine_events.Usage: MinicpmoChat._on_usage,
    engine_events.ResponseEnded: MinicpmoChat._on_ended,
    engine_events.ResponseFailed: MinicpmoChat._on_failed,
}
"""What is made of an engine's words; of the others clients of this protocol learn nothing."""


# Of a question

_REQUIREMENTS: dict[type, Callable[[Capabilities], bool]] = {
    history.ImagePart: lambda abilities: abilities.images,
    history.AudioPart: lambda abilities: abilities.audio_in,
    history.SpeechPart: lambda abilities: abilities.audio_in,
    history.VideoPart: lambda abilities: abilities.videos,
}
"""What an engine must be able to do for a part of a message."""


def _check_parts(messages: Sequence[history.Message], first: int, config: MinicpmoSessionConfig) -> None:
    """
    Ask whether the engine takes all that is in the messages.

    Args:
        first: the client's number of the first of them.

    Raises:
        ClientError: it doesn't.
    """
    for index, message in enumerate(messages, first):
        for at, part in enumerate(message.parts):
            takes = _REQUIREMENTS.get(type(part))
            if takes is not None and not takes(config.capabilities):
                raise unsupported_parameter(f"input.messages[{index}].content[{at}]", config.model)


def _split_system_prompt(messages: Sequence[history.Message]) -> tuple[str | None, bytes | None, Sequence[history.Message]]:
    """What stands before the conversation: what the model is told, and the recording of its voice; then the conversation."""
    told: list[str] = []
    reference: bytes | None = None
    for index, message in enumerate(messages):
        if message.role != "system" or not all(isinstance(part, history.TextPart | history.SpeechPart) for part in message.parts):
            return "\n\n".join(told) if told else None, reference, messages[index:]
        told.append("\n".join(part.text for part in message.parts if isinstance(part, history.TextPart)))
        reference = next((part.pcm for part in message.parts if isinstance(part, history.SpeechPart)), reference)
    return None, None, ()


def _with_detail(message: history.Message, slices: int | None) -> history.Message:
    """A message whose pictures are to be looked at closely, where the client wants them cut into several."""
    if slices is None or slices < 2:
        return message
    parts = tuple(history.ImagePart(url=part.url, detail="high") if isinstance(part, history.ImagePart) else part for part in message.parts)
    return history.Message(message.role, parts)


def _extra(event: ChatAppend, capabilities: Capabilities) -> dict[str, Any]:
    """What engines of this protocol's own take; without what goes without saying, as others may refuse what they don't know."""
    extra: dict[str, Any] = {}
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
    """How much to reason, where an engine tells one effort from another."""
    if not capabilities.efforts or event.thinks is None:
        return None
    if not event.thinks:
        return "none" if "none" in capabilities.efforts else None
    return "medium" if "medium" in capabilities.efforts else capabilities.efforts[-1]
