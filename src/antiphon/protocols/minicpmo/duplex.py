"""
A MiniCPM-o session in full duplex: what the client hears and sees goes to the engine, and what the engine says goes to the client.

Nobody asks for answers. A response is what the engine says under one id; it ends with a `listen` that says so.
"""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.options import Voice
from antiphon.protocols.minicpmo.opening import MinicpmoSessionConfig
from antiphon.protocols.minicpmo.outbox import MinicpmoOutbox
from antiphon.protocols.session import NewId
from antiphon.wire.codec.types import Opt
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.client_events import DuplexAppend, Frame, SessionInit
from antiphon.wire.minicpmo.media import RATE_IN_HZ, RATE_OUT_HZ, to_floats

FAILURES_LIMIT = 3
"""Answers that fail one after another until the session is of no use."""

_NO_VOICE_CLONING_NOTE = "voice: this model speaks in its own voice"
_NO_SPEECH_NOTE = "use_tts: this model does not speak"
_AUDIO_MODE_NOTE = "video_frames: not looked at in mode=audio"
_NO_VISION_NOTE = "video_frames: this model does not see"


def start_duplex_command(config: MinicpmoSessionConfig, init: SessionInit, outbox: MinicpmoOutbox) -> commands.StartDuplex:
    """What the engine is told to begin with."""
    abilities, voice = config.capabilities, None
    if (init.reference or init.voice_reference) and not abilities.clones:
        outbox.add_note(_NO_VOICE_CLONING_NOTE)
    if init.speaks and not abilities.audio_out:
        outbox.add_note(_NO_SPEECH_NOTE)
    if init.speaks and abilities.audio_out:
        voice = Voice(rate_hz=RATE_OUT_HZ, reference=(init.voice_reference or init.reference) if abilities.clones else None)
    return commands.StartDuplex(
        instructions=init.instructions if init.instructions is not None else config.instructions,
        rate_hz=RATE_IN_HZ,
        has_video=config.mode == "video" and abilities.sees,
        voice=voice,
        reference_audio=init.reference if abilities.clones else None,
        options=init.options,
    )


class MinicpmoDuplex:
    """
    What a session does once it has begun.

    Attributes:
        failed: why no more answers can be hoped for; None while they can.
    """

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

    @property
    def is_idle(self) -> bool:
        """Whether it is the client's to say something; here it always is."""
        return True

    def append(self, event: DuplexAppend) -> None:
        """The client goes on."""
        self._input_id = event.input_id or self._new_id("input")
        self._has_just_ended = False
        if event.response_id is not None:
            self._next_response_id = event.response_id
        if event.frames:
            self._append_frames(event.frames)
        if event.force_listen:
            self._outbox.send_to_engine(commands.ForceListen())
        if event.pcm:
            self._outbox.send_to_engine(commands.AppendAudio(event.pcm))

    def _append_frames(self, frames: tuple[Frame, ...]) -> None:
        if self._config.mode == "audio" or not self._config.capabilities.sees:
            self._outbox.add_note(_AUDIO_MODE_NOTE if self._config.mode == "audio" else _NO_VISION_NOTE)
            return
        for frame in frames:
            self._outbox.send_to_engine(commands.AppendImage(frame.jpeg, frame.slices or self._slices or 1))

    def handle_event(self, event: engine_events.EngineEvent) -> None:
        """The engine said so."""
        taken = _EVENT_HANDLERS.get(type(event))
        if taken is not None:
            taken(self, event)

    def stop(self) -> None:
        """The session is over; leaving the engine's conversation ends what it says."""

    # What the engine says

    def _on_text(self, event: engine_events.TextDelta | engine_events.AudioTranscriptDelta | engine_events.RefusalDelta) -> None:
        if event.text:
            self._send_delta("text", self._client_response_id(event.id), text=event.text)

    def _on_audio(self, event: engine_events.AudioDelta) -> None:
        if event.pcm:
            self._send_delta(
                "audio", self._client_response_id(event.id), audio=to_floats(event.pcm), usage=self._outbox.token_totals.wire_usage()
            )

    def _on_listening(self, event: engine_events.Listening) -> None:
        # An engine that ends what it said may say, too, that it listens again, before that or after it: that is told once.
        if self._has_just_ended or event.id in self._open_responses:
            self._has_just_ended = False
        else:
            self._send_delta("listen", self._next_response_id, text="")

    def _on_ended(self, event: engine_events.ResponseEnded) -> None:
        self._failures = 0
        self._finish(event.id, interrupted=True if event.reason == "cancelled" else UNSET)

    def _on_failed(self, event: engine_events.ResponseFailed) -> None:
        self._failures += 1
        if self._failures >= FAILURES_LIMIT:
            self.failure_message = event.message
        self._client_response_id(event.id)
        self._outbox.add_metrics({"failure": {"code": event.code, "message": event.message}})
        self._finish(event.id)

    def _finish(self, id: str, **fields: Any) -> None:
        self._outbox.token_totals.finish(id)
        response_id = self._open_responses.pop(id, None)
        if response_id is not None:
            self._send_delta("listen", response_id, text="", end_of_turn=True, usage=self._outbox.token_totals.wire_usage(), **fields)
            self._has_just_ended = True

    def _client_response_id(self, id: str) -> str:
        """What the client calls a response; where it is new, it has begun."""
        response_id = self._open_responses.get(id)
        if response_id is None:
            response_id = self._open_responses[id] = self._next_response_id
            self._next_response_id = self._new_id("resp")
        return response_id

    def _send_delta(self, kind: str, response_id: str, **fields: Any) -> None:
        out = self._outbox
        self._has_just_ended = False
        out.send(
            events.OutputDelta,
            kind=kind,
            session_id=out.session_id,
            response_id=response_id,
            input_id=self._input_id,
            metrics=out.take_metrics(),
            **fields,
        )


_EVENT_HANDLERS: dict[type, Callable[[MinicpmoDuplex, Any], None]] = {
    engine_events.TextDelta: MinicpmoDuplex._on_text,
    engine_events.AudioTranscriptDelta: MinicpmoDuplex._on_text,
    engine_events.RefusalDelta: MinicpmoDuplex._on_text,
    engine_events.AudioDelta: MinicpmoDuplex._on_audio,
    engine_events.Listening: MinicpmoDuplex._on_listening,
    engine_events.ResponseEnded: MinicpmoDuplex._on_ended,
    engine_events.ResponseFailed: MinicpmoDuplex._on_failed,
    engine_events.Usage: lambda duplex, word: duplex._outbox.token_totals.update(word),
    engine_events.EngineMetrics: lambda duplex, word: duplex._outbox.add_metrics(word.metrics),
    engine_events.EngineError: lambda duplex, word: duplex._outbox.add_note(word.message),
}
"""What is made of an engine's words; of the others clients of this protocol learn nothing."""
