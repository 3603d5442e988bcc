"""
A MiniCPM-o session in full duplex: the client's audio and video go to the engine, and what the engine says goes to the
client.

Responses are not requested: the engine decides when to speak. A response is what it says under one id; it ends with a
`listen` event whose `end_of_turn` is true.
"""

from msgspec import UNSET

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.options import Voice
from antiphon.protocols.dispatch import HandlerTable, on, table
from antiphon.protocols.minicpmo.config import MinicpmoSessionConfig
from antiphon.protocols.minicpmo.outbox import Kind, MinicpmoOutbox
from antiphon.protocols.session import InputTranscript, NewId
from antiphon.wire.codec.types import Opt
from antiphon.wire.minicpmo.client_events import DuplexAppend, Frame, SessionInit
from antiphon.wire.minicpmo.media import RATE_IN_HZ, RATE_OUT_HZ, to_floats

FAILURES_LIMIT = 3
"""How many responses may fail in a row before the session is closed."""

_NO_VOICE_CLONING_NOTE = "voice: this model speaks in its own voice"
_NO_SPEECH_NOTE = "use_tts: this model does not speak"
_AUDIO_MODE_NOTE = "video_frames: ignored in mode=audio"
_NO_VISION_NOTE = "video_frames: this model does not see"


def start_duplex_command(config: MinicpmoSessionConfig, init: SessionInit, outbox: MinicpmoOutbox) -> commands.StartDuplex:
    """The command that starts the engine's conversation."""
    capabilities, voice = config.capabilities, None
    if (init.reference or init.voice_reference) and not capabilities.clones:
        outbox.add_note(_NO_VOICE_CLONING_NOTE)
    if init.speaks and not capabilities.audio_out:
        outbox.add_note(_NO_SPEECH_NOTE)
    if init.speaks and capabilities.audio_out:
        voice = Voice(rate_hz=RATE_OUT_HZ, reference=(init.voice_reference or init.reference) if capabilities.clones else None)
    return commands.StartDuplex(
        instructions=init.instructions if init.instructions is not None else config.instructions,
        rate_hz=RATE_IN_HZ,
        has_video=config.mode == "video" and capabilities.sees,
        voice=voice,
        reference_audio=init.reference if capabilities.clones else None,
        options=init.options,
    )


class MinicpmoDuplex:
    """
    The part of a session that runs once it was created, in the modes `audio` and `video`.

    Attributes:
        failure_message: why the session must be closed; None while it works.
        is_idle: whether the session waits for the client: here always.
    """

    is_idle = True

    def __init__(self, config: MinicpmoSessionConfig, init: SessionInit, outbox: MinicpmoOutbox, new_id: NewId) -> None:
        self.failure_message: str | None = None
        self._config = config
        self._slices = init.slices
        self._outbox = outbox
        self._new_id = new_id
        self._input_id: Opt[str] = UNSET
        self._next_response_id = new_id("resp")
        self._open_responses: dict[str, str] = {}
        self._has_just_ended = False
        self._failures = 0

    def append(self, event: DuplexAppend) -> None:
        """Pass the client's audio and frames on to the engine."""
        self._input_id = event.input_id or self._new_id("input")
        self._has_just_ended = False
        if event.response_id is not None:
            self._next_response_id = event.response_id
        if event.frames:
            self._append_frames(event.frames)
        # MiniCPM-o: this is how a client interrupts; there is no event for it.
        if event.force_listen:
            self._outbox.send_to_engine(commands.ForceListen())
        if event.pcm:
            self._outbox.send_to_engine(commands.AppendAudio(event.pcm))

    def _append_frames(self, frames: tuple[Frame, ...]) -> None:
        if self._config.mode == "audio" or not self._config.capabilities.sees:
            # A note, not an `error`: the audio beside the pictures is good, and some clients end at any error.
            self._outbox.add_note(_AUDIO_MODE_NOTE if self._config.mode == "audio" else _NO_VISION_NOTE)
            return
        for frame in frames:
            self._outbox.send_to_engine(commands.AppendImage(frame.jpeg, frame.slices or self._slices or 1))

    def handle_event(self, event: engine_events.EngineEvent) -> None:
        """Send the client what follows from an engine event."""
        handler = _EVENT_HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def stop(self) -> None:
        """Nothing to do at the end of the session: closing the engine's conversation ends what it says."""

    # Engine events

    def _on_text(self, event: engine_events.TextDelta | engine_events.AudioTranscriptDelta | engine_events.RefusalDelta) -> None:
        if event.text:
            self._send_delta("text", self._client_response_id(event.id), text=event.text)

    def _on_audio(self, event: engine_events.AudioDelta) -> None:
        if event.pcm:
            # openbmb-realtime reads `usage` in a delta only if that has audio.
            usage = self._outbox.token_totals.wire_usage()
            self._send_delta("audio", self._client_response_id(event.id), audio=to_floats(event.pcm), usage=usage)

    def _on_listening(self, event: engine_events.Listening) -> None:
        # An engine that ends a response may also report that it listens again, before or after that end: the client
        # gets one `listen`.
        if self._has_just_ended or event.id in self._open_responses:
            self._has_just_ended = False
        else:
            # The original sends a `listen` without a `text`, and openbmb-realtime drops such a one.
            self._send_delta("listen", self._next_response_id, text="")

    def _on_input_transcript(self, event: engine_events.InputTranscriptDone) -> None:
        # MiniCPM-o has no event for it.
        self._outbox.observe(InputTranscript(transcript=event.transcript, start_ms=event.start_ms, end_ms=event.end_ms))

    def _on_ended(self, event: engine_events.ResponseEnded) -> None:
        self._failures = 0
        # MiniCPM-o has one `listen` for both ends; `interrupted` tells a client to drop what it has not played yet.
        self._finish(event.id, interrupted=True if event.reason == "cancelled" else UNSET)

    def _on_failed(self, event: engine_events.ResponseFailed) -> None:
        self._failures += 1
        if self._failures >= FAILURES_LIMIT:
            self.failure_message = event.message
        self._client_response_id(event.id)
        # No `error`: openbmb-realtime would take it for the end of the session.
        self._outbox.add_metrics({"failure": {"code": event.code, "message": event.message}})
        self._finish(event.id)

    def _finish(self, id: str, **fields: object) -> None:
        self._outbox.token_totals.finish(id)
        response_id = self._open_responses.pop(id, None)
        if response_id is not None:
            self._send_delta("listen", response_id, text="", end_of_turn=True, usage=self._outbox.token_totals.wire_usage(), **fields)
            self._has_just_ended = True

    def _client_response_id(self, id: str) -> str:
        """The id that the client knows a response by; a new response gets its id here."""
        response_id = self._open_responses.get(id)
        if response_id is None:
            response_id = self._open_responses[id] = self._next_response_id
            self._next_response_id = self._new_id("resp")
        return response_id

    def _send_delta(self, kind: Kind, response_id: str, **fields: object) -> None:
        self._has_just_ended = False
        self._outbox.send_delta(kind, response_id, self._input_id, **fields)


_EVENT_HANDLERS: HandlerTable[MinicpmoDuplex, None] = table(
    on(engine_events.TextDelta, MinicpmoDuplex._on_text),
    on(engine_events.AudioTranscriptDelta, MinicpmoDuplex._on_text),
    on(engine_events.RefusalDelta, MinicpmoDuplex._on_text),
    on(engine_events.AudioDelta, MinicpmoDuplex._on_audio),
    on(engine_events.Listening, MinicpmoDuplex._on_listening),
    on(engine_events.InputTranscriptDone, MinicpmoDuplex._on_input_transcript),
    on(engine_events.ResponseEnded, MinicpmoDuplex._on_ended),
    on(engine_events.ResponseFailed, MinicpmoDuplex._on_failed),
    on(engine_events.Usage, lambda duplex, event: duplex._outbox.token_totals.update(event)),
    on(engine_events.EngineMetrics, lambda duplex, event: duplex._outbox.add_metrics(event.metrics)),
    on(engine_events.EngineError, lambda duplex, event: duplex._outbox.add_note(event.message)),
)
"""What each engine event does; this protocol has no form for the others."""
