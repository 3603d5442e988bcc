"""A MiniCPM-o session with recordings in place of a person, and pictures in place of a camera."""

import asyncio
import base64
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from antiphon.audio import bytes_of, ms_of, peak
from antiphon.cli.common.client import ANSWER_S, Client
from antiphon.cli.voice.audio import Recording
from antiphon.cli.voice.duplex_record import Record
from antiphon.cli.voice.minicpmo_session import Asked, Heard, Line, connected
from antiphon.cli.voice.transcript import Words
from antiphon.errors import UpstreamTrouble
from antiphon.wire.minicpmo.media import RATE_IN_HZ, to_floats
from antiphon.wire.minicpmo.server_events import ServerEvent, SessionClosed, SessionCreated

SILENCE_MS = 15_000
"""After so much of it a model that has said nothing won't."""

SETTLING_S = 0.5
"""How long after an answer a model may take to go on."""

HURRY_S, TIMES_AS_FAST = 8.0, 2.0
"""How much of a recording may be sent at once, and how fast the rest: what a server has to listen to waits somewhere, so few take more."""

HURRIED_SILENCE_MS = 1_000
"""Of the silence, what may be sent at once; more would have to be listened to while the answer is made."""

_QUIET_PART = 20
"""Sound below this part of the loudest is no speech."""

_FRAME_MS = 1_000
"""One picture for so much sound, as the pages of MiniCPM-o send them."""


class Given(Struct, frozen=True, kw_only=True):
    """
    What is said, and how.

    Attributes:
        recordings: s16le at `RATE_IN_HZ`.
        pictures: JPEG files, one for every second.
        piece_ms: how much sound is sent at once.
        is_fast: whether it is sent faster than it sounds.
        must_listen: whether the model may say nothing until a recording is over.
        is_aloud: whether an answer in chat is wanted aloud.
        silence_ms: how much of it the model may take to say something.
    """

    recordings: Sequence[Recording]
    pictures: Sequence[bytes] = ()
    piece_ms: int = 1_000
    is_fast: bool = False
    must_listen: bool = False
    is_aloud: bool = False
    silence_ms: int = SILENCE_MS


class Outcome(Struct, frozen=True, kw_only=True):
    """
    What came of a session.

    Attributes:
        sent: how many events there were, by type; `received` likewise.
        closed: the server's last word.
    """

    record: Record
    created: SessionCreated
    closed: SessionClosed | None
    sent: Counter[str]
    received: Counter[str]


class Shown(Protocol):
    """What shows a session."""

    def show(self, words: Words) -> None:
        """Show words as they come."""

    def state(self, event: Any, record: Record) -> None:
        """Something else has happened."""

    def over(self, record: Record, first: int) -> None:
        """A recording is answered, with the answers from `first` on."""


async def held(client: Client, asked: Asked, given: Given, shown: Shown) -> Outcome:
    """
    Hold a whole session.

    Raises:
        UpstreamTrouble: it came to nothing.
    """
    record = Record()
    async with connected(client, asked) as line:
        conversation = (_Chat if asked.mode == "chat" else _Duplex)(line, record, shown, given)
        await line.begin(asked, conversation.take)
        assert line.created is not None
        for recording in given.recordings:
            first = len(record.answers)
            record.source = recording.name
            await conversation.say(recording)
            shown.over(record, first)
        await line.end(conversation.take)
    return Outcome(record=record, created=line.created, closed=line.closed, sent=line.sent, received=line.received)


class _Conversation:
    """What the modes have in common."""

    def __init__(self, line: Line, record: Record, shown: Shown, given: Given) -> None:
        self._line = line
        self._record = record
        self._shown = shown
        self._given = given

    def take(self, heard: Heard) -> None:
        """Note down what was heard, and show it."""
        for words in self._record.take(heard.event, heard.at_s):
            self._shown.show(words)
        if isinstance(heard.event, ServerEvent):
            self._shown.state(heard.event, self._record)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class _Duplex(_Conversation):
    """Sound goes on, whoever speaks."""

    def __init__(self, line: Line, record: Record, shown: Shown, given: Given) -> None:
        super().__init__(line, record, shown, given)
        self._silence = bytes(bytes_of(given.piece_ms, RATE_IN_HZ))
        self._sent_ms = 0.0
        self._pictured_s = -1
        self._due_s = 0.0

    async def say(self, recording: Recording) -> None:
        """
        Say a recording, and wait for what is answered.

        Raises:
            UpstreamTrouble: nothing is.
        """
        first, size = len(self._record.answers), len(self._silence)
        begun_s = self._due_s = self._now()
        said_ms, speech_end_ms = 0.0, speech_end(recording.pcm)
        self._record.speech_end_s = begun_s + ms_of(len(recording.pcm), RATE_IN_HZ) / 1000  # until it is known
        for at in range(0, len(recording.pcm), size):
            piece = recording.pcm[at : at + size]
            said_ms += ms_of(len(piece), RATE_IN_HZ)
            self._due_s = begun_s + self._takes_s(said_ms)
            await self._send(piece, must_listen=self._given.must_listen)
            if said_ms - self._given.piece_ms < speech_end_ms:
                self._record.speech_end_s = self._now() if self._given.is_fast else begun_s + speech_end_ms / 1000
        for answer in self._record.answers[first:]:
            answer.asked_s = self._record.speech_end_s
        await self._fall_silent(first)

    def _takes_s(self, ms: float) -> float:
        """When sound of that length has been said: a microphone has a piece of sound once it is over."""
        return max(0.0, ms / 1000 - HURRY_S) / TIMES_AS_FAST if self._given.is_fast else ms / 1000

    async def _fall_silent(self, first: int) -> None:
        silent_ms, record = 0.0, self._record
        while not self._is_answered(first):
            if silent_ms >= self._given.silence_ms and not record.is_speaking:
                if len(record.answers) > first:
                    return
                raise UpstreamTrouble(f"The model has said nothing to {record.source}.")
            hurries = self._given.is_fast and silent_ms < HURRIED_SILENCE_MS
            self._due_s = max(self._due_s, self._now()) + (0 if hurries else self._given.piece_ms / 1000)
            await self._send(self._silence)
            silent_ms += self._given.piece_ms

    def _is_answered(self, first: int) -> bool:
        """Whether the model has said something since the speech was over, and now listens again."""
        record = self._record
        answers = [answer for answer in record.answers[first:] if answer.ended_s is not None and answer.ended_s >= record.speech_end_s]
        ended_s = max((answer.ended_s or 0.0 for answer in answers if not answer.is_interrupted), default=None)
        return not record.is_speaking and ended_s is not None and self._now() >= ended_s + SETTLING_S

    async def _send(self, piece: bytes, *, must_listen: bool = False) -> None:
        """Send a piece once it is due, and hear what comes meanwhile."""
        while (heard := await self._line.hear(max(0.0, self._due_s - self._now()))) is not None:
            self.take(heard)
        append: dict[str, Any] = {"audio": base64.b64encode(to_floats(piece)).decode()}
        if must_listen:
            append["force_listen"] = True
        if (picture := self._picture()) is not None:
            append["video_frames"] = [base64.b64encode(picture).decode()]
        self._sent_ms += ms_of(len(piece), RATE_IN_HZ)
        await self._line.say("input.append", input=append)

    def _picture(self) -> bytes | None:
        """What is seen with the piece that is sent next; the last picture stays."""
        second = int(self._sent_ms // _FRAME_MS)
        if not self._given.pictures or second == self._pictured_s:
            return None
        self._pictured_s = second
        return self._given.pictures[min(second, len(self._given.pictures) - 1)]


class _Chat(_Conversation):
    """Each recording is a message, and the conversation goes with it."""

    def __init__(self, line: Line, record: Record, shown: Shown, given: Given) -> None:
        super().__init__(line, record, shown, given)
        self._messages: list[dict[str, Any]] = []

    async def say(self, recording: Recording) -> None:
        """
        Say a recording, and wait for the answer.

        Raises:
            UpstreamTrouble: there is none.
        """
        parts = [{"type": "audio", "data": base64.b64encode(to_floats(recording.pcm)).decode()}]
        if not self._messages:
            parts = [{"type": "image", "data": base64.b64encode(picture).decode()} for picture in self._given.pictures] + parts
        self._messages.append({"role": "user", "content": parts})
        await self._line.say("input.append", input={"messages": self._messages, "tts": {"enabled": self._given.is_aloud}})
        self._record.speech_end_s, before = self._now(), len(self._record.answers)
        while not (len(self._record.answers) > before and self._record.answers[-1].ended_s is not None):
            heard = await self._line.hear(ANSWER_S)
            if heard is None:
                raise UpstreamTrouble(f"The server has said nothing for {ANSWER_S} s.")
            self.take(heard)
        self._messages.append({"role": "assistant", "content": self._record.answers[-1].text})


def speech_end(pcm: bytes) -> float:
    """Where in a recording the speech ends, in milliseconds."""
    step, loudest = bytes_of(20, RATE_IN_HZ), peak(pcm)
    loud = (at for at in range(0, len(pcm), step) if peak(pcm[at : at + step]) * _QUIET_PART >= loudest)
    return ms_of(max(loud, default=0) + step, RATE_IN_HZ)
