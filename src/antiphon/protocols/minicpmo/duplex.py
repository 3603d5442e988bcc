"""
A MiniCPM-o session in full duplex: what the client hears and sees goes to the engine, and what the engine says goes to the client.

Nobody asks for answers. A response is what the engine says under one id; it ends with a `listen` that says so.
"""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.options import Voice
from antiphon.protocols.minicpmo.opening import Opening
from antiphon.protocols.minicpmo.outbox import Out
from antiphon.protocols.session import Mint
from antiphon.wire.codec.types import Opt
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.client_events import DuplexAppend, Frame, SessionInit
from antiphon.wire.minicpmo.media import RATE_IN_HZ, RATE_OUT_HZ, to_floats

BROKEN_LIMIT = 3
"""Answers that fail one after another until the session is of no use."""

_KEEPS_VOICE = "voice: this model speaks in its own voice"
_SILENT = "use_tts: this model does not speak"
_NO_PICTURES = "video_frames: not looked at in mode=audio"
_BLIND = "video_frames: this model does not see"


def converse(opening: Opening, init: SessionInit, out: Out) -> commands.Converse:
    """What the engine is told to begin with."""
    abilities, voice = opening.abilities, None
    if (init.reference or init.voice_reference) and not abilities.clones:
        out.note(_KEEPS_VOICE)
    if init.speaks and not abilities.audio_out:
        out.note(_SILENT)
    if init.speaks and abilities.audio_out:
        voice = Voice(rate_hz=RATE_OUT_HZ, reference=(init.voice_reference or init.reference) if abilities.clones else None)
    return commands.Converse(
        instructions=init.instructions if init.instructions is not None else opening.instructions,
        rate_hz=RATE_IN_HZ,
        sees=opening.mode == "video" and abilities.sees,
        voice=voice,
        reference=init.reference if abilities.clones else None,
        options=init.options,
    )


class Duplex:
    """
    What a session does once it has begun.

    Attributes:
        failed: why no more answers can be hoped for; None while they can.
    """

    def __init__(self, opening: Opening, init: SessionInit, out: Out, mint: Mint) -> None:
        self.failed: str | None = None
        self._opening = opening
        self._slices = init.slices
        self._out = out
        self._mint = mint
        self._input_id: Opt[str] = UNSET
        self._next_id = mint("resp")
        self._open: dict[str, str] = {}
        self._has_just_ended = False
        self._broken = 0

    @property
    def is_idle(self) -> bool:
        """Whether it is the client's to say something; here it always is."""
        return True

    def append(self, given: DuplexAppend) -> None:
        """The client goes on."""
        self._input_id = given.input_id or self._mint("input")
        self._has_just_ended = False
        if given.response_id is not None:
            self._next_id = given.response_id
        if given.frames:
            self._see(given.frames)
        if given.force_listen:
            self._out.tell(commands.Listen())
        if given.pcm:
            self._out.tell(commands.Hear(given.pcm))

    def _see(self, frames: tuple[Frame, ...]) -> None:
        if self._opening.mode == "audio" or not self._opening.abilities.sees:
            self._out.note(_NO_PICTURES if self._opening.mode == "audio" else _BLIND)
            return
        for frame in frames:
            self._out.tell(commands.See(frame.jpeg, frame.slices or self._slices or 1))

    def hear(self, word: talk_events.FromEngine) -> None:
        """The engine said so."""
        taken = _TAKES.get(type(word))
        if taken is not None:
            taken(self, word)

    def stop(self) -> None:
        """The session is over; leaving the engine's conversation ends what it says."""

    # What the engine says

    def _say(self, word: talk_events.Text | talk_events.Spoken | talk_events.Refusal) -> None:
        if word.text:
            self._send("text", self._id_of(word.id), text=word.text)

    def _sound(self, word: talk_events.Sound) -> None:
        if word.pcm:
            self._send("audio", self._id_of(word.id), audio=to_floats(word.pcm), usage=self._out.spending.told())

    def _listen(self, word: talk_events.Listening) -> None:
        # An engine that ends what it said may say, too, that it listens again, before that or after it: that is told once.
        if self._has_just_ended or word.id in self._open:
            self._has_just_ended = False
        else:
            self._send("listen", self._next_id, text="")

    def _end(self, word: talk_events.Ended) -> None:
        self._broken = 0
        self._finish(word.id, interrupted=True if word.reason == "cancelled" else UNSET)

    def _break(self, word: talk_events.Broke) -> None:
        self._broken += 1
        if self._broken >= BROKEN_LIMIT:
            self.failed = word.message
        self._id_of(word.id)
        self._out.measure({"failure": {"code": word.code, "message": word.message}})
        self._finish(word.id)

    def _finish(self, id: str, **fields: Any) -> None:
        self._out.spending.settle(id)
        response_id = self._open.pop(id, None)
        if response_id is not None:
            self._send("listen", response_id, text="", end_of_turn=True, usage=self._out.spending.told(), **fields)
            self._has_just_ended = True

    def _id_of(self, id: str) -> str:
        """What the client calls a response; where it is new, it has begun."""
        response_id = self._open.get(id)
        if response_id is None:
            response_id = self._open[id] = self._next_id
            self._next_id = self._mint("resp")
        return response_id

    def _send(self, kind: str, response_id: str, **fields: Any) -> None:
        out = self._out
        self._has_just_ended = False
        out.send(
            events.OutputDelta,
            kind=kind,
            session_id=out.session_id,
            response_id=response_id,
            input_id=self._input_id,
            metrics=out.metrics(),
            **fields,
        )


_TAKES: dict[type, Callable[[Duplex, Any], None]] = {
    talk_events.Text: Duplex._say,
    talk_events.Spoken: Duplex._say,
    talk_events.Refusal: Duplex._say,
    talk_events.Sound: Duplex._sound,
    talk_events.Listening: Duplex._listen,
    talk_events.Ended: Duplex._end,
    talk_events.Broke: Duplex._break,
    talk_events.Used: lambda duplex, word: duplex._out.spending.count(word),
    talk_events.Measured: lambda duplex, word: duplex._out.measure(word.metrics),
    talk_events.Trouble: lambda duplex, word: duplex._out.note(word.message),
}
"""What is made of an engine's words; of the others clients of this protocol learn nothing."""
